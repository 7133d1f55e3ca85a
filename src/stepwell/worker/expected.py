"""Runs that were heard of ahead: until they are claimed, their queues are asked again.

A word goes ahead of its run, by less than it takes to come here. But the one who started it may have been held up, and
whoever asked meanwhile found nothing, or only others. Beyond these pauses it is announced once more by who started it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from uuid import UUID

from stepwell.model.run import Claim

SOON = 0.001
"""Seconds from a word to the first question, where the last that was heard of was ours."""
AGAIN = (0.005, 0.03, 0.2)
"""The same where others take them, and from each question to the next. After the first most runs are over: many workers
heard of the same one, and those who did not get it would be in its way."""
FORGET = 1.0
"""Seconds after which a run is expected no more, however many are heard of meanwhile."""


class Expected:
    def __init__(self, ask: Callable[[str], None]) -> None:
        self._ask = ask
        self._coming: dict[UUID, tuple[str, float]] = {}
        """The queue of each, and when it is forgotten."""
        self._pauses: Iterator[float] = iter(())
        """Until the next questions."""
        self._timer: asyncio.TimerHandle | None = None
        self._asks_at = 0.0
        self._had_the_last = True

    def heard(self, coming: Mapping[UUID, str]) -> None:
        now = asyncio.get_running_loop().time()
        for run_id, queue in coming.items():
            self._coming[run_id] = (queue, now + FORGET)
        # Whichever question comes next, it may be too soon for these: all the pauses follow it.
        self._pauses = iter((SOON, *AGAIN) if self._had_the_last else AGAIN)
        first = SOON if self._had_the_last else AGAIN[0]
        self._had_the_last = False
        if self._timer is None or self._asks_at > now + first:
            self._ask_later()

    def claimed(self, claims: Iterable[Claim]) -> None:
        if self._coming:
            for claim in claims:
                if self._coming.pop(claim.id, None) is not None:
                    self._had_the_last = True

    def close(self) -> None:
        self._coming.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _ask_later(self) -> None:
        """One question for all that are expected then."""
        if self._timer is not None:
            self._timer.cancel()
        loop, pause = asyncio.get_running_loop(), next(self._pauses, None)
        if pause is None:
            self._timer = None
            self._coming.clear()
        else:
            self._asks_at = loop.time() + pause
            self._timer = loop.call_at(self._asks_at, self._again)

    def _again(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        self._coming = {run_id: known for run_id, known in self._coming.items() if known[1] > now}
        for queue in {queue for queue, _ in self._coming.values()}:
            self._ask(queue)
        if self._coming:
            self._ask_later()
