"""Cut a history for a fork, and find what was in progress at the cut.

A history can be replayed only in whole parts. A part is one arrival, or timers that fired together, and every command
that the code then issued. A cut inside a part is therefore moved to before the part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.model.commands import ROLLED_BACK
from stepwell.model.errors import InvalidSetting
from stepwell.model.events import COMMANDS, ENDS, Event, EventType

_BEGINS = (EventType.WORKFLOW_STARTED, EventType.CONTINUED_AS_NEW)
_STARTED = (EventType.TASK_SCHEDULED, EventType.CHILD_STARTED)
_CANCELLED = (EventType.TASK_CANCELLED, EventType.CHILD_CANCELLED)
_ENDED = (EventType.TASK_COMPLETED, EventType.TASK_FAILED, EventType.CHILD_COMPLETED, EventType.CHILD_FAILED)
_FIRED = (EventType.TIMER_FIRED, EventType.SIGNAL_TIMED_OUT)
_BAD_NEWS = (EventType.TASK_FAILED, EventType.CHILD_FAILED, EventType.STEP_FAILED, EventType.SIGNAL_TIMED_OUT)


@dataclass(frozen=True, slots=True)
class Cut:
    """The first part of a history."""

    last: int
    """The index of the last event; 0 if there is none."""
    begun: Event | None
    """The event with which the code began, or continued as new."""
    runs: list[Event]
    """Commands that started a task or child which had not ended."""
    timers: list[Event]
    """Timers that had not fired."""
    published: Event | None
    """The last published state."""


def cut(events: Sequence[Event], at: int) -> Cut:
    """Cut a history after event `at`, or after the last whole part before it. Raise InvalidSetting if `at` is wrong."""
    if isinstance(at, bool) or not isinstance(at, int) or not 0 <= at <= len(events):
        raise InvalidSetting("at", at, f"the history has the events 1 to {len(events)}; 0 is before all of them")
    if at and events[at - 1].type in ENDS and events[at - 1].type is not EventType.CONTINUED_AS_NEW:
        raise InvalidSetting("at", at, f"this event is its end, {events[at - 1].type}: a fork must cut before it")
    last = at
    while 0 < last < len(events) and (events[last].type in COMMANDS or events[last - 1].together):
        last -= 1
    return _under_way(events[:last])


def last_good(events: Sequence[Event]) -> int:
    """Return the event from which a failed workflow can go on.

    This is the event before the failure of a task, child or step, or before the signal timeout, that made it fail. If
    something else made it fail, it is the event before its end. A workflow that was rolled back begins anew, because
    everything it had done is undone.
    """
    end = len(events)
    if end and events[-1].type in ENDS:
        end -= 1
        if events[-1].state == ROLLED_BACK:
            return max(event.idx for event in events if event.type in _BEGINS) - 1
    upon = end
    while upon and events[upon - 1].type in COMMANDS:
        upon -= 1
    return upon - 1 if upon and events[upon - 1].type in _BAD_NEWS else end


def _under_way(events: Sequence[Event]) -> Cut:
    begun: Event | None = None
    published: Event | None = None
    runs: dict[int, Event] = {}
    timers: dict[int, Event] = {}
    for event in events:
        number = event.command or 0
        if event.type in _BEGINS:
            begun, runs, timers = event, {}, {}
        elif event.type in _STARTED:
            runs[number] = event
        elif event.type in _ENDED:
            runs.pop(number, None)
        elif event.type in _CANCELLED:
            runs = {each: started for each, started in runs.items() if started.run_id != event.run_id}
        elif event.type is EventType.TIMER_SCHEDULED:
            timers[number] = event
        elif event.type in _FIRED:
            timers.pop(number, None)
        elif event.type is EventType.STATE_PUBLISHED:
            published = event
    return Cut(len(events), begun, list(runs.values()), list(timers.values()), published)
