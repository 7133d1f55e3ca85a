"""What a body says on its way: how far it is, lines of its log, its checkpoint; and what running it took."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from stepwell.model.ids import RunId


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one step of a run is, as its body last said."""

    step: str
    done: float
    total: float | None
    detail: dict[str, Any] | None
    at: datetime


@dataclass(frozen=True, slots=True)
class LogLine:
    """What a body wrote to a logger."""

    attempt: int
    at: datetime
    level: str
    logger: str
    message: str


@dataclass(frozen=True, slots=True)
class Usage:
    """What an attempt in a process of its own took: CPU seconds, and bytes of memory at its peak.

    A process that died could not say: then there is only the signal, or the exit code, by which it did.
    """

    cpu: float | None = None
    memory: int | None = None
    signal: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint as it is stored."""

    version: int
    schema: int
    state: bytes


@dataclass(frozen=True, slots=True)
class StepNote:
    """Progress on its way to the table. `at` is by the sender's monotonic clock: the table counts back from its own."""

    run_id: RunId
    attempt: int
    step: str
    done: float
    total: float | None
    detail: bytes | None
    at: float


@dataclass(frozen=True, slots=True)
class LineNote:
    """A line on its way to the table: the nth of its attempt."""

    run_id: RunId
    attempt: int
    idx: int
    level: str
    logger: str
    message: str
    at: float


MOST_LINES, MOST_BYTES, MOST_STEPS = 1000, 64 * 1024, 100
"""Of one attempt: lines, and bytes of them, and steps whose progress it tells."""


@dataclass(slots=True)
class Saves:
    """What an attempt knows of the checkpoints that it saved."""

    last: int | None = None
    """The version of the last of them."""
    in_doubt: bool = False
    """Whether one was given up, which may arrive yet."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One at a time: each takes the place of the one before."""


@dataclass(slots=True)
class Noted:
    """What an attempt has said so far, counted, so that a body that never stops talking fills no table."""

    lines: int = 0
    size: int = 0
    dropped: int = 0
    """Lines that were left out. From the first on, all are."""
    steps: set[str] = field(default_factory=set)
    saves: Saves | None = None

    def takes_line(self, size: int) -> bool:
        """Whether there is room for another line. It is counted, one way or the other."""
        if self.dropped or self.lines >= MOST_LINES or self.size + size > MOST_BYTES:
            self.dropped += 1
            return False
        self.lines += 1
        self.size += size
        return True

    def takes_step(self, step: str) -> bool:
        if len(self.steps) < MOST_STEPS:
            self.steps.add(step)
        return step in self.steps
