"""Encodes rows in the binary form of COPY.

Runs that are started together share their terms, and differ in id and input only. So the shared part is encoded once,
and a row is a few bytes objects joined together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from struct import Struct
from uuid import UUID

from stepwell.model.events import Event
from stepwell.model.start import Start, Terms

COLUMNS = (
    "id", "name", "queue", "priority", "state", "input", "tags", "retry", "timeout", "parent_id", "root_id", "node",
)  # fmt: skip
"""Columns of a plain start, in the order in which they are packed."""
TAKEN_COLUMNS = (*COLUMNS, "attempt", "claim_id", "claimed_by", "started_at")
"""Columns of a run that is claimed as it is started."""
CHUNK = 32 * 1024
"""Minimum bytes of a chunk: the server works on one chunk while the next is encoded."""
LARGE_CHUNK = 128 * 1024
"""Minimum bytes of a chunk where the event loop is busy: other tasks run between two chunks."""

_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_length = Struct("!i").pack
_small = Struct("!ih").pack
_interval = Struct("!iqii").pack
_row = Struct("!hi").pack
"""Packs the head of a row: the number of columns, and the length of the id."""


@dataclass(frozen=True, slots=True)
class EagerClaim:
    """The claim of runs that are claimed as they are started."""

    claim_id: UUID
    worker: UUID
    at: datetime


def chunks(starts: Iterable[Start], taken: EagerClaim | None = None, *, chunk: int = CHUNK) -> Iterator[bytes]:
    """Encode plain starts, as pending runs or, with `taken`, as running ones."""
    parts, size = [_HEAD], 0
    terms: Terms | None = None
    row, last = _row(len(COLUMNS if taken is None else TAKEN_COLUMNS), 16), b"" if taken is None else _claim(taken)
    before = after = b""
    for start in starts:
        input = start.input
        if start.terms is not terms:
            terms = start.terms
            before = _before_input(terms, "pending" if taken is None else "running")
            after = _after_input(terms)
        node = _NULL if start.node is None else _text(start.node)
        parts += (row, start.id.bytes, before, _length(len(input) + 1), b"\x01", input, after, node, last)
        size += len(before) + len(input) + len(after)
        if size >= chunk:
            yield b"".join(parts)
            parts, size = [], 0
    parts.append(_TAIL)
    yield b"".join(parts)


EVENT_COLUMNS = ("run_id", "idx", "type", "at", "data")
_EVENT = _row(len(EVENT_COLUMNS), 16)
_int = Struct("!ii").pack
_number, _FOUR = _length, _length(4)
"""Packs a number of four bytes; `_FOUR` is its length."""
_time = Struct("!iq").pack
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def event_chunks(
    histories: Iterable[tuple[UUID, Sequence[Event]]], details: Callable[[Event], bytes], *, chunk: int = CHUNK
) -> Iterator[bytes]:
    """Encode the events of histories, each with its details."""
    parts, size = [_HEAD], 0
    for run_id, events in histories:
        before, between = _EVENT + run_id.bytes + _FOUR, b""
        type: str | None = None
        at: datetime | None = None
        for event in events:
            if event.type is not type or event.at is not at:  # many events in a row often share both
                type, at = event.type, event.at
                between = _text(type) + _moment(at)
            data = details(event)
            length = len(data) + 1
            parts += (before, _number(event.idx), between, _length(length), b"\x01", data)
            size += length + 64
            if size >= chunk:
                yield b"".join(parts)
                parts, size = [], 0
    parts.append(_TAIL)
    yield b"".join(parts)


def _before_input(terms: Terms, state: str) -> bytes:
    return b"".join((_text(terms.name), _text(terms.queue), _small(2, terms.priority), _text(state)))


def _after_input(terms: Terms) -> bytes:
    return b"".join(
        (
            _jsonb(terms.tags), _jsonb(terms.retry), _duration(terms.timeout), _uuid(terms.parent_id),
            _uuid(terms.root_id),
        )
    )  # fmt: skip


def _claim(taken: EagerClaim) -> bytes:
    return b"".join((_int(4, 1), _uuid(taken.claim_id), _uuid(taken.worker), _moment(taken.at)))


def _moment(at: datetime) -> bytes:
    return _time(8, microseconds(at))


def microseconds(at: datetime) -> int:
    """Return a time as Postgres counts it, in microseconds since 2000. Products of them are exact until 2285."""
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def array(values: Sequence[object]) -> str:
    """Return numbers, ids or names as the text of an array. The driver checks each value of a list for a nested list,
    which takes longer than everything else that it does to send a few values."""
    return "{" + ",".join(map(str, values)) + "}"


def _text(value: str) -> bytes:
    data = value.encode()
    return _length(len(data)) + data


def _jsonb(value: bytes | None) -> bytes:
    """Encode JSON: a version byte and the text."""
    return _NULL if value is None else _length(len(value) + 1) + b"\x01" + value


def _duration(value: timedelta | None) -> bytes:
    """Encode an interval: microseconds, days, months."""
    return _NULL if value is None else _interval(16, value.seconds * 1_000_000 + value.microseconds, value.days, 0)


def _uuid(value: UUID | None) -> bytes:
    return _NULL if value is None else _length(16) + value.bytes
