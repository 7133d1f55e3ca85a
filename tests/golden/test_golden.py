"""Histories of earlier versions, told again to the code of this one: what users have in their databases must fit."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path

import pytest

from stepwell.definitions.workflow import Workflow
from stepwell.model.errors import Nondeterminism
from stepwell.model.events import ENDS, EventType
from stepwell.operator.exported import FORMAT, VERSION, read
from stepwell.operator.telling import MakeCode, tell
from stepwell.worker.turns.turns import RunCode
from tests.golden import code
from tests.golden.make import PLAYS, SUMS

FILES = sorted(Path(__file__).parent.glob("*.json"))
ONLY_OUTSIDE = {EventType.WORKFLOW_TIMED_OUT}
"""What ends a workflow otherwise than by its code."""


def workflow_of(name: str) -> MakeCode:
    found = code.app.definitions.named(name)
    assert isinstance(found, Workflow)
    return partial(RunCode, found)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_code_of_today_does_what_the_history_says(path: Path) -> None:
    history = read(path)
    heard: list[int] = []
    replay = tell(history, workflow_of(history.about.name), lambda event, _line: heard.append(event.idx))
    try:
        assert heard == [event.idx for event in history.events]
        last = history.events[-1].type
        ended = replay.ended.type if replay.ended is not None else None
        assert ended == (last if last in ENDS - ONLY_OUTSIDE else None)
        if last is EventType.WORKFLOW_COMPLETED:
            assert replay.ended is not None
            assert json.loads(replay.ended.value or b"") == json.loads(history.events[-1].value or b"")
    finally:
        replay.evict()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_command_is_compared(path: Path) -> None:
    """The replay would notice: a history with one command of another kind does not fit."""
    history = read(path)
    commands = [event for event in history.events if event.type in (EventType.TASK_SCHEDULED, EventType.CHILD_STARTED)]
    for event in commands:
        name, event.name = event.name, "golden.other"
        with pytest.raises(Nondeterminism):
            tell(history, workflow_of(history.about.name))
        event.name = name


def test_there_is_one_of_every_kind_and_they_are_never_edited() -> None:
    assert {path.stem for path in FILES} >= PLAYS.keys()
    sums = dict(reversed(line.split("  ")) for line in SUMS.read_text().splitlines())
    assert {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in FILES} == sums, (
        "a golden history was changed: put it back, and make one of another name instead (README.md)"
    )


def test_every_type_of_event_is_in_one_of_them() -> None:
    there = {event.type for path in FILES for event in read(path).events}
    assert set(EventType) - there == set()


def test_the_format_is_in_the_header() -> None:
    for path in FILES:
        header = json.loads(path.read_text())
        assert header["format"] == FORMAT
        assert header["version"] <= VERSION
