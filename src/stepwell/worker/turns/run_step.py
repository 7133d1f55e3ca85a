"""The steps of turns: bodies that run inline, each begun by `FirstSteps`, and reported to the turn that called it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from msgspec import Struct

from stepwell.context.current import Running, running
from stepwell.context.transaction import OwnTx
from stepwell.executors.base import Executor, nobody
from stepwell.model.commands import StepCall
from stepwell.model.events import Event, EventType
from stepwell.model.run import Error
from stepwell.worker.first_steps import FirstSteps
from stepwell.worker.run_task import failed, timed_out

MOST, STRETCH = 40, 0.012
"""Steps, or seconds of first steps, after which the event loop serves other tasks. So many steps are then written
together, while others go on."""

Done = tuple[bytes, OwnTx | None]
"""The result of a step, and the transaction that is committed with the record of it, if it has one."""


@dataclass(eq=False)
class LastAttemptFailed(Exception):
    """The last attempt of a step has failed."""

    error: Error
    attempt: int


class RunningStep(Struct, eq=False):
    """A step that was begun, or is in line."""

    call: StepCall
    attempt: Running
    """Attempt of the workflow that called it."""
    told: Callable[[RunningStep], None]
    """Callback for its end. Not called if it was given up."""
    task: asyncio.Task[None] | None = None
    given_up: bool = False
    done: Done | None = None
    error: BaseException | None = None

    def give_up(self) -> None:
        """Give the step up, and roll back what it wrote in a transaction of its own."""
        self.given_up = True
        if self.task is not None:
            self.task.cancel()
        self._close()

    @property
    def tx(self) -> OwnTx | None:
        """The transaction whose commit records its end, if it has one."""
        return None if self.done is None else self.done[1]

    def event(self, at: datetime) -> Event:
        """Return the end of the step as an event of the history."""
        call, error = self.call, self.error
        if self.done is not None:
            return Event(
                0, EventType.STEP_COMPLETED, at, call.number, call.name, value=self.done[0], rollback=call.rollback
            )
        if error is None or isinstance(error, asyncio.CancelledError):
            error = asyncio.CancelledError("the step cancelled itself")
        told, attempt = (
            (error.error, error.attempt) if isinstance(error, LastAttemptFailed) else (failed(error).error, 1)
        )
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
    """The steps of all turns of a worker."""

    def __init__(self, executors: Mapping[str, Executor]) -> None:
        self._executors = executors
        # Two iterations of the loop: the first gathers the ends that are written together, the second sends them.
        self._first: FirstSteps[RunningStep, Done] = FirstSteps(self, stretch=STRETCH, most=MOST, turns=2)

    def begin(self, step: RunningStep) -> None:
        self._first.add([step])

    def has_room(self) -> bool:
        return True

    def coroutine_of(self, step: RunningStep) -> Coroutine[Any, Any, Done] | None:
        return None if step.given_up else run_step(step.call, step.attempt, self._executors)

    def waits(self, step: RunningStep, task: asyncio.Task[None]) -> None:
        step.task = task

    def ended(self, step: RunningStep, result: Done | None, error: BaseException | None) -> None:
        step.end(result, error)

    def paused(self, last: RunningStep | None, seconds: float) -> None: ...


class TurnSteps:
    """The steps of one turn: under way, or ended and not yet told to the code."""

    __slots__ = ("_attempt", "_proceed", "_steps", "_stir", "done", "gone", "under_way")

    def __init__(
        self, steps: Steps, attempt: Running, *, stir: Callable[[], None], proceed: Callable[[], None]
    ) -> None:
        """`proceed` is called when the last running step has ended; `stir` when others are still running, since they
        may end at this moment, too."""
        self._steps = steps
        self._attempt = attempt
        self._stir = stir
        self._proceed = proceed
        self.under_way: dict[int, RunningStep] = {}
        self.gone: list[RunningStep] = []
        self.done: deque[RunningStep] = deque()

    def begin(self, calls: Sequence[StepCall]) -> None:
        for call in calls:
            if not call.dropped:
                step = self.under_way[call.number] = RunningStep(call, self._attempt, self._ended)
                self._steps.begin(step)

    def next_done(self) -> RunningStep | None:
        """Return the next step that has ended and was not dropped."""
        while self.done and self.done[0].call.dropped:
            self.gone.append(self.done.popleft())
        return self.done[0] if self.done else None

    def give_up(self, dropped: Sequence[int]) -> None:
        """Give up the steps that the code has dropped. Not called while the code runs: ending a step must not happen
        inside it."""
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

    def _ended(self, step: RunningStep) -> None:
        self.under_way.pop(step.call.number, None)
        self.done.append(step)
        if self.under_way:
            self._stir()
        else:
            self._proceed()


async def run_step(call: StepCall, attempt: Running, executors: Mapping[str, Executor]) -> Done:
    """Run one step with all its attempts. Raise LastAttemptFailed if none is left."""
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
                raise LastAttemptFailed(told, failures) from error
        await asyncio.sleep(delay.total_seconds())


def _from_now(limit: asyncio.Timeout, seconds: float) -> Callable[[], None]:
    """Return a function that starts a step's timeout, for when there is room for its body."""
    clock = asyncio.get_running_loop().time

    def begun() -> None:
        with suppress(RuntimeError):  # the step was given up before there was room
            limit.reschedule(clock() + seconds)

    return begun
