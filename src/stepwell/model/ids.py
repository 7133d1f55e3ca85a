"""Ids are made by the caller, so that a run is known before the round trip and a start can be repeated.

A run's id is a UUIDv7: its first 48 bits are the time, so ids sort by creation and partition by day.
A claim's id is random: it is a capability, and must not be guessable from anything.
"""

from __future__ import annotations

import os
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import NewType
from uuid import UUID, uuid4

RunId = NewType("RunId", UUID)
ClaimId = NewType("ClaimId", UUID)
WorkerId = NewType("WorkerId", UUID)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_lock = threading.Lock()
_last_ms = 0
_counter = 0


def new_run_id() -> RunId:
    """UUIDv7, strictly increasing within the process: a 26-bit counter follows the milliseconds."""
    global _last_ms, _counter
    noise = int.from_bytes(os.urandom(9), "big")
    with _lock:
        ms = time.time_ns() // 1_000_000
        if ms > _last_ms:
            _last_ms, _counter = ms, noise >> 47  # starts in the lower half: room to count up
        else:
            _counter += 1
            if _counter >= 1 << 26:
                _last_ms, _counter = _last_ms + 1, 0
        ms, counter = _last_ms, _counter
    high, low = counter >> 14, counter & 0x3FFF
    value = (ms << 80) | (0x7 << 76) | (high << 64) | (0b10 << 62) | (low << 48) | (noise & 0xFFFF_FFFF_FFFF)
    return RunId(UUID(int=value))


def new_claim_id() -> ClaimId:
    return ClaimId(uuid4())


def new_worker_id() -> WorkerId:
    return WorkerId(uuid4())


def first_id_at(moment: datetime) -> UUID:
    """Not above any id of this moment or later: the border of a partition, as `stepwell.first_id` draws it."""
    return UUID(int=(moment - _EPOCH) // timedelta(milliseconds=1) << 80)


def id_time(run_id: UUID) -> datetime:
    return datetime.fromtimestamp((run_id.int >> 80) / 1000, tz=UTC)
