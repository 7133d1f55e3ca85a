"""Compare a history with today's code, and describe a mismatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from stepwell.model.commands import Command, Ended, StepCall, described
from stepwell.model.errors import Nondeterminism
from stepwell.model.events import COMMANDS, Event, EventType
from stepwell.replay.code import About
from stepwell.replay.places import line_of

OF_STEPS = frozenset({EventType.STEP_COMPLETED, EventType.STEP_FAILED})

_NOTHING: frozenset[str] = frozenset()


@dataclass(slots=True)
class Ahead:
    """Facts from later events of the history that the code needs before those events are delivered."""

    marks: dict[int, set[str]] = field(default_factory=dict)
    """The patches that were marked after each arrival, by the index of the arrival."""
    run_ids: dict[int, UUID] = field(default_factory=dict)
    """The run that each command started, by the command's number. In a fork these are the origin's children."""
    whens: dict[int, datetime] = field(default_factory=dict)
    """The time at which each timer fires, by the command's number. In a fork it is later than the code computes."""
    last: int | None = None
    """The last recorded command, if the commands that the last arrival caused were not all written: those after it are
    new."""

    def marked_upon(self, idx: int) -> set[str] | frozenset[str]:
        return self.marks.get(idx, _NOTHING)


NOTHING_AHEAD = Ahead()


def look_ahead(events: Sequence[Event]) -> Ahead:
    ahead, arrived = Ahead(), 0
    for event in events:
        if event.type not in COMMANDS:
            arrived = event.idx
        elif event.type == EventType.VERSION_MARKED:
            ahead.marks.setdefault(arrived, set()).add(event.name or "")
        elif event.run_id is not None and event.command is not None:
            ahead.run_ids[event.command] = event.run_id
        elif event.when is not None and event.command is not None:
            ahead.whens[event.command] = event.when
    if events and events[-1].more:
        ahead.last = events[-1].command
    return ahead


def last_arrival(events: Sequence[Event]) -> int:
    """Return the position of the last event that is not a command; 0 if there is none."""
    for place in range(len(events) - 1, -1, -1):
        if events[place].type not in COMMANDS:
            return place
    return 0


def fits(event: Event, command: Command | None) -> bool:
    """Tell whether the event records this command."""
    return (
        command is not None
        and command.type == event.type
        and command.number == event.command
        and command.name == event.name
        and command.takes == event.takes
    )


def is_stray(event: Event, call: Command | StepCall) -> bool:
    """Tell whether the event is the end of a run that this call did not start, but the code before continue_as_new."""
    run_id = event.run_id
    return run_id is not None and (isinstance(call, StepCall) or (run_id is not call.run_id and run_id != call.run_id))


def ends(event: Event, call: Command | StepCall) -> bool:
    """Tell whether the event can end a call of this kind, or a step of this name."""
    if isinstance(call, StepCall):
        return event.type in OF_STEPS and event.name == call.name
    return event.type not in OF_STEPS


def mismatch(about: About, event: Event, found: Command | StepCall | Ended | None) -> Nondeterminism:
    """Return the error for code that does `found`, or waits, where its history has another event."""
    recorded, line = described(event.type, event.name, event.takes), "it waits for something else"
    match found:
        case None:
            new = "nothing"
        case Ended():
            new, line = f"end ({found.type})", "after its last line"
        case StepCall():
            new, line = described("the step", found.name), line_of(found.line)
        case Command():
            new, line = str(found), line_of(found.line)
            if new == recorded:
                recorded, new = f"{recorded} as command {event.command}", f"{new} as command {found.number}"
    return Nondeterminism(about.id, about.name, event.idx, recorded, new, line)
