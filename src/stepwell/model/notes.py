"""Notes of a running body: progress, log lines and checkpoints; and the resources that it used."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from stepwell.model.ids import RunId


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one step of a run, as its body last reported it."""

    step: str
    done: float
    total: float | None
    detail: dict[str, Any] | None
    at: datetime


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that a body wrote to a logger."""

    attempt: int
    at: datetime
    level: str
    logger: str
    message: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources of an attempt in a process of its own: CPU seconds, and the peak of its memory in bytes.

    A process that died could not report them. Then only its signal or exit code is known.
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
    """A log line on its way to the table: number `idx` of its attempt."""

    run_id: RunId
    attempt: int
    idx: int
    level: str
    logger: str
    message: str
    at: float


MOST_LINES, MOST_BYTES, MOST_STEPS = 1000, 64 * 1024, 100
"""Limits for one attempt: log lines, bytes of log lines, and steps that report progress."""


@dataclass(slots=True)
class Saves:
    """The state of an attempt's own checkpoint saves."""

    last: int | None = None
    """The version of the last checkpoint."""
    in_doubt: bool = False
    """True if the attempt gave up waiting for a save that may still be written."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock that allows one save at a time: each replaces the one before."""


@dataclass(slots=True)
class Noted:
    """Counts of an attempt's notes so far. They keep a body that writes without end from filling the table."""

    lines: int = 0
    size: int = 0
    dropped: int = 0
    """The number of dropped lines. Once a line is dropped, all later ones are."""
    steps: set[str] = field(default_factory=set)
    saves: Saves | None = None

    def takes_line(self, size: int) -> bool:
        """Tell whether there is room for another line, and count it as written or dropped."""
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
