"""The steps of turns: bodies that run here, inline, and whose end is told to whoever asked for them.

One task takes one after the other through its first part, as attempts are: a step that waits for nothing costs neither
a task nor a turn of the event loop. The first that has to wait keeps the task to itself, and another goes on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec import Struct

from stepwell.context import Running, running
from stepwell.executors.base import Executor, nobody
from stepwell.model.commands import StepCall
from stepwell.model.events import Event, EventType
from stepwell.model.run import Error
from stepwell.own_tx import OwnTx
from stepwell.worker.run_task import failed, timed_out
from stepwell.worker.steps import Rest

MOST, STRETCH = 40, 0.012
"""First parts, or seconds of them, after which everyone else on the event loop has a turn. So many are then written
together, while others go on."""

Done = tuple[bytes, OwnTx | None]
"""The result of a step, and the transaction that is committed with the record of it, if it has one."""


@dataclass(eq=False)
class StepFailed(Exception):
    """A step that failed for the last time."""

    error: Error
    attempt: int


class UnderWay(Struct, eq=False):
    """A step that was begun, or will be as soon as there is a moment."""

    call: StepCall
    attempt: Running
    """Of its workflow."""
    told: Callable[[UnderWay], None]
    """Is told of its end, unless that was given up."""
    task: asyncio.Task[None] | None = None
    given_up: bool = False
    done: Done | None = None
    error: BaseException | None = None

    def give_up(self) -> None:
        """Nobody waits for it any more. What it wrote in a transaction of its own is taken back."""
        self.given_up = True
        if self.task is not None:
            self.task.cancel()
        self._close()

    @property
    def tx(self) -> OwnTx | None:
        """The transaction with whose commit its end is recorded."""
        return None if self.done is None else self.done[1]

    def event(self, at: datetime) -> Event:
        """Its end, as the history has it."""
        call, error = self.call, self.error
        if self.done is not None:
            return Event(
                0, EventType.STEP_COMPLETED, at, call.number, call.name, value=self.done[0], rollback=call.rollback
            )
        if error is None or isinstance(error, asyncio.CancelledError):
            error = asyncio.CancelledError("the step cancelled itself")
        told, attempt = (error.error, error.attempt) if isinstance(error, StepFailed) else (failed(error).error, 1)
        return Event(
            0, EventType.STEP_FAILED, at, call.number, call.name, error=told, attempt=attempt, rollback=call.rollback
        )

    def end(self, done: Done | None, error: BaseException | None) -> None:
        self.task, self.done, self.error = None, done, error
        if self.given_up:
            self._close()
        else:
            self.told(self)

    def _close(self) -> None:
        if self.tx is not None:
            self.tx.close()


class Steps:
    def __init__(self, executors: Mapping[str, Executor]) -> None:
        self._executors = executors
        self._line: deque[UnderWay] = deque()
        self._stepping = False
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, step: UnderWay) -> None:
        self._line.append(step)
        if not self._stepping:
            self._go_on()

    def _go_on(self) -> None:
        if self._line and not self._stepping:
            self._stepping = True
            loop = asyncio.get_running_loop()
            if loop.get_task_factory() is None:
                self._begin_stepping()
            else:  # an eager one would take its first step in ours, the next in that, and so on
                loop.call_soon(self._begin_stepping)

    def _begin_stepping(self) -> None:
        task = asyncio.create_task(self._step())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _step(self) -> None:
        """Take the line through its first parts. The first that has to wait has this task to itself from then on."""
        me = asyncio.current_task()
        assert me is not None
        waiting: tuple[UnderWay, Rest[Done]] | None = None
        try:
            waiting = await self._first_parts(me)
        finally:
            self._stepping = False
            self._go_on()
        if waiting is not None:
            step, rest = waiting
            try:
                done = await rest
            except BaseException as error:
                step.end(None, error)
            else:
                step.end(done, None)

    async def _first_parts(self, me: asyncio.Task[Any]) -> tuple[UnderWay, Rest[Done]] | None:
        """Until one has to wait: that one, and the rest of it."""
        clock = asyncio.get_running_loop().time
        count, stretch = 0, clock() + STRETCH
        while self._line:
            step = self._line.popleft()
            if step.given_up:
                continue
            context = copy_context()
            try:
                parts = run_step(step.call, step.attempt, self._executors)
                awaited = context.run(parts.send, None)
            except StopIteration as stop:
                step.end(stop.value, None)
            except BaseException as error:
                step.end(None, error)
            else:
                step.task = me
                return step, Rest(parts, context, awaited)
            if me.cancelling() or getattr(me, "_must_cancel", False):
                break  # by its own body, even if it changed its mind: who came next would be cancelled for it
            count += 1
            if count >= MOST or clock() > stretch:
                # Twice: in the first turn those who are written together are gathered, in the second they leave.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                count, stretch = 0, clock() + STRETCH
        return None


class OfTurn:
    """The steps of one turn: those under way, and those that have ended and of which its code was not told."""

    __slots__ = ("_attempt", "_proceed", "_steps", "_stir", "done", "gone", "under_way")

    def __init__(
        self, steps: Steps, attempt: Running, *, stir: Callable[[], None], proceed: Callable[[], None]
    ) -> None:
        """When one has ended, `proceed` is called if it was the last, else `stir`: others may end at this moment."""
        self._steps = steps
        self._attempt = attempt
        self._stir = stir
        self._proceed = proceed
        self.under_way: dict[int, UnderWay] = {}
        self.gone: list[UnderWay] = []
        self.done: deque[UnderWay] = deque()

    def begin(self, calls: Sequence[StepCall]) -> None:
        for call in calls:
            if not call.dropped:
                step = self.under_way[call.number] = UnderWay(call, self._attempt, self._ended)
                self._steps.begin(step)

    def next_done(self) -> UnderWay | None:
        """The next that has ended, and that someone waits for."""
        while self.done and self.done[0].call.dropped:
            self.gone.append(self.done.popleft())
        return self.done[0] if self.done else None

    def give_up(self, dropped: Sequence[int]) -> None:
        """Those that nobody waits for any more. Not while code is told: this is the worker's own affair."""
        for number in dropped:
            if (step := self.under_way.pop(number, None)) is not None:
                self.gone.append(step)
        gone, self.gone = self.gone, []
        for step in gone:
            step.give_up()

    def close(self) -> None:
        self._stir = self._proceed = nobody
        for step in (*self.under_way.values(), *self.done, *self.gone):
            step.give_up()

    def _ended(self, step: UnderWay) -> None:
        self.under_way.pop(step.call.number, None)
        self.done.append(step)
        if self.under_way:
            self._stir()
        else:
            self._proceed()


async def run_step(call: StepCall, attempt: Running, executors: Mapping[str, Executor]) -> Done:
    """One step with all its attempts. StepFailed when it has failed for the last time."""
    step, failures = call.step, 0
    while True:
        here = Running(attempt.claim, inside=attempt.inside, turn=attempt)
        running.set(here)
        limit: asyncio.Timeout | None = None
        try:
            executor = executors[step.executor]
            if step.timeout is None:
                result = await executor.run(step, call.input)
            else:
                async with asyncio.timeout(None) as limit:
                    result = await executor.run(step, call.input, begun=_from_now(limit, step.timeout))
            if here.tx is not None:
                await here.tx.check()
            return result, here.tx
        except BaseException as error:
            if here.tx is not None:
                here.tx.close()
            if not isinstance(error, Exception):
                raise
            failures += 1
            told = (timed_out(step.timeout) if limit is not None and limit.expired() else failed(error)).error
            delay = step.retry.delay_after(told, failures=failures, noise=0.5)
            if delay is None:
                raise StepFailed(told, failures) from error
        await asyncio.sleep(delay.total_seconds())


def _from_now(limit: asyncio.Timeout, seconds: float) -> Callable[[], None]:
    """What a step waited before there was room for its body does not count."""
    clock = asyncio.get_running_loop().time

    def begun() -> None:
        with suppress(RuntimeError):  # it was given up before there was room
            limit.reschedule(clock() + seconds)

    return begun
