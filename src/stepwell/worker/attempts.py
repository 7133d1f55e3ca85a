"""The attempts under way, each from its claim to its outcome.

A claim waits in line until there is a slot; one that waits long is given back. `FirstSteps` begins the bodies.

An attempt ends with its body, or from outside by a verdict: a timeout, the stop of the worker, the loss of the lease.
If the body then ends in time, its end is the outcome. If it does not, the attempt is settled without it: the body keeps
its slot, but not its claim. An attempt whose claim is lost has no outcome, and is not settled.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from typing import Any, cast

from stepwell.context.current import Running
from stepwell.executors.base import contained, nobody
from stepwell.model.outcome import Completed, Outcome, Released, Waiting
from stepwell.model.run import Claim, Fence
from stepwell.telemetry import Telemetry, log
from stepwell.worker.bodies import Bodies
from stepwell.worker.first_steps import FirstSteps
from stepwell.worker.ledger import Ledger
from stepwell.worker.notes import Notes
from stepwell.worker.pace import Pace
from stepwell.worker.run_task import failed, overdue, run_task, silent, timed_out
from stepwell.worker.turns.turns import Turns, WorkflowBody

CLEANUP = 1.0
"""Seconds a cancelled body has to clean up before its attempt is settled without it."""
STRETCH = 0.003
"""Seconds of first steps after which the event loop serves its other tasks."""
RESTING = 500
"""Turns that may rest beside those that have a slot; with more, nothing is claimed."""


async def _is_overdue() -> Outcome:
    """Refuse to begin a workflow whose time was out when it was claimed."""
    return overdue()


class RunningAttempt(Running):
    """An attempt under way. Nearly all of its fields are for bodies that have to wait."""

    task: asyncio.Task[None] | None = None
    verdict: Outcome | None = None
    """Outcome of an attempt that is ended from outside; None when its claim is lost."""
    settled: bool = False
    begun_at: float | None = None
    timers: tuple[asyncio.TimerHandle, ...] = ()


class Attempts:
    """The attempts of a worker: begins them into free slots, times them, and hands their outcomes to the ledger."""

    def __init__(
        self, bodies: Bodies, ledger: Ledger, turns: Turns, notes: Notes, *,
        telemetry: Telemetry, slots: int, changed: asyncio.Event,
    ) -> None:  # fmt: skip
        """`changed` is set when there may be room for more claims."""
        self._bodies = bodies
        self._ledger = ledger
        self._turns = turns
        self._notes = notes
        self._slots = slots
        self._telemetry = telemetry
        self._timed = False
        """True if a listener wants to know when a body begins."""
        self._changed = changed
        self._first: FirstSteps[RunningAttempt, Outcome] = FirstSteps(self, stretch=STRETCH)
        self._oldest: Claim | None = None
        self._under_way: dict[Claim, RunningAttempt] = {}
        self.resting: set[Claim] = set()
        """Turns that only wait for their children, and have lent their slot."""
        self._idle = asyncio.Event()
        self.pace = Pace()

    @property
    def stepping(self) -> bool:
        """True while a task takes the line through its first steps."""
        return self._first.busy

    @property
    def taken(self) -> int:
        """Slots that are not free: attempts, claims in line for one, and threads that go on after theirs."""
        return len(self._under_way) - min(len(self.resting), RESTING) + len(self._first.line) + self._bodies.stuck

    @property
    def unused(self) -> int:
        """Slots that are free now, without regard to the line."""
        return self._room - len(self._under_way) + len(self.resting)

    def begin(self, claims: Sequence[Claim]) -> None:
        """Put claims in line for slots."""
        self._ledger.expect(claims)
        self._timed = self._telemetry.timed
        if turns := self._bodies.mark_turns(claims):
            self._turns.begin_soon(turns)
        self._idle.clear()
        self._first.add([RunningAttempt(claim, inside=self._notes) for claim in claims])

    def give_back(self, claim: Claim) -> None:
        self._ledger.expect([claim])
        self._put(claim, Released())

    def give_back_stale(self) -> None:
        """Give back the line if its first claim has waited since the last call: another worker may have a slot sooner.
        Called now and then."""
        self._first.go_on()  # a thread that was given up may have ended, which nothing announces: its slot is free
        line = self._first.line
        if line and line[0].claim is self._oldest:
            log.info("%d claims found no slot here in time: released", len(line))
            self.leave_line(Released())
        self._oldest = line[0].claim if line else None

    def end(self, attempt: RunningAttempt, verdict: Outcome | None) -> None:
        """End an attempt from outside; without a verdict its claim is lost.

        Only once: a second cancellation would cut short the cleanup after the first.
        """
        if attempt.settled or attempt.task is None or attempt.cancelled:
            return
        attempt.verdict = verdict
        attempt.cancelled = True
        attempt.task.cancel()
        self._later(CLEANUP, attempt, lambda: self._settle_without_body(attempt))

    def end_all(self, verdict: Outcome | None) -> None:
        """End all attempts from outside, and empty the line."""
        self.leave_line(verdict)
        for attempt in list(self._under_way.values()):
            self.end(attempt, verdict)

    def compare(self, before: Container[Claim], held: Mapping[Fence, Claim]) -> None:
        """End attempts of the claims `before` that the table no longer gives to this worker, or whose deadline has
        passed."""
        line = self._first.line
        lost = {each.claim for each in line if each.claim in before and each.claim.fence not in held}
        if lost:
            kept = [each for each in line if each.claim not in lost]
            line.clear()
            line.extend(kept)
            self._ledger.forget(lost)
        for claim, attempt in list(self._under_way.items()):
            there = held.get(claim.fence)
            if claim not in before:
                continue
            if there is None:
                self.end(attempt, None)
            elif there.is_over:
                claim.deadline = there.deadline  # the database's clock says that no time is left for another attempt
                self.end(attempt, overdue())

    def snapshot(self) -> set[Claim]:
        """Claims whose body has not ended."""
        return {*self._under_way, *(each.claim for each in self._first.line)}

    async def idle(self) -> None:
        """Wait until there is neither a body nor a claim in line."""
        while self._under_way or self._first.line or self.stepping:
            self._idle.clear()
            await self._idle.wait()

    def abandon(self) -> None:
        """Stop waiting for bodies: settle all attempts without them."""
        self.leave_line(Released())
        for attempt in list(self._under_way.values()):
            self._settle_without_body(attempt)
        self._under_way.clear()
        self._idle.set()

    def leave_line(self, verdict: Outcome | None) -> None:
        """Empty the line: conclude its claims with this verdict, or forget them if there is none."""
        claims = [attempt.claim for attempt in self._first.line]
        self._first.line.clear()
        if verdict is None:
            self._ledger.forget(claims)
            return
        for claim in claims:
            self._put(claim, verdict)

    def _put(self, claim: Claim, outcome: Outcome) -> None:
        """Hand an outcome to the turn that waits for it here, or else to the ledger."""
        if claim.node is None or not self._turns.takes(claim, outcome):
            self._ledger.put(claim, outcome)

    # -- first steps

    @property
    def _room(self) -> int:
        return self._slots - self._bodies.stuck

    def has_room(self) -> bool:
        return self.unused > 0

    def paused(self, last: RunningAttempt | None, seconds: float) -> None:
        self.pace.paused(None if last is None else last.claim.name, seconds)
        self._changed.set()
        self._idle_if_so()

    def _idle_if_so(self) -> None:
        if not self._under_way and not self._first.line and not self.stepping:
            self._idle.set()

    def coroutine_of(self, attempt: RunningAttempt) -> Coroutine[Any, Any, Outcome]:
        claim, begun = attempt.claim, nobody
        if self._timed:
            claim.begun_at = time.monotonic()
        body = self._bodies.by_name[claim.name]
        if claim.turn:
            if claim.deadline is not None:
                if claim.is_over:
                    return _is_overdue()
                self._begun(attempt)
            return self._turns.run_turn(attempt, cast(WorkflowBody, body))
        if claim.timeout is not None or claim.deadline is not None or body.heartbeat is not None:
            begun = lambda: self._begun(attempt)  # noqa: E731
        steps = run_task(attempt, body, self._bodies.executors[body.executor], begun=begun)
        return steps if self._bodies.around is None else self._bodies.around(attempt, steps)

    def waits(self, attempt: RunningAttempt, task: asyncio.Task[None]) -> None:
        attempt.task = task
        self.pace.waits(attempt.claim.name)
        self._under_way[attempt.claim] = attempt
        if attempt.begun_at is not None:
            self._time(attempt)

    def ended(self, attempt: RunningAttempt, result: Outcome | None, error: BaseException | None) -> None:
        # A cancellation here did not come from us: the body cancelled the task it runs in. It counts as a failure,
        # since a released run would do so again for ever. Any other error is a mistake of ours, and must not leave the
        # run running.
        """Take the end of a body: settle its attempt."""
        outcome = result if result is not None else failed(contained(error or RuntimeError("it had no outcome")))
        if attempt.task is not None:
            self._end(attempt, outcome)
            return
        self.pace.ended += 1
        if attempt.claim.node is None:
            self._ledger.put(attempt.claim, outcome)
        else:
            self._put(attempt.claim, outcome)
        if attempt.noted is not None:
            self._notes.ended()

    # -- attempts that wait

    def _end(self, attempt: RunningAttempt, outcome: Outcome) -> None:
        for timer in attempt.timers:
            timer.cancel()
        self._left(attempt)
        if attempt.cancelled and not (attempt.verdict and isinstance(outcome, Completed | Waiting)):
            self._conclude(attempt, attempt.verdict)
        else:
            self._conclude(attempt, outcome)
        if attempt.tx is not None:
            attempt.tx.close()  # no effect if the ledger is already committing it with the outcome

    def _begun(self, attempt: RunningAttempt) -> None:
        """Start the attempt's clock: its body has room now."""
        attempt.begun_at = asyncio.get_running_loop().time()
        if attempt.task is not None:
            self._time(attempt)

    def _time(self, attempt: RunningAttempt) -> None:
        claim = attempt.claim
        # A turn ignores a timeout: the run was started by name, as if it were a task.
        if (timeout := claim.timeout) is not None and attempt.begun_at is not None and not claim.turn:
            seconds = timeout.total_seconds()
            left = attempt.begun_at + seconds - asyncio.get_running_loop().time()
            self._later(left, attempt, lambda: self.end(attempt, timed_out(seconds)))
        if claim.deadline is not None:
            over = claim.claimed_at + claim.deadline.total_seconds() - time.monotonic()
            self._later(over, attempt, lambda: self.end(attempt, overdue()))
        if (heartbeat := self._bodies.by_name[claim.name].heartbeat) is not None:
            attempt.alive_at = attempt.alive_at or time.monotonic()
            self._listen(attempt, heartbeat.total_seconds())

    def _listen(self, attempt: RunningAttempt, silence: float) -> None:
        """End an attempt when its body has given no sign of life for `silence` seconds."""
        left = attempt.alive_at + silence - time.monotonic()
        if left > 0:
            self._later(left, attempt, lambda: self._listen(attempt, silence))
        else:
            self.end(attempt, silent(silence))

    def rest(self, claim: Claim, rests: bool) -> None:
        """Lend the slot of a turn, or take it back. A turn may rest in its first step, before it is under way."""
        if not rests:
            self.resting.discard(claim)
        elif claim in self._ledger.known:
            self.resting.add(claim)
            self._first.go_on()

    def _left(self, attempt: RunningAttempt) -> None:
        attempt.task, attempt.timers = None, ()  # both refer to the attempt: break the cycle, for the collector's sake
        self.resting.discard(attempt.claim)
        if self._under_way.pop(attempt.claim, None) is not None:
            self._first.go_on()
            self._changed.set()
            self._idle_if_so()

    def _conclude(self, attempt: RunningAttempt, outcome: Outcome | None) -> None:
        if attempt.settled:
            return
        attempt.settled = True
        if outcome is None:
            self._ledger.forget([attempt.claim])
        else:
            self._put(attempt.claim, outcome)
        if attempt.noted is not None:
            self._notes.ended()

    def _settle_without_body(self, attempt: RunningAttempt) -> None:
        if not attempt.settled:
            log.warning(
                "the body of %s %s does not end: its attempt is settled without it",
                attempt.claim.name,
                attempt.claim.id,
            )
            self._conclude(attempt, attempt.verdict)

    def _later(self, seconds: float, attempt: RunningAttempt, what: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        ahead = [timer for timer in attempt.timers if timer.when() > loop.time()]
        attempt.timers = (*ahead, loop.call_later(seconds, what))
