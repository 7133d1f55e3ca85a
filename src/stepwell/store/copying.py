"""Rows in the binary form of COPY.

Runs that are started together share their terms, and differ in id and input only. So the rest is encoded once, and a
row is a handful of bytes objects put one behind another.
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
"""Of a plain start, in the order in which they are packed."""
TAKEN_COLUMNS = (*COLUMNS, "attempt", "claim_id", "claimed_by", "started_at")
"""Of one that is claimed as it is started."""
CHUNK = 32 * 1024
"""Bytes that are handed over at once, or somewhat more: the server works on one while the next is made."""
LARGE_CHUNK = 128 * 1024
"""The same where others on the event loop have much to do: between two chunks all of them have a turn."""

_HEAD = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TAIL = b"\xff\xff"
_NULL = b"\xff\xff\xff\xff"
_length = Struct("!i").pack
_small = Struct("!ih").pack
_interval = Struct("!iqii").pack
_row = Struct("!hi").pack
"""What a row begins with: how many columns there are, and the length of the id."""


@dataclass(frozen=True, slots=True)
class EagerClaim:
    """The claim of runs that are claimed as they are started."""

    claim_id: UUID
    worker: UUID
    at: datetime


def chunks(starts: Iterable[Start], taken: EagerClaim | None = None, *, chunk: int = CHUNK) -> Iterator[bytes]:
    """Plain starts, as pending runs or as running ones."""
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
"""A number of four bytes, and the length of it."""
_time = Struct("!iq").pack
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def event_chunks(
    histories: Iterable[tuple[UUID, Sequence[Event]]], details: Callable[[Event], bytes], *, chunk: int = CHUNK
) -> Iterator[bytes]:
    """Events of histories, each with its details."""
    parts, size = [_HEAD], 0
    for run_id, events in histories:
        before, between = _EVENT + run_id.bytes + _FOUR, b""
        type: str | None = None
        at: datetime | None = None
        for event in events:
            if event.type is not type or event.at is not at:  # often the same for many
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
    """As Postgres counts them, from the year 2000 on. Where it multiplies them they are exact until 2285."""
    since = at - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def array(values: Sequence[object]) -> str:
    """Numbers, ids or names as the text of an array. An array that is given as such the driver goes through, asking of
    each value whether it is another: that takes longer than all else there is to sending a few."""
    return "{" + ",".join(map(str, values)) + "}"


def _text(value: str) -> bytes:
    data = value.encode()
    return _length(len(data)) + data


def _jsonb(value: bytes | None) -> bytes:
    """A version byte and the text."""
    return _NULL if value is None else _length(len(value) + 1) + b"\x01" + value


def _duration(value: timedelta | None) -> bytes:
    """Microseconds, days, months."""
    return _NULL if value is None else _interval(16, value.seconds * 1_000_000 + value.microseconds, value.days, 0)


def _uuid(value: UUID | None) -> bytes:
    return _NULL if value is None else _length(16) + value.bytes
