"""A history told again to the code of here and now, event by event. Nothing is run but the workflow's own code."""

from __future__ import annotations

import bdb
import pdb
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from stepwell.cli.exported import History
from stepwell.definitions.workflow import Workflow
from stepwell.model.commands import Command, StepCall
from stepwell.model.errors import Nondeterminism
from stepwell.model.events import COMMANDS, Event, EventType
from stepwell.replay.called import Called
from stepwell.replay.places import line_of
from stepwell.replay.replay import Replay
from stepwell.worker.turns.turns import RunCode

Hear = Callable[[Event, str], None]
"""Told of every event that fits, and of the line that issued it, if it is a command, or the end of a step."""

_LINE = re.compile(r"(.+):(\d+) in .+")


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


def tell(history: History, workflow: Workflow[..., Any], hear: Hear | None = None, *, until: int | None = None) -> Told:
    """To the end, or up to an event; where the code then stands. Nondeterminism where it does not fit.

    Whoever asks ends it by its `evict`.
    """
    events = history.events if until is None else history.events[:until]
    replay, fits = _fresh(history, workflow), False
    try:
        for part in _parts(events):
            if part[0].type is EventType.CONTINUED_AS_NEW and replay.idx:
                replay.recorded(part[:1])
                replay.evict()
                replay = _fresh(history, workflow)
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


def _fresh(history: History, workflow: Workflow[..., Any]) -> Told:
    replay = Told(history.about, RunCode(workflow, history.input))
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


def since_it_began(events: Sequence[Event]) -> list[Event]:
    """What counts of a history for whoever goes on with it."""
    begun = [place for place, event in enumerate(events) if event.type is EventType.CONTINUED_AS_NEW]
    return list(events[begun[-1] :]) if begun else list(events)


def debug(history: History, workflow: Workflow[..., Any], *, until: int | None = None) -> None:
    """Under pdb, which stops at the line where the code does not fit, or that issued the last command, or at its first.

    Told twice: once to learn which line that is.
    """
    file, line = _first_line(workflow)
    lines: list[str] = []
    try:
        tell(history, workflow, lambda _event, line: lines.append(line), until=until).evict()
    except Nondeterminism as error:
        lines.append(str(error.line))
    if (until is not None or lines) and (
        found := _LINE.fullmatch(next((each for each in reversed(lines) if each), ""))
    ):
        file, line = found[1], int(found[2])
    debugger = pdb.Pdb(readrc=False)
    debugger.set_break(file, line)
    debugger.rcLines = ["continue"]  # from our own first line to theirs
    try:
        debugger.runcall(lambda: tell(history, workflow, until=until).evict())
    except (bdb.BdbQuit, Nondeterminism):
        if not debugger.quitting:  # as which quitting looks to the workflow, in whose code it was done
            raise


def _first_line(workflow: Workflow[..., Any]) -> tuple[str, int]:
    code = workflow.fn.__code__
    lines = sorted({line for _, _, line in code.co_lines() if line is not None})
    return str(Path(code.co_filename)), next((line for line in lines if line > code.co_firstlineno), lines[0])
