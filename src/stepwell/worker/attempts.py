"""The attempts under way: each from its claim until the tables have its outcome.

An attempt ends by its body, or from outside by a verdict: its time is out, the worker stops, the lease is lost.
A body that then ends in time has the last word; one that does not is settled without, and keeps its slot but
not its claim. An attempt whose claim is lost ends without a word: there is nothing to settle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from stepwell.context import Running
from stepwell.executors.base import Body, Executor, contained, nobody
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.outcome import Completed, Outcome, Released
from stepwell.model.run import Claim
from stepwell.telemetry import log
from stepwell.worker.run_task import failed, run_task, timed_out

CLEANUP = 1.0
"""Seconds a cancelled body has to clean up before its attempt is settled without it."""

Fence = tuple[RunId, ClaimId]


class Runnable(Body, Protocol):
    @property
    def executor(self) -> str:
        """The name of the executor its body runs on."""
        ...


@dataclass(frozen=True, slots=True)
class Bodies:
    """What a worker can run: a body by name, and the executor for it."""

    by_name: Mapping[str, Runnable]
    executors: Mapping[str, Executor]

    @property
    def stuck(self) -> int:
        return sum(executor.stuck for executor in self.executors.values())


@dataclass(slots=True, eq=False)
class Attempt:
    running: Running
    task: asyncio.Task[None] | None = None
    verdict: Outcome | None = None
    """How it ends if we end it; none when its claim is lost."""
    settled: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def claim(self) -> Claim:
        return self.running.claim

    @property
    def fence(self) -> Fence:
        return self.claim.id, self.claim.claim_id


class Attempts:
    def __init__(self, bodies: Bodies, *, settle: Callable[[Claim, Outcome], None], ended: Callable[[], None]) -> None:
        """`settle` takes an outcome to the tables; `ended` is told when an attempt has left its slot."""
        self._bodies = bodies
        self._settle = settle
        self._told_ended = ended
        self._under_way: dict[Claim, Attempt] = {}
        self._idle = asyncio.Event()
        self.known: set[Fence] = set()
        """Every claim that was heard of and is not settled yet."""
        self.alone: set[Fence] = set()
        """Those of them that must be alone. Until they are settled: a death before that takes the outcome along."""

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def taken(self) -> int:
        """Slots that are not free: attempts, and threads that go on after theirs."""
        return len(self._under_way) + self._bodies.stuck

    def begin(self, claim: Claim) -> None:
        attempt = Attempt(Running(claim))
        self.known.add(attempt.fence)
        if claim.alone:
            self.alone.add(attempt.fence)
        self._under_way[claim] = attempt
        self._idle.clear()
        attempt.task = asyncio.create_task(self._run(attempt))

    def give_back(self, claim: Claim) -> None:
        """Release a claim without an attempt at it."""
        self.known.add((claim.id, claim.claim_id))
        self._settle(claim, Released())

    def forget(self, claim: Claim) -> None:
        """The tables have its outcome, or have refused it."""
        self.known.discard((claim.id, claim.claim_id))
        if claim.alone:
            self.alone.discard((claim.id, claim.claim_id))

    def end(self, attempt: Attempt, verdict: Outcome | None) -> None:
        """End an attempt from outside; with no verdict its claim is lost.

        Only once: a second cancellation would cut short the cleanup after the first.
        """
        if attempt.settled or attempt.task is None or attempt.running.cancelled:
            return
        attempt.verdict = verdict
        attempt.running.cancelled = True
        attempt.task.cancel()
        self._later(CLEANUP, attempt, lambda: self._settle_without_body(attempt))

    def end_all(self, verdict: Outcome | None) -> None:
        for attempt in list(self._under_way.values()):
            self.end(attempt, verdict)

    def end_lost(self, before: Iterable[Attempt], held: Mapping[Fence, Claim]) -> None:
        """End those whose claim the table no longer gives to us."""
        for attempt in before:
            if attempt.fence not in held:
                self.end(attempt, None)

    def snapshot(self) -> list[Attempt]:
        return list(self._under_way.values())

    async def idle(self) -> None:
        if self._under_way:
            await self._idle.wait()

    def abandon(self) -> None:
        """Wait for no body any longer."""
        for attempt in self.snapshot():
            self._settle_without_body(attempt)
        self._under_way.clear()
        self._idle.set()

    async def _run(self, attempt: Attempt) -> None:
        body = self._bodies.by_name[attempt.claim.name]
        outcome: Outcome
        try:
            executor = self._bodies.executors[body.executor]
            begun = nobody if attempt.claim.timeout is None else lambda: self._time(attempt)
            outcome = await run_task(attempt.running, body, executor, begun=begun)
        except BaseException as error:
            # A cancellation that was not ours: the body cancelled the task it runs in, and would do so for
            # ever if it were released. Anything else is a mistake of ours, and must not leave the run running.
            outcome = failed(contained(error))
        for timer in attempt.timers:
            timer.cancel()
        self._left(attempt)
        if attempt.running.cancelled and not (attempt.verdict and isinstance(outcome, Completed)):
            self._conclude(attempt, attempt.verdict)
        else:
            self._conclude(attempt, outcome)

    def _time(self, attempt: Attempt) -> None:
        """Its body begins now: what it waited for room before does not count."""
        if (timeout := attempt.claim.timeout) is not None:
            seconds = timeout.total_seconds()
            self._later(seconds, attempt, lambda: self.end(attempt, timed_out(seconds)))

    def _left(self, attempt: Attempt) -> None:
        if self._under_way.pop(attempt.claim, None) is not None:
            if not self._under_way:
                self._idle.set()
            self._told_ended()

    def _conclude(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if attempt.settled:
            return
        attempt.settled = True
        if outcome is None:
            self.forget(attempt.claim)
        else:
            self._settle(attempt.claim, outcome)

    def _settle_without_body(self, attempt: Attempt) -> None:
        if not attempt.settled:
            log.warning("%s %s does not end: it is settled without its body", attempt.claim.name, attempt.claim.id)
            self._conclude(attempt, attempt.verdict)

    def _later(self, seconds: float, attempt: Attempt, what: Callable[[], None]) -> None:
        attempt.timers.append(asyncio.get_running_loop().call_later(seconds, what))
