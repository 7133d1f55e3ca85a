"""Ids are made by the caller, so that a run is known before the round trip and a start can be repeated.

A run's id is a UUIDv7: its first 48 bits are the time, so ids sort by creation and partition by day.
A claim's id is random: it is a capability, and must not be guessable from anything.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Iterator
from typing import NewType
from uuid import UUID, SafeUUID, uuid4

RunId = NewType("RunId", UUID)
ClaimId = NewType("ClaimId", UUID)
WorkerId = NewType("WorkerId", UUID)

_blank, _set, _UNKNOWN = UUID.__new__, object.__setattr__, SafeUUID.unknown
_lock = threading.Lock()
_last_ms = 0
_counter = 0
_noise: Iterator[tuple[int]] = iter(())


def new_run_id() -> RunId:
    """UUIDv7, strictly increasing within the process: a 26-bit counter follows the milliseconds."""
    global _last_ms, _counter
    with _lock:
        noise = _next_noise()
        ms = time.time_ns() // 1_000_000
        if ms > _last_ms:
            _last_ms, _counter = ms, noise >> 48 << 9  # starts in the lower half: room to count up
        else:
            _counter += 1
            if _counter >= 1 << 26:
                _last_ms, _counter = _last_ms + 1, 0
        ms, counter = _last_ms, _counter
    high, low = counter >> 14, counter & 0x3FFF
    value = (ms << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | (low << 48) | (noise & 0xFFFF_FFFF_FFFF)
    # What UUID(int=value) does, without its checks of what else might have been given.
    made = _blank(UUID)
    _set(made, "int", value)
    _set(made, "is_safe", _UNKNOWN)
    return RunId(made)


def _next_noise() -> int:
    """64 random bits. The kernel is asked for many at once: its answer costs more than all the rest."""
    global _noise
    for (noise,) in _noise:
        return noise
    _noise = struct.iter_unpack("!Q", os.urandom(8 * 512))
    return next(_noise)[0]


def _forget_noise() -> None:
    """A forked child would make its parent's ids."""
    global _noise
    _noise = iter(())


os.register_at_fork(after_in_child=_forget_noise)


def new_claim_id() -> ClaimId:
    return ClaimId(uuid4())


def new_worker_id() -> WorkerId:
    return WorkerId(uuid4())
