"""Replay a workflow: deliver its history to its code, event by event, and collect the commands that the code issues.

    recorded   an event of the history: an arrival is delivered, a command must equal the one that the code issued
    delivered  a new arrival: the commands that the code issues after it are new, and are recorded after it

After each arrival the code runs until it waits. Commands of all kinds are numbered in the order in which they are
issued. This order depends on the arrivals alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import Context
from datetime import UTC, datetime, timedelta
from functools import cached_property, partial
from random import Random
from typing import Any

from stepwell.model.commands import Command, Ended, StepCall
from stepwell.model.errors import Nondeterminism
from stepwell.model.events import COMMANDS, ENDS, Event, EventType
from stepwell.model.ids import RunId
from stepwell.model.start import Start
from stepwell.replay import ordered
from stepwell.replay.called import Called, ChildIds, error_of, let_go
from stepwell.replay.code import About, Code, ContinueAsNew, Evicted
from stepwell.replay.ending import end_of
from stepwell.replay.fitting import NOTHING_AHEAD, OF_STEPS, ends, fits, is_stray, last_arrival, look_ahead, mismatch
from stepwell.replay.futures import DurableTimer
from stepwell.replay.loop import Loop, NeverWaits
from stepwell.replay.places import line_of_user
from stepwell.replay.rollback import Rollback, undoing
from stepwell.replay.scopes import order_scopes
from stepwell.replay.signals import Receiving, Signals
from stepwell.replay.timers import Timers, moment
from stepwell.replay.updates import Updates
from stepwell.telemetry import log

__all__ = ["About", "Called", "Code", "ContinueAsNew", "Evicted", "Replay"]

ordered.put_in_order()
order_scopes()

_AT_ONCE = frozenset({EventType.STATE_PUBLISHED, EventType.VERSION_MARKED})
"""Commands that the code does not await: the line to report is the one that is running."""
_TO_CANCEL = {EventType.TASK_SCHEDULED: EventType.TASK_CANCELLED, EventType.CHILD_STARTED: EventType.CHILD_CANCELLED}

STRETCH, SHORTER = 300, 6
"""The number of callbacks to run at a time for new events, and a divisor for later stretches.

A large fan-out is written in parts, while the code issues the rest. Code that needs a second stretch after an event
gets shorter ones from then on, because the answers to its writes are processed between two stretches.
"""

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Replay:
    """A workflow's code on its loop, with its position in the history."""

    def __init__(self, about: About, code: Code) -> None:
        self.about = about
        self.code = code
        self.loop = Loop(self, seed=about.id.int)  # type: ignore[abstract]  # what it refuses was set
        self.line = self.loop.line
        """The queue of ready callbacks. While it is not empty, the code still runs after the last arrival."""
        self.idx = 0
        """The index of the last event delivered."""
        self._last_arrival = 0
        """The index of the last arrival whose delivery has begun."""
        self.now = self._began = LONG_AGO
        self._number = 0
        self._last_taken = 0
        """The number of the last command that may have left this replay, and so may have been written."""
        self._issued: deque[Command] = deque()
        self._calls: dict[int, Called] = {}
        self._given_up: set[int] = set()
        """Numbers of calls that were cancelled here, but may still end."""
        self._steps: dict[int, StepCall] = {}
        self.dropped: list[int] = []
        """Numbers of steps that were taken to be run, and that the code no longer awaits."""
        self.timers = Timers()
        self._signals = Signals(self.loop, self.timer_set)
        self.updates = Updates(self.loop, self._issue, code.describe)
        self._held: list[Event] = []
        self._ahead = NOTHING_AHEAD
        self._marked: set[str] = set()
        self.replaying = False
        self.evicting = False
        self._gathers = False
        """True if timers were made ready, but the code has not run since."""
        self.cancel_requested = False
        self._main: asyncio.Task[bytes] | None = None
        self._leaving: list[asyncio.Task[Any]] = []
        self._rollback = Rollback(self)
        self.ended: Ended | None = None
        self._ids: ChildIds
        self._seed = ""
        # A context of its own: the worker's context variables would differ from one worker to the next.
        self._context = Context()

    # -- events in

    def recorded(self, events: Sequence[Event], *, more: bool = False) -> None:
        """Deliver recorded history. Raise Nondeterminism if the code does something else.

        If `more` history follows, deliver only what can be checked without it: everything before the last arrival.
        """
        if self._held:
            events = [*self._held, *events]
        told = last_arrival(events) if more else len(events)
        self._held = list(events[told:])
        self._ahead = look_ahead(events)
        self.replaying = True
        try:
            with self.loop.entered():
                self._replay(events[:told] if more else events)
        finally:
            self.loop.tidy()  # these failures were reported when they were new
            self.replaying = False

    def _replay(self, events: Sequence[Event]) -> None:
        for event in events:
            if event.type in COMMANDS:
                self._expect(event)
            elif event.type in ENDS and self._main is not None:
                self._expect_end(event)
            else:
                self._deliver(event)
            self.idx = event.idx

    def delivered(self, event: Event, more: Iterator[Event] | None = None) -> list[Command]:
        """Deliver a new event, and return the commands that the code issues after it.

        While it issues none, deliver the events of `more`, which have the same type and time. This saves the work that
        such events have in common.
        """
        self._deliver(event, more)
        self.idx = self._last_arrival
        return self.take()

    def go_on(self) -> list[Command]:
        """Run another stretch, and return the commands that the code issues in it."""
        self._go_on()
        return self.take()

    def take(self) -> list[Command]:
        """Return the commands that are issued and not yet taken. From now on they count as possibly written."""
        self._last_taken = self._number
        if not self._issued:
            return []
        issued = list(self._issued)
        self._issued.clear()
        return issued

    def take_steps(self) -> list[StepCall]:
        """Return the steps to run in this worker."""
        if not self._steps:
            return []
        steps = list(self._steps.values())
        self._steps.clear()
        return steps

    def put_back(self, steps: Sequence[StepCall]) -> None:
        """Put back steps that were taken but have not begun: the next turn begins them."""
        self._steps |= {call.number: call for call in steps if not call.dropped}

    def waits_for(self) -> dict[str, Any]:
        """Describe what the code waits for, and the signals that it has not taken."""
        names = {called.call.name or "" for called in self._calls.values()}
        told: dict[str, Any] = {"runs": sorted(names), "signals": self._signals.awaited()}
        if untaken := self._signals.untaken():
            told["untaken"] = untaken
        return told

    # -- one event

    def _deliver(self, event: Event, more: Iterator[Event] | None = None) -> None:
        if self._issued or self.ended is not None:
            raise mismatch(self.about, event, self._issued[0] if self._issued else self.ended)
        self._last_taken, self._last_arrival = self._number, event.idx
        if event.at > self.now:
            self.now = event.at
        act = _ARRIVALS.get(event.type)
        if act is not None:  # an unknown type comes from a newer version, and does not concern the code
            act(self, event)
            self.loop.begin_event()
        if event.together:
            self._gathers = True  # the code runs after the next event
        elif act is not None or self._gathers:
            self._gathers = False
            self._go_on(None if more is None or act is None else partial(self._deliver_next, act, more))

    def _deliver_next(self, act: Callable[[Replay, Event], None], more: Iterator[Event]) -> bool:
        """Deliver the next event of `more` if it can follow at once. Return False if there is none, or it cannot."""
        if self._issued or self._steps or self._main is None or self._main.done():
            return False
        self.idx = self._last_arrival
        event = next(more, None)
        if event is None:
            return False
        self._last_taken, self._last_arrival = self._number, event.idx
        act(self, event)
        self.loop.begin_event()
        return True

    def _begin(self, event: Event) -> None:
        for name, value in event.signals or ():
            self._signals.came(name, value)
        self._began = event.at
        self.loop.began_ns = (event.at - LONG_AGO) // timedelta(microseconds=1) * 1000
        # Hashes and random numbers are the same in every replay and in a fork, which names its origin. Random numbers
        # differ after each continue_as_new.
        origin = event.run_id or self.about.id
        self._ids = ChildIds(self.about.id, event.idx)
        self._seed = f"{origin}:{event.idx}"
        self.loop.seed(origin.int)
        body = self._rollback.around(self.code.body(event.value))
        self._main = self._context.run(self.loop.create_task, body, name="workflow")

    def _go_on(self, then: Callable[[], bool] | None = None) -> None:
        loop, now = self.loop, (self.now - self._began).total_seconds()
        loop.stretch = None if self.replaying else STRETCH if not loop.ran else max(1, STRETCH // SHORTER)
        try:
            loop.run_until_idle(now, then)
            if not self.replaying:
                loop.tidy_some()
            if self._main is not None and self._main.done():
                self._wind_up(now)
        except NeverWaits as error:
            new = "an endless loop that waits for nothing"
            raise Nondeterminism(self.about.id, self.about.name, self.idx, "an event", new, error.line) from None
        if self._issued and any(command.dropped for command in self._issued):
            self._issued = deque(each for each in self._issued if not each.dropped or self._is_recorded(each.number))

    def _wind_up(self, now: float) -> None:
        """End the tasks that the code left behind, wait for them, and record the end of the code."""
        assert self._main is not None
        while not self.line and all(task.done() for task in self._leaving):
            self._leaving = self._context.run(self.loop.wind_up)
            if not self._leaving:
                asked, undone = self.cancel_requested, self._rollback.undone
                self.ended = end_of(self._main, self.code, self._signals, asked=asked, undone=undone)
                self._drop_steps()
                self.loop.tell_unheard()
                break
            self.loop.run_until_idle(now)

    def _is_recorded(self, number: int | None) -> bool:
        """Tell, in a replay, whether this command was recorded, although the code may withdraw it again now."""
        return self.replaying and (number in self._ahead.run_ids or number in self._ahead.whens)

    def _drop_steps(self) -> None:
        """Drop the steps of code that has ended."""
        self._steps.clear()
        for call in [called.call for called in self._calls.values()]:
            call.dropped = call.dropped or isinstance(call, StepCall)

    # -- requests of the code

    @cached_property
    def random(self) -> Random:
        return Random(self._seed)

    def call(self, type: EventType, start: Start, takes: tuple[str, ...], by: Called | None = None) -> Called:
        """Issue the start of a task or child, and return the future of its end: `by`, if it is given."""
        number = self._number = self._number + 1
        # The id is the same in every replay, because code may pass it on.
        known = self._ahead.run_ids.get(number) if self.replaying else None
        start.id = run_id = RunId(known) if known else self._ids.id(number, self.now)
        start.node = str(number)
        at = self.loop.asks() if by is None else by.maker
        undoes = (self._rollback.under_way and undoing()) or None
        command = Command(type, number, start.terms.name, run_id, takes, start=start, line=at, rollback=undoes)
        if not self.evicting:
            self._issued.append(command)
        if by is None:
            called = self._calls[number] = Called(self.loop, command, self)
            return called
        self._calls[number] = by
        by.issued(command, self)
        return by

    def step(self, step: Any, input: bytes) -> Called:
        """Request a step, and return the future of its end. Only the end is recorded."""
        number = self._number = self._number + 1
        call = StepCall(number, step.name, step, input, self.loop.asks())
        call.rollback = (self._rollback.under_way and undoing()) or None
        if not self.evicting:
            self._steps[number] = call
        called = self._calls[number] = Called(self.loop, call, self)
        return called

    def publish(self, value: bytes) -> None:
        self._issue(EventType.STATE_PUBLISHED, value=value)

    def patched(self, name: str) -> bool:
        """Tell whether this run takes the new path. A replay repeats what was recorded; new code takes the new path."""
        if name in self._marked:
            return True
        is_new = self._ahead.last is not None and self._number >= self._ahead.last
        if self.replaying and not is_new and name not in self._ahead.marked_upon(self._last_arrival):
            return False
        self._marked.add(name)
        self._issue(EventType.VERSION_MARKED, name=name)
        return True

    def on_rollback(self, compensate: Callable[[], Awaitable[Any]]) -> None:
        self._rollback.add(compensate)

    def wait_for_signal(self, name: str, timeout: float | None) -> Receiving:
        """Return a future for the next signal of this name, in order of arrival."""
        return self._signals.never() if self.evicting else self._signals.receive(name, timeout)

    def give_back(self, name: str, receiving: Receiving) -> None:
        """Return a signal to the queue that its receiver could not take."""
        self._signals.give_back(name, receiving)

    def _issue(self, type: EventType, **details: Any) -> Command:
        """Issue a command. Commands of evicted code have no effect: the code is left waiting, and is closed there."""
        self._number += 1
        command = Command(type, self._number, line=line_of_user() if type in _AT_ONCE else self.loop.asks(), **details)
        command.rollback = (self._rollback.under_way and undoing()) or None
        if not self.evicting:
            self._issued.append(command)
        return command

    def give_up(self, called: Called) -> None:
        call, number = called.call, called.call.number or 0
        del self._calls[number]
        self._given_up.add(number)
        if isinstance(call, StepCall):
            call.dropped = True
            if self._steps.pop(number, None) is None:
                self.dropped.append(number)
        elif number > self._last_taken and not self._is_recorded(number):
            call.dropped = True  # it has not left this replay
        elif not self.evicting:
            self._issue(_TO_CANCEL[call.type], name=call.name, run_id=call.run_id)

    def timer_set(self, timer: DurableTimer, signal: str | None = None) -> None:
        known = self._ahead.whens.get(self._number + 1) if self.replaying else None
        when = known or moment(self._began, timer.when())
        self.timers.add(timer, self._issue(EventType.TIMER_SCHEDULED, when=when, name=signal), when)

    def timer_cancelled(self, timer: DurableTimer) -> None:
        self.timers.drop(timer)

    def unheard(self, what: str, error: BaseException) -> None:
        """Log an unretrieved error once: not again in a replay, and not for evicted code, where errors are expected."""
        if not self.replaying and not self.evicting:
            log.error("workflow %s, run %s: %s", self.about.name, self.about.id, what, exc_info=error)

    def evict(self) -> None:
        """End the coroutines here and now. The run goes on from its history, later or on another worker."""
        self.loop.tidy()
        self.evicting = True
        self.loop.end_all()
        self._main, self._leaving = None, []  # a remaining reference would keep everything alive
        let_go(self._calls)
        for held in (self.timers, self._steps, self._issued, self._signals, self.updates, self._rollback):
            held.clear()

    # -- answers

    def _completed(self, event: Event) -> None:
        if (called := self._awaited(event)) is not None:
            called.set_result(event.value or b"null")

    def _failed(self, event: Event) -> None:
        if (called := self._awaited(event)) is not None:
            called.set_exception(error_of(event, called.call, self.about.id))

    def _awaited(self, event: Event) -> Called | None:
        """Return the future that awaits this end. Return None if the call was cancelled here while it ended elsewhere,
        or was made before this run continued as new."""
        number = event.command or 0
        called = self._calls.get(number)
        if called is None or is_stray(event, called.call):
            if event.type in OF_STEPS and number not in self._given_up:
                raise mismatch(self.about, event, None)
            self._given_up.discard(number)
            return None
        if not ends(event, called.call):
            raise mismatch(self.about, event, called.call)
        del self._calls[number]
        self._steps.pop(number, None)
        return called

    def _cancel_requested(self, event: Event) -> None:
        self.cancel_requested = True
        if self._main is None or (self._rollback.under_way and not self._main.done()):
            return
        # Tasks that the code left behind at its end, and that still clean up, are cancelled too.
        for task in self.loop.tasks if self._main.done() else [self._main]:
            task.cancel()

    def _fire(self, event: Event) -> None:
        timer = self.timers.take(event.command or 0)
        if timer is None:
            raise mismatch(self.about, event, None)
        self.loop.ready(timer)

    def _signalled(self, event: Event) -> None:
        self._signals.came(event.name or "", event.value or b"null")

    def _update_requested(self, event: Event) -> None:
        self._context.run(self.updates.requested, event)

    # -- comparison with the history

    def _expect(self, event: Event) -> None:
        command = self._issued.popleft() if self._issued else None
        if not fits(event, command):
            raise mismatch(self.about, event, command or next(reversed(self._steps.values()), None))

    def _expect_end(self, event: Event) -> None:
        if event.type == EventType.WORKFLOW_TIMED_OUT:
            return
        if self._issued or self.ended is None or self.ended.type != event.type:
            raise mismatch(self.about, event, self._issued[0] if self._issued else self.ended)


_ARRIVALS: dict[EventType, Callable[[Replay, Event], None]] = {
    **dict.fromkeys((EventType.WORKFLOW_STARTED, EventType.CONTINUED_AS_NEW), Replay._begin),
    **dict.fromkeys((EventType.TASK_COMPLETED, EventType.CHILD_COMPLETED, EventType.STEP_COMPLETED), Replay._completed),
    **dict.fromkeys((EventType.TASK_FAILED, EventType.CHILD_FAILED, EventType.STEP_FAILED), Replay._failed),
    **dict.fromkeys((EventType.TIMER_FIRED, EventType.SIGNAL_TIMED_OUT), Replay._fire),
    EventType.SIGNAL_RECEIVED: Replay._signalled,
    EventType.UPDATE_REQUESTED: Replay._update_requested,
    EventType.CANCEL_REQUESTED: Replay._cancel_requested,
}
"""The types of arrivals that are delivered to the code, with their handlers."""
