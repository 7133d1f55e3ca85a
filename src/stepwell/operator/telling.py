"""A history replayed by the code of here and now, event by event. Nothing is run but the workflow's own code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from stepwell.model.commands import Command, StepCall
from stepwell.model.errors import Nondeterminism
from stepwell.model.events import COMMANDS, Event, EventType
from stepwell.operator.exported import History
from stepwell.replay.called import Called
from stepwell.replay.code import Code
from stepwell.replay.places import line_of
from stepwell.replay.replay import Replay

Hear = Callable[[Event, str], None]
"""Called with every event that fits, and with the line that issued it, if it is a command, or the end of a step."""
MakeCode = Callable[[bytes], Code]
"""Makes of an input what is replayed."""


class Told(Replay):
    """A replay that says which line each command came from, and where each step was asked for."""

    lines: dict[int, str]

    def _expect(self, event: Event) -> None:
        command: Command | None = self._issued[0] if self._issued else None
        super()._expect(event)
        self.lines[event.idx] = "" if command is None else line_of(command.line)

    def _awaited(self, event: Event) -> Called | None:
        called = super()._awaited(event)
        if called is not None and isinstance(called.call, StepCall):
            self.lines[event.idx] = line_of(called.call.line)
        return called


def tell(history: History, code: MakeCode, hear: Hear | None = None, *, until: int | None = None) -> Told:
    """Replay a history to its end, or up to an event; the answer is where the code then stands.

    Raises Nondeterminism where the code does not fit. The caller ends the replay by its `evict`.
    """
    events = history.events if until is None else history.events[:until]
    replay, fits = _fresh(history, code), False
    try:
        for part in _parts(events):
            if part[0].type is EventType.CONTINUED_AS_NEW and replay.idx:
                replay.recorded(part[:1])
                replay.evict()
                replay = _fresh(history, code)
            _tell_part(replay, part, hear)
        fits = True
    finally:
        if not fits:
            replay.evict()
    return replay


def _tell_part(replay: Told, part: list[Event], hear: Hear | None) -> None:
    try:
        replay.recorded(part)
    except Nondeterminism as error:
        part = [event for event in part if event.idx < error.idx]
        raise
    finally:
        if hear is not None:
            for event in part:
                hear(event, replay.lines.get(event.idx, ""))


def _fresh(history: History, code: MakeCode) -> Told:
    replay = Told(history.about, code(history.input))
    replay.lines = {}
    return replay


def _parts(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Each arrival with the commands that follow it."""
    part: list[Event] = []
    for event in events:
        if event.type not in COMMANDS and part:
            yield part
            part = []
        part.append(event)
    if part:
        yield part
