"""Storage of events: the details of each as one JSON object, without the fields that it does not have."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec

from stepwell.model.events import Event, EventType
from stepwell.store import rows
from stepwell.store.pool import Row


class _Details(msgspec.Struct, omit_defaults=True):
    command: int | None = None
    name: str | None = None
    run: UUID | None = None
    takes: tuple[str, ...] | None = None
    value: msgspec.Raw = msgspec.Raw()
    error: msgspec.Raw = msgspec.Raw()
    state: str | None = None
    attempt: int | None = None
    when: datetime | None = None
    signals: tuple[tuple[str, msgspec.Raw], ...] | None = None
    version: str | None = None
    id: UUID | None = None
    more: bool | None = None
    together: bool | None = None
    rollback: bool | None = None


class _TaskScheduled(msgspec.Struct, omit_defaults=True):
    """Details of a task that was started."""

    command: int | None = None
    name: str | None = None
    run: UUID | None = None
    takes: tuple[str, ...] | None = None


class _TaskCompleted(msgspec.Struct, omit_defaults=True):
    """Details of a task that has completed."""

    command: int | None = None
    run: UUID | None = None
    value: msgspec.Raw = msgspec.Raw()
    attempt: int | None = None


_TYPES = {each.value: each for each in EventType}
_encode = msgspec.json.Encoder().encode
_name = lru_cache(maxsize=1000)(_encode)
_decode = msgspec.json.Decoder(_Details).decode


def details(event: Event) -> bytes:
    """Encode what is stored of an event besides its number, type and time."""
    plain = event.more is None and event.rollback is None
    if event.type is EventType.STEP_COMPLETED and plain and event.value is not None:
        # The most frequent event by far.
        return b'{"command":%d,"name":%b,"value":%b}' % (event.command or 0, _name(event.name), event.value)
    if event.type is EventType.TASK_SCHEDULED and plain:
        return _encode(_TaskScheduled(event.command, event.name, event.run_id, event.takes))
    if event.type is EventType.TASK_COMPLETED and event.value is not None and event.id is None:
        return _encode(_TaskCompleted(event.command, event.run_id, msgspec.Raw(event.value), event.attempt))
    packed = _Details(
        event.command, event.name, event.run_id, event.takes, state=event.state, attempt=event.attempt,
        when=event.when, version=event.version, id=event.id, more=event.more,
        together=event.together, rollback=event.rollback,
    )  # fmt: skip
    if event.value is not None:
        packed.value = msgspec.Raw(event.value)
    if event.error is not None:
        packed.error = msgspec.Raw(rows.stored_error(event.error))
    if event.signals is not None:
        packed.signals = tuple((name, msgspec.Raw(value)) for name, value in event.signals)
    return _encode(packed)


def event(row: Row) -> Event:
    """Decode a row of `events`."""
    return made(row["idx"], row["type"], row["at"], row["data"])


def arrival(row: Row) -> Event:
    """Decode an arrival. Its number is its place among all arrivals of the run, until it is delivered."""
    return made(row["place"], row["type"], row["at"], row["data"])


def made(idx: int, type: str, at: datetime, data: bytes) -> Event:
    """Decode an event from its columns."""
    has = _decode(data)
    return Event(
        idx, _TYPES[type], at, has.command, has.name, has.run, has.takes,
        bytes(has.value) or None, rows.error(bytes(has.error) or None),
        has.state, has.attempt, has.when,
        None if has.signals is None else tuple((name, bytes(value)) for name, value in has.signals),
        has.version, has.id, has.more, has.together, has.rollback,
    )  # fmt: skip


def shown(row: Row) -> dict[str, Any]:
    """Return the details of an event in readable form."""
    found: dict[str, Any] = msgspec.json.decode(row["data"])
    return found
