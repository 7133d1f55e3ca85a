"""`due`: whatever waits for time. Delayed starts, back-offs and snoozes become pending; what was not
started in time expires, and what did not end in time fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from stepwell.dispatch.base import Channel, Wakes, tell_all
from stepwell.engine import ends, runs
from stepwell.model.run import OVERDUE, EndedRun, Error
from stepwell.model.turn import Consequences
from stepwell.services.service import Service
from stepwell.store.pool import Database
from stepwell.telemetry import Telemetry

BATCH = 1000
LOOK = 5.0
LOOK_DEAF = 0.5
"""Seconds between looks: a run started since the last one may be due sooner than any seen then, and the word of
it lost; the second while words do not arrive."""


class Due(Service):
    name = "due"

    def __init__(self, database: Database, wakes: Wakes, telemetry: Telemetry | None = None) -> None:
        super().__init__()
        self._telemetry = telemetry or Telemetry()
        self._database = database
        self._wakes = wakes
        self._next_look = 0.0

    @contextmanager
    def listening(self) -> Iterator[None]:
        deaf = self._wakes.subscribe(Channel.SCHEDULED, self._heard)
        try:
            yield
        finally:
            deaf()

    def _heard(self, waits: Sequence[str] | None) -> None:
        wait = min(map(float, waits), default=0.0) if waits else 0.0
        if asyncio.get_running_loop().time() + wait < self._next_look:
            self.sooner.set()

    async def run_once(self) -> float:
        self.sooner.clear()
        self._next_look = math.inf  # whatever is heard meanwhile may be sooner than what is found
        wait = await self._run_once()
        self._next_look = asyncio.get_running_loop().time() + wait
        return wait

    async def _run_once(self) -> float:
        look = LOOK if self._wakes.hears else LOOK_DEAF
        wait = await runs.next_due(self._database)
        if wait is None or wait.total_seconds() > 0:
            return look if wait is None else min(wait.total_seconds(), look)
        queues = await runs.due(self._database, limit=BATCH)
        self._wakes.announce(Channel.PENDING, queues)
        ended = await self._end(ends.expire, None) + await self._end(ends.fail_overdue, OVERDUE)
        return 0.0 if queues or ended else 0.1

    async def _end(self, end: Callable[..., Awaitable[list[EndedRun]]], error: Error | None) -> int:
        """End runs whose time is out, with all that follows. Without an `error` they expire."""
        after = Consequences()
        async with self._database.transaction() as tx:
            ended = await end(tx, after, limit=BATCH)
        after.finished = [each.id for each in ended]
        tell_all(self._wakes, after)
        if ended:
            self._telemetry.tell("due.ended", runs=ended, error=error)
        if after.gone:
            self._telemetry.tell("runs.cancelled", runs=after.gone)
        return len(ended)
