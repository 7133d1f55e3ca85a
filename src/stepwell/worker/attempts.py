"""The attempts under way: each from its claim until the tables have its outcome.

What is claimed waits in line until there is a slot; where bodies are quick it never waits long, and what does
is given back. A body that ends without waiting for anything costs neither a task nor a turn of the event
loop: one task takes one after the other through its first step. The first that has to wait keeps the task to
itself, and another task goes on with the line.

An attempt ends by its body, or from outside by a verdict: its time is out, the worker stops, the lease is lost.
A body that then ends in time has the last word; one that does not is settled without, and keeps its slot but
not its claim. An attempt whose claim is lost ends without a word: there is nothing to settle.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Coroutine, Mapping, Sequence
from contextvars import copy_context
from typing import Any

from stepwell.context import Inside, Running
from stepwell.executors.base import contained, nobody
from stepwell.model.outcome import Completed, Outcome, Released, Waiting
from stepwell.model.run import Claim, Fence
from stepwell.telemetry import Telemetry, log
from stepwell.worker.bodies import Bodies
from stepwell.worker.pace import Pace
from stepwell.worker.run_task import failed, overdue, run_task, silent, timed_out
from stepwell.worker.steps import Rest

CLEANUP = 1.0
"""Seconds a cancelled body has to clean up before its attempt is settled without it."""
RESTING = 500
"""Turns that rest beside those that have a slot, before no more is claimed."""
TURN = "turn"
"""The executor of workflows: their turns."""


async def no_turns(attempt: Running, workflow: Any) -> Outcome:
    raise AssertionError(f"nobody here takes turns of {attempt.claim.name}")


async def _is_overdue() -> Outcome:
    """Of a workflow whose time was out when it was claimed: its code does not begin any more."""
    return overdue()


def nobody_waits(turns: Sequence[Claim]) -> None:
    """For turns that begin soon."""


class Attempt(Running):
    """One attempt. Nearly all of it is for those whose body has to wait."""

    task: asyncio.Task[None] | None = None
    verdict: Outcome | None = None
    """How it ends if we end it; none when its claim is lost."""
    settled: bool = False
    begun_at: float | None = None
    timers: tuple[asyncio.TimerHandle, ...] = ()


class Attempts:
    def __init__(
        self,
        bodies: Bodies,
        *,
        slots: int,
        settle: Callable[[Claim, Outcome], None],
        ended: Callable[[], None],
        apart: Callable[[], None],
        inside: Inside | None = None,
        noted: Callable[[], None] = nobody,
        turn: Callable[[Running, Any], Coroutine[Any, Any, Outcome]] = no_turns,
        turns: Callable[[Sequence[Claim]], None] = nobody_waits,
        telemetry: Telemetry | None = None,
    ) -> None:
        """`settle` takes an outcome to the tables; `ended` is told when there may be room for more, `apart` when
        there may be room for one that must be alone, and `noted` when one has ended that said something `inside`."""
        self._bodies = bodies
        self._slots = slots
        self._settle = settle
        self._told_ended = ended
        self._told_apart = apart
        self._told_noted = noted
        self._inside = inside
        self._turn = turn
        self._told_turns = turns
        self._telemetry = telemetry or Telemetry()
        self._line: deque[Claim] = deque()
        self._oldest: Claim | None = None
        self._under_way: dict[Claim, Attempt] = {}
        self.resting: set[Claim] = set()
        """Turns that only wait for runs of their own, and need no slot meanwhile."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.stepping = False
        """Whether a task is taking the line through its first steps."""
        self._idle = asyncio.Event()
        self.known: set[Claim] = set()
        """Every claim that was heard of and is not settled yet."""
        self.alone: set[Claim] = set()
        """Those of them that must be alone. Until they are settled: a death before that takes the outcome along."""
        self.pace = Pace()

    @property
    def taken(self) -> int:
        """Slots that are not free: attempts, claims in line for one, and threads that go on after theirs."""
        return len(self._under_way) - min(len(self.resting), RESTING) + len(self._line) + self._bodies.stuck

    @property
    def unused(self) -> int:
        """Slots that are free now, whoever is in line for them."""
        return self._room - len(self._under_way) + len(self.resting)

    def begin(self, claims: Sequence[Claim]) -> None:
        self.known.update(claims)
        self.alone.update([claim for claim in claims if claim.alone])
        self._line.extend(claims)
        if self._bodies.turns and (turns := [claim for claim in claims if claim.name in self._bodies.turns]):
            self._told_turns(turns)
        self._idle.clear()
        self._go_on()

    def give_back(self, claim: Claim) -> None:
        self.known.add(claim)
        self._settle(claim, Released())

    def give_back_stale(self) -> None:
        """Called now and then: what waited in line ever since the last call may find a slot elsewhere sooner."""
        self._go_on()  # a thread that was given up ends unheard, and leaves a slot
        if self._line and self._line[0] is self._oldest:
            log.info("%d claims found no slot here in time: released", len(self._line))
            self.leave_line(Released())
        self._oldest = next(iter(self._line), None)

    def forget(self, claims: Collection[Claim]) -> None:
        """The tables have their outcomes, or have refused them."""
        self.known.difference_update(claims)
        if self.alone:
            self.alone.difference_update(claims)
            if not self.alone:
                self._told_apart()

    def end(self, attempt: Attempt, verdict: Outcome | None) -> None:
        """End an attempt from outside; with no verdict its claim is lost.

        Only once: a second cancellation would cut short the cleanup after the first.
        """
        if attempt.settled or attempt.task is None or attempt.cancelled:
            return
        attempt.verdict = verdict
        attempt.cancelled = True
        attempt.task.cancel()
        self._later(CLEANUP, attempt, lambda: self._settle_without_body(attempt))

    def end_all(self, verdict: Outcome | None) -> None:
        self.leave_line(verdict)
        for attempt in list(self._under_way.values()):
            self.end(attempt, verdict)

    def compare(self, before: Container[Claim], held: Mapping[Fence, Claim]) -> None:
        """End those, of all that were here before, whose claim the table does not give to us, or whose time is out."""
        lost = {claim for claim in self._line if claim in before and claim.fence not in held}
        if lost:
            self._line = deque(claim for claim in self._line if claim not in lost)
            self.forget(lost)
            self._told_ended()
        for claim, attempt in list(self._under_way.items()):
            there = held.get(claim.fence)
            if claim not in before:
                continue
            if there is None:
                self.end(attempt, None)
            elif there.is_over:
                claim.deadline = there.deadline  # by the database's clock nothing is left for another attempt
                self.end(attempt, overdue())

    def snapshot(self) -> set[Claim]:
        """All whose body has not ended."""
        return {*self._under_way, *self._line}

    async def idle(self) -> None:
        while self._under_way or self._line or self.stepping:
            self._idle.clear()
            await self._idle.wait()

    def abandon(self) -> None:
        """Wait for no body any longer."""
        self.leave_line(Released())
        for attempt in list(self._under_way.values()):
            self._settle_without_body(attempt)
        self._under_way.clear()
        self._idle.set()

    def leave_line(self, verdict: Outcome | None) -> None:
        claims, self._line = self._line, deque()
        if verdict is None:
            self.forget(claims)
            return
        for claim in claims:
            self._settle(claim, verdict)

    # -- first steps

    @property
    def _room(self) -> int:
        return self._slots - self._bodies.stuck

    def _go_on(self) -> None:
        if self._line and not self.stepping and self.unused > 0:
            self.stepping = True
            loop = asyncio.get_running_loop()
            if loop.get_task_factory() is None:
                self._begin_step()
            else:  # an eager one would take its first step in ours, the next in that, and so on
                loop.call_soon(self._begin_step)

    def _begin_step(self) -> None:
        task = asyncio.create_task(self._step())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _step(self) -> None:
        """Take the line through its first steps. The first that has to wait has this task to itself from then on."""
        me = asyncio.current_task()
        assert me is not None
        waiting: Attempt | None = None
        try:
            waiting, rest = await self._first_steps(me)
        finally:
            self.stepping = False  # also if a body of before, that kept this task, has it cancelled
            self._go_on()
            self._told_ended()
            self._idle_if_so()
        if waiting is not None and rest is not None:
            await self._to_the_end(waiting, rest)

    async def _first_steps(self, me: asyncio.Task[Any]) -> tuple[Attempt | None, Rest[Outcome] | None]:
        """Until one has to wait: that one, and the rest of it."""
        clock, room = asyncio.get_running_loop().time, self._room
        self.pace.begins(clock())
        timed = self._telemetry.timed
        while self._line and len(self._under_way) - len(self.resting) < room:
            attempt, context = Attempt(self._line.popleft()), copy_context()
            attempt.inside = self._inside
            if timed:
                attempt.claim.begun_at = time.monotonic()
            try:
                steps = self._run(attempt)
                awaited = context.run(steps.send, None)
            except StopIteration as stop:
                self._end_at_once(attempt, stop.value)
            except BaseException as error:
                self._end_at_once(attempt, failed(contained(error)))
            else:
                self._wait(attempt, me)
                return attempt, Rest(steps, context, awaited)
            if me.cancelling() or getattr(me, "_must_cancel", False):
                break  # by its own body, even if it changed its mind: who came next would be cancelled for it
            over = self.pace.is_over(now := clock())
            if over or not self._line:
                self.pace.pauses(now, attempt.claim.name)
            if over:
                if self.pace.tells(now):
                    self._told_ended()
                await asyncio.sleep(0)
                self.pace.begins(clock())
        return None, None

    def _idle_if_so(self) -> None:
        if not self._under_way and not self._line and not self.stepping:
            self._idle.set()

    def _run(self, attempt: Attempt) -> Coroutine[Any, Any, Outcome]:
        body = self._bodies.by_name[attempt.claim.name]
        if body.executor == TURN:
            attempt.claim.turn = True
            attempt.claim.name = body.name  # without the version that it may be pinned to
            if attempt.claim.deadline is not None:
                if attempt.claim.is_over:
                    return _is_overdue()
                self._begun(attempt)
            return self._turn(attempt, body)
        claim, begun = attempt.claim, nobody
        if claim.timeout is not None or claim.deadline is not None or body.heartbeat is not None:
            begun = lambda: self._begun(attempt)  # noqa: E731
        steps = run_task(attempt, body, self._bodies.executors[body.executor], begun=begun)
        return steps if self._bodies.around is None else self._bodies.around(attempt, steps)

    def _end_at_once(self, attempt: Attempt, outcome: Outcome) -> None:
        self.pace.ended += 1
        self._settle(attempt.claim, outcome)
        if attempt.noted is not None:
            self._told_noted()

    # -- those that wait

    def _wait(self, attempt: Attempt, task: asyncio.Task[None]) -> None:
        attempt.task = task
        self.pace.waits(attempt.claim.name)
        self._under_way[attempt.claim] = attempt
        if attempt.begun_at is not None:
            self._time(attempt)

    async def _to_the_end(self, attempt: Attempt, rest: Rest[Outcome]) -> None:
        outcome: Outcome
        try:
            outcome = await rest
        except BaseException as error:
            # Not our cancellation: the body cancelled the task it runs in, and would do so for ever if it were
            # released. Anything else is a mistake of ours, and must not leave the run running.
            outcome = failed(contained(error))
        for timer in attempt.timers:
            timer.cancel()
        self._left(attempt)
        if attempt.cancelled and not (attempt.verdict and isinstance(outcome, Completed | Waiting)):
            self._conclude(attempt, attempt.verdict)
        else:
            self._conclude(attempt, outcome)
        if attempt.tx is not None:
            attempt.tx.close()  # unless it is on its way to the tables with the outcome

    def _begun(self, attempt: Attempt) -> None:
        """Its body begins now: what it waited for room before does not count."""
        attempt.begun_at = asyncio.get_running_loop().time()
        if attempt.task is not None:
            self._time(attempt)

    def _time(self, attempt: Attempt) -> None:
        claim = attempt.claim
        # That of a turn is for a task: who started it by its name did not know.
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

    def _listen(self, attempt: Attempt, silence: float) -> None:
        """End it when its body has given no sign of life for so long."""
        left = attempt.alive_at + silence - time.monotonic()
        if left > 0:
            self._later(left, attempt, lambda: self._listen(attempt, silence))
        else:
            self.end(attempt, silent(silence))

    def rest(self, claim: Claim, rests: bool) -> None:
        """Also in its first step, before it is one of those under way."""
        if not rests:
            self.resting.discard(claim)
        elif claim in self.known:
            self.resting.add(claim)
            self._go_on()

    def _left(self, attempt: Attempt) -> None:
        attempt.task, attempt.timers = None, ()  # which hold it: together they would wait for the collector
        self.resting.discard(attempt.claim)
        if self._under_way.pop(attempt.claim, None) is not None:
            self._go_on()
            self._told_ended()
            self._idle_if_so()

    def _conclude(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if attempt.settled:
            return
        attempt.settled = True
        if outcome is None:
            self.forget([attempt.claim])
        else:
            self._settle(attempt.claim, outcome)
        if attempt.noted is not None:
            self._told_noted()

    def _settle_without_body(self, attempt: Attempt) -> None:
        if not attempt.settled:
            log.warning("%s %s does not end: it is settled without its body", attempt.claim.name, attempt.claim.id)
            self._conclude(attempt, attempt.verdict)

    def _later(self, seconds: float, attempt: Attempt, what: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        ahead = [timer for timer in attempt.timers if timer.when() > loop.time()]
        attempt.timers = (*ahead, loop.call_later(seconds, what))
