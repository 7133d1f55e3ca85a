"""A history as a file: all that is needed to replay it elsewhere, without the database it came from."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import msgspec

from stepwell.model.events import Event, HistoryEvent
from stepwell.model.run import RunInfo
from stepwell.operator.errors import NoHistory
from stepwell.replay.code import About
from stepwell.store import history as stored

FORMAT, VERSION = "stepwell.history", 1
"""A change of the file that older code could not read is another version; what is added is none."""


class _Run(msgspec.Struct):
    id: UUID
    name: str
    input: Any
    key: str | None = None
    queue: str = "default"
    state: str = ""
    parent_id: UUID | None = None
    root_id: UUID | None = None
    tags: dict[str, Any] = {}
    version: str | None = None


class _Event(msgspec.Struct):
    idx: int
    type: str
    at: datetime
    data: dict[str, Any]


class _File(msgspec.Struct):
    format: str
    version: int
    run: _Run
    events: list[_Event]


@dataclass(frozen=True, slots=True)
class History:
    """A history, and the run that it is of."""

    about: About
    input: bytes
    events: list[Event]


def history_of(info: RunInfo, events: list[HistoryEvent]) -> History:
    """The history of a run, as a database answers it."""
    about = About(
        info.id, info.name, info.key, info.queue, info.parent_id, info.root_id, MappingProxyType(info.tags)
    )  # fmt: skip
    try:
        told = [event_of(each) for each in events]
    except ValueError as error:
        raise NoHistory(f"run {info.id}", str(error)) from None
    return History(about, msgspec.json.encode(info.input), told)


def event_of(each: HistoryEvent | _Event) -> Event:
    return stored.made(each.idx, each.type, each.at, msgspec.json.encode(each.data))


def packed(info: RunInfo, events: list[HistoryEvent]) -> bytes:
    """Write the content of the file. Its lines are short, so that a difference can be read."""
    run = _Run(
        info.id, info.name, info.input, info.key, info.queue, info.state, info.parent_id, info.root_id, info.tags,
        info.version,
    )  # fmt: skip
    told = [_Event(each.idx, each.type, each.at, each.data) for each in events]
    return msgspec.json.format(msgspec.json.encode(_File(FORMAT, VERSION, run, told)), indent=1) + b"\n"


def read(path: Path) -> History:
    """NoHistory if it is not one, or is of a later version."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.MsgspecError) as error:
        raise NoHistory(str(path), str(error)) from None
    if found.format != FORMAT:
        raise NoHistory(str(path), f"its format is {found.format!r}, and not {FORMAT!r}")
    if found.version > VERSION:
        reason = f"its version is {found.version}, and this code reads up to {VERSION}: install a newer stepwell"
        raise NoHistory(str(path), reason)
    run = found.run
    about = About(run.id, run.name, run.key, run.queue, run.parent_id, run.root_id, MappingProxyType(run.tags))
    try:
        events = [event_of(each) for each in found.events]
    except ValueError as error:
        raise NoHistory(str(path), str(error)) from None
    if [each.idx for each in events] != list(range(1, len(events) + 1)):
        raise NoHistory(str(path), "its events are not numbered from 1 on, one by one")
    return History(about, msgspec.json.encode(run.input), events)
