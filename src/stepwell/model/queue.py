"""A queue, as the outside sees it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stepwell.model.rate import Rate

COUNTED = 100_000
"""Pending runs of a queue are counted up to here: beyond, it says at least that many."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a queue allows, and keeps; None is no limit, and nothing special."""

    concurrency: int | None = None
    """Runs of it that may be running, on all workers together."""
    rate: Rate | None = None
    """Claims of its runs, on all workers together."""
    per_key: int | None = None
    """Runs with the same limit key that may be running; what their task says, if None."""
    keep: str | None = None
    """How long its finished runs are kept, if not as long as the rest: "none" or "forever"."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """What the tables say about one queue, now."""

    name: str
    limits: Limits
    paused_at: datetime | None
    paused_by: str | None
    pending: int
    """Or COUNTED, if there are more."""
    running: int
    first_pending: datetime | None
    """When the run that comes next was started; with limit keys, the oldest of the first hundred."""
    workers: int
    """Live workers that serve it."""
