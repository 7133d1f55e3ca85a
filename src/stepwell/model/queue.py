"""A queue, as users see it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stepwell.model.rate import Rate

COUNTED = 100_000
"""The number at which counting a queue's pending runs stops: then there are at least that many."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and retention of a queue. None means no limit, or the default retention."""

    concurrency: int | None = None
    """The most runs of the queue that may be running, on all workers together."""
    rate: Rate | None = None
    """The rate limit of claims of its runs, on all workers together."""
    per_key: int | None = None
    """The most runs with the same limit key that may be running; None: the task's own setting applies."""
    keep: str | None = None
    """Retention of its finished runs, if it is not the default: "none" or "forever"."""


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue's current settings and counts, from the tables."""

    name: str
    limits: Limits
    paused_at: datetime | None
    paused_by: str | None
    pending: int
    """The number of pending runs, or COUNTED if there are more."""
    running: int
    first_pending: datetime | None
    """The time at which the next run was started; with limit keys, the oldest of the first hundred."""
    workers: int
    """The number of live workers that serve the queue."""
