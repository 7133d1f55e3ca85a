"""Ids, made by the caller, so that a run's id is known before the round trip and a start can be repeated.

A run's id is a UUIDv7. Its first 48 bits are the time, so ids sort by creation and partition by day.
A claim's id is random. It is a capability, so nothing may make it guessable.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count as count_from
from typing import NewType
from uuid import UUID, SafeUUID, uuid4

RunId = NewType("RunId", UUID)
ClaimId = NewType("ClaimId", UUID)
WorkerId = NewType("WorkerId", UUID)

_blank, _UNKNOWN = object.__new__, SafeUUID.unknown
_slots = vars(UUID)
_set_int, _set_safe = _slots["int"].__set__, _slots["is_safe"].__set__
_NOISE = (1 << 48) - 1
_STEP = 1 << 48
_AT_ONCE = 512
_lock = threading.Lock()
_ms = 0
_prefix = 0
"""The last id without its 48 random bits: the time, the version, the variant, and a counter around them."""
_steps = 0
"""The number of increments left before the prefix would overflow into the variant."""
_noise: Iterator[int] = iter(())


def new_run_id() -> RunId:
    """Return a UUIDv7, strictly increasing within the process: a 26-bit counter follows the milliseconds."""
    global _prefix, _steps
    with _lock:
        noise = next(_noise, None) or _more_noise()
        ms = time.time_ns() // 1_000_000
        if ms <= _ms and _steps:
            _prefix += _STEP
            _steps -= 1
        else:
            _turn(ms, noise)
        value = _prefix | noise & _NOISE
    return uuid_of(value)


def new_run_ids() -> Iterator[RunId]:
    """Yield ids for many runs.

    The ids are made in batches of some hundred, each at a third of the cost of a single one. Another caller may
    therefore get a higher id between two of these.
    """
    while True:
        yield from map(uuid_of, _values(_AT_ONCE))


def made_at(run_id: UUID) -> datetime:
    """Return the time at which an id was made, by the clock of the process that made it."""
    return datetime.fromtimestamp((run_id.int >> 80) / 1000, UTC)


def uuid_of(value: int) -> RunId:
    """Do what UUID(int=value) does, without its checks of the arguments."""
    made = _blank(UUID)
    _set_int(made, value)
    _set_safe(made, _UNKNOWN)
    return RunId(made)


def _values(count: int) -> list[int]:
    """Return what `count` calls of new_run_id would return."""
    global _prefix, _steps
    noises = struct.unpack(f"!{count}Q", os.urandom(8 * count))
    made: list[int] = []
    with _lock:
        ms = time.time_ns() // 1_000_000
        while len(made) < count:
            rest = noises[len(made) :]
            if ms <= _ms and _steps:
                _prefix += _STEP
                _steps -= 1
            else:
                _turn(ms, rest[0])
            some = rest[: _steps + 1]
            made += [prefix | noise & _NOISE for prefix, noise in zip(count_from(_prefix, _STEP), some)]
            _prefix += _STEP * (len(some) - 1)
            _steps -= len(some) - 1
    return made


def _turn(ms: int, noise: int) -> None:
    """Begin a new millisecond, or carry into the counter's upper bits when its lower 14 bits are used up."""
    global _ms, _prefix, _steps
    if ms > _ms:
        _ms, counter = ms, noise >> 48 << 9  # starts in the lower half: room to count up
    else:
        counter = ((_prefix >> 64 & 0xFFF) + 1) << 14
        if counter >= 1 << 26:
            _ms, counter = _ms + 1, 0
    high, low = counter >> 14, counter & 0x3FFF
    _prefix = (_ms << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | (low << 48)
    _steps = 0x3FFF - low


def _more_noise() -> int:
    """Return 64 random bits. Read many at once from the kernel: that call costs more than all the rest."""
    global _noise
    _noise = iter(struct.unpack(f"!{_AT_ONCE}Q", os.urandom(8 * _AT_ONCE)))
    return next(_noise)


def _forget_noise() -> None:
    """Drop the random bits read before a fork: otherwise the child would make the same ids as its parent."""
    global _noise
    _noise = iter(())


os.register_at_fork(after_in_child=_forget_noise)


def new_claim_id() -> ClaimId:
    return ClaimId(uuid4())


def new_worker_id() -> WorkerId:
    return WorkerId(uuid4())
