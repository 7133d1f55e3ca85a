"""One turn of a workflow: from its claim until it waits, has ended, or has lost its claim.

    news ──► deliver, one event after another ──► write ──► run the steps it asked for ──► their ends are news …

Code runs ahead of what is written, and nothing else does: a step begins, and a run that was started is there, only
after the write that holds the reason for it. When that write is refused, what the code did meanwhile is forgotten,
and whoever has the turn tells it the history again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from stepwell.context import Running, running
from stepwell.executors.base import Executor
from stepwell.model.commands import Command, StepCall
from stepwell.model.events import Event, EventType
from stepwell.model.ids import RunId
from stepwell.model.outcome import Completed, Outcome
from stepwell.model.run import Claim, Error
from stepwell.model.start import Start
from stepwell.model.turn import Advance, Advanced, News
from stepwell.own_tx import OwnTx
from stepwell.replay.replay import Replay
from stepwell.telemetry import log
from stepwell.worker.run_task import failed

LOOK = 1.0
"""Seconds between looks for arrivals, while steps run and no word of any comes."""
LONG = 0.5
"""Seconds of the worker's time that the code may take before someone is told."""
HOLD = 1.0
"""Seconds for which a turn stays for runs of its own that run here. Longer ones tell it by an arrival, as all do."""


class Desk(Protocol):
    """What a turn asks of the worker it runs on."""

    executors: Mapping[str, Executor]

    async def news(self, claim: Claim) -> News: ...

    async def write(self, advance: Advance) -> tuple[Advanced, Sequence[RunId]]:
        """Where it left the run, and what it started that runs here. ClaimLost if it was refused."""
        ...

    def can_run(self, starts: Sequence[Start], *, slots: int) -> list[Start]:
        """Those that this worker could run at once, with so many slots beside those that are free."""
        ...

    def rest(self, attempt: Running, rests: bool) -> None:
        """Whether it needs its slot: one that only waits for runs of its own does not."""
        ...

    def settle(self, claim: Claim, outcome: Outcome) -> None: ...


@dataclass(slots=True, eq=False)
class Turn:
    """A turn under way."""

    desk: Desk
    attempt: Running
    replay: Replay
    news: News
    history_from: int
    version: str
    issued: Sequence[Command] = ()
    """By code that has begun anew, and not recorded yet."""
    _seen: int = 0
    _events: list[Event] = field(default_factory=list)
    _starts: list[Any] = field(default_factory=list)
    _cancels: list[UUID] = field(default_factory=list)
    _published: bytes | None = None
    _steps: dict[asyncio.Task[tuple[bytes, OwnTx | None]], StepCall] = field(default_factory=dict)
    _children: set[RunId] = field(default_factory=set)
    """Runs that it started, and that run here."""
    _ended: list[tuple[Claim, Completed]] = field(default_factory=list)
    """Those of them that have ended, and of which the code does not know yet."""
    _settling: list[tuple[Claim, Outcome]] = field(default_factory=list)
    _held_since: float = 0.0
    _calls: list[StepCall] = field(default_factory=list)
    """Steps that were asked for, and begin after the next write."""
    _pausing: bool = False
    _tx: OwnTx | None = None
    """The transaction of a step, with whose commit everything else is written. One at a time."""
    _stirred: asyncio.Future[None] | None = None
    heard: bool = False
    """Something arrived for this run."""
    written: tuple[int, int] = (0, 0)
    """How many events its history has, and how many arrivals are in it: so far."""

    @property
    def claim(self) -> Claim:
        return self.attempt.claim

    async def run(self) -> Advanced:
        """To its end: where it left the run."""
        self._seen = self.news.arrived - len(self.news.arrivals)
        self.written = self.news.recorded, self._seen
        if self.replay.idx == 0:
            by = None if self.claim.deadline is None else self.news.now + self.claim.deadline
            self._deliver(Event(0, EventType.WORKFLOW_STARTED, self.news.now, when=by, version=self.version))
        self._record(self.issued)
        self._arrived(self.news)
        try:
            while True:
                self._fire()
                if self.replay.ended is not None:
                    return await self._end()
                self._calls += self.replay.take_steps()
                here = self._to_run_here()
                if not self._works and not here and not self._holds:
                    return await self._park()
                if self._events:
                    await self._go_on(here)
                self._begin_steps()
                if self._steps or self._children:
                    await self._wait()
                    await self._collect()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        """Of whatever was not written: steps are ended, and runs that ended here settled without this turn."""
        self.desk.rest(self.attempt, False)
        for task in self._steps:
            task.add_done_callback(_close)
            task.cancel()
        if self._tx is not None:
            self._tx.close()
        for claim, outcome in (*self._settling, *self._ended):
            self.desk.settle(claim, outcome)

    @property
    def _works(self) -> bool:
        """Whether steps are run, or will be. Of a run that is to be paused none begins: they are asked for again."""
        return bool(self._steps or (self._calls and not self._pausing))

    @property
    def _holds(self) -> bool:
        """Whether to stay for runs of its own that are under way here: their end is then the next turn."""
        return bool(self._children) and not self._pausing and time.monotonic() < self._held_since + HOLD

    def _to_run_here(self) -> list[Start]:
        if self._pausing or not self._starts:
            return []
        wanted = [start for start in self._starts if start.id not in self._cancels] if self._cancels else self._starts
        return self.desk.can_run(wanted, slots=0 if self._works else 1)

    async def _go_on(self, here: list[Start]) -> None:
        """Write what there is, and stay."""
        ids = {start.id for start in here}
        self._starts = [start for start in self._starts if start.id not in ids]
        # Before the write: a run that it starts may have ended when that returns.
        self._children |= ids
        advance = self._advance(to="stay", here=here)
        advanced, begun = await self.desk.write(advance)
        self.written = advance.recorded, advance.seen
        self._children -= ids.difference(begun)
        self._held_since = time.monotonic()
        self.heard = self.heard or advanced.arrived > self._seen
        self._pausing = advanced.pausing

    def takes(self, claim: Claim, outcome: Outcome) -> bool:
        """Whether the end of a run of its own is written with what follows from it here."""
        if claim.id not in self._children or self.replay.ended is not None:
            return False
        self._children.discard(claim.id)
        self._stir()
        if type(outcome) is not Completed:
            return False
        self._ended.append((claim, outcome))
        return True

    def hear(self) -> None:
        """Something arrived for this run."""
        self._look()

    # -- events in

    def _deliver(self, event: Event) -> None:
        event.idx = self.replay.idx + 1
        event.at = max(event.at, self.replay.now)
        self._events.append(event)
        began = time.monotonic()
        commands = self.replay.delivered(event)
        if time.monotonic() > began + LONG:
            log.warning(
                "%s %s computed for %.1f s after %s, and everyone on this worker waited: let a task or a step do it",
                self.claim.name, self.claim.id, time.monotonic() - began, event.type,
            )  # fmt: skip
        self._record(commands)

    def _record(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self._events.append(_recorded(command, self.replay.idx + 1, self.replay.now))
            self.replay.idx += 1
            if command.start is not None:
                self._starts.append(command.start)
            elif command.type in (EventType.TASK_CANCELLED, EventType.CHILD_CANCELLED) and command.run_id is not None:
                self._cancels.append(command.run_id)
            elif command.type is EventType.STATE_PUBLISHED:
                self._published = command.value

    def _arrived(self, news: News) -> None:
        if len(news.arrivals) > 1:
            with self.replay.loop.entered():
                self._deliver_all(news)
        else:
            self._deliver_all(news)

    def _deliver_all(self, news: News) -> None:
        for event in news.arrivals:
            if self.replay.ended is not None:
                return  # the rest is for the code that begins anew, if it does
            if event.idx > self._seen:
                self._seen = event.idx
                self._deliver(event)

    def _fire(self) -> None:
        """Timers, in the order of their time: what one wakes may cancel the next."""
        while self.replay.ended is None and (due := self.replay.due_timer(self._now())) is not None:
            number, signal = due
            type = EventType.TIMER_FIRED if signal is None else EventType.SIGNAL_TIMED_OUT
            self._deliver(Event(0, type, self._now(), number, signal))

    def _now(self) -> datetime:
        """By the database's clock, as far as it can be told from here."""
        return self.news.now + timedelta(seconds=time.monotonic() - self.news.read_at)

    # -- steps

    def _begin_steps(self) -> None:
        if not self._pausing:
            calls, self._calls = self._calls, []
            for call in calls:
                self._begin(call)

    def _begin(self, call: StepCall) -> None:
        if call.dropped:
            return
        task = asyncio.create_task(self._run_step(call))
        self._steps[task] = call
        task.add_done_callback(self._stir)

    async def _run_step(self, call: StepCall) -> tuple[bytes, OwnTx | None]:
        """Its result, and the transaction that is committed with the record of it, if it has one."""
        step, failures = call.step, 0
        while True:
            here = Running(self.claim)
            here.inside = self.attempt.inside
            running.set(here)
            try:
                body = self.desk.executors[step.executor].run(step, call.input)
                return await (body if step.timeout is None else asyncio.wait_for(body, step.timeout)), here.tx
            except BaseException as error:
                if here.tx is not None:
                    here.tx.close()
                if not isinstance(error, Exception):
                    raise
                failures += 1
                delay = step.retry.delay_after(failed(error).error, failures=failures, noise=0.5)
                if delay is None:
                    raise StepEnded(failed(error).error, failures) from error
            await asyncio.sleep(delay.total_seconds())

    async def _wait(self) -> None:
        """Until a step or a run of its own ends, a timer fires, or something arrives."""
        if self._ended or any(task.done() for task in self._steps):
            return
        due = self.replay.due
        left = LOOK if due is None else min(LOOK, max(0.0, (due - self._now()).total_seconds()))
        loop = asyncio.get_running_loop()
        self._stirred = loop.create_future()
        alarm = loop.call_later(left, self._look if left == LOOK else self._stir)
        self.desk.rest(self.attempt, not self._steps)
        try:
            await self._stirred
        finally:
            alarm.cancel()
            self.desk.rest(self.attempt, False)

    def _stir(self, _ended: object = None) -> None:
        if self._stirred is not None and not self._stirred.done():
            self._stirred.set_result(None)

    def _look(self) -> None:
        self.heard = True
        self._stir()

    async def _collect(self) -> None:
        ended, self._ended = self._ended, []
        for claim, outcome in ended:
            if self.replay.ended is not None:
                self.desk.settle(claim, outcome)
                continue
            self._settling.append((claim, outcome))
            self._deliver(Event(
                0, EventType.TASK_COMPLETED, self._now(), int(claim.node or 0), run_id=claim.id, value=outcome.result,
                attempt=claim.attempt,
            ))  # fmt: skip
        for task, call in list(self._steps.items()):
            if call.dropped and not task.done():
                del self._steps[task]
                task.add_done_callback(_close)
                task.cancel()
            elif task.done() and self._tx is None:
                del self._steps[task]
                if call.dropped:
                    _close(task)
                else:
                    self._deliver(self._step_ended(call, task))
        if self.heard and self.replay.ended is None:
            self.heard = False
            self._arrived(await self.desk.news(self.claim))

    def _step_ended(self, call: StepCall, task: asyncio.Task[tuple[bytes, OwnTx | None]]) -> Event:
        error = task.exception() if not task.cancelled() else asyncio.CancelledError("the step cancelled itself")
        if error is None:
            result, self._tx = task.result()
            return Event(0, EventType.STEP_COMPLETED, self._now(), call.number, call.name, value=result)
        told, attempt = (error.error, error.attempt) if isinstance(error, StepEnded) else (failed(error).error, 1)
        return Event(0, EventType.STEP_FAILED, self._now(), call.number, call.name, error=told, attempt=attempt)

    # -- events out

    def _advance(self, **more: Any) -> Advance:
        advance = Advance(
            self.claim, self.replay.idx, self._seen, self.history_from, self._events, self._starts,
            cancels=self._cancels, children=self._settling, published=self._published, tx=self._tx, **more,
        )  # fmt: skip
        self._events, self._starts, self._cancels, self._settling, self._published = [], [], [], [], None
        self._tx = None
        return advance

    async def _park(self) -> Advanced:
        due = self.replay.due
        due_in = None if due is None else max(0.0, (due - self._now()).total_seconds())
        advance = self._advance(due=due, due_in=due_in, waits_for=self.replay.waits_for())
        return (await self.desk.write(advance))[0]

    async def _end(self) -> Advanced:
        ended = self.replay.ended
        assert ended is not None
        event = Event(
            self.replay.idx + 1, ended.type, self.replay.now, value=ended.value, error=ended.error,
            signals=ended.signals, state=ended.state,
        )  # fmt: skip
        self._events.append(event)
        self.replay.idx += 1
        if ended.type is not EventType.CONTINUED_AS_NEW:
            return (await self.desk.write(self._advance(ended=ended)))[0]
        # The same run, from here on: its next turn begins with this event, and another replay.
        event.version, self.history_from = self.version, event.idx
        return (await self.desk.write(self._advance(to="again")))[0]


def _close(step: asyncio.Task[tuple[bytes, OwnTx | None]]) -> None:
    """A step that nobody waits for any more: what it wrote in a transaction of its own is taken back."""
    if not step.cancelled() and step.exception() is None and (tx := step.result()[1]) is not None:
        tx.close()


@dataclass(eq=False)
class StepEnded(Exception):
    """A step that failed for the last time."""

    error: Error
    attempt: int


def _recorded(command: Command, idx: int, at: datetime) -> Event:
    return Event(
        idx, command.type, at, command.number, command.name, command.run_id, command.takes, command.value,
        command.error, when=command.when,
    )  # fmt: skip
