"""A worker, as the outside sees it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

WorkerState = Literal["live", "stopped", "lost"]


@dataclass(frozen=True, slots=True)
class Sample:
    """How a worker fared at one moment."""

    at: datetime
    cpu: float
    """Cores that its process used since the sample before."""
    memory: int
    """Bytes of its process that were in memory."""
    running: int
    """Claims that it held."""
    claimed: int
    """Claims since it began."""


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """Outcomes that a worker cannot record, since the database refuses its writes."""

    outcomes: int
    seconds: float
    """For how long there have been any."""
    why: str
    """The error of the last refusal."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """What a worker knows of itself: a sample to be, whose time is the database's."""

    cpu: float
    memory: int
    running: int
    claimed: int
    unrecorded: Unrecorded | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """What the tables say about one worker, now."""

    id: UUID
    name: str
    host: str
    pid: int
    version: str
    queues: list[str] | None
    """Those that it serves; None: all of them."""
    names: list[str] | None
    """The definitions that it knows; None: it is of a version that does not say."""
    slots: int
    running: int
    """Claims that it holds, by the table of runs."""
    state: WorkerState
    """lost: its lease ended without its leaving."""
    started_at: datetime
    lease_until: datetime
    stopped_at: datetime | None
    lease_left: timedelta
    """By the database's clock; negative when it has ended."""
    samples: list[Sample]
    """The last of them, newest first: one every 5 seconds."""
    versions: dict[str, str] | None = None
    """Of its workflows, by name; None: it is of a version that does not say."""

    @property
    def claims_per_second(self) -> float | None:
        """Over the samples that are here; None if there are too few to tell."""
        return rate(self.samples)

    def serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def knows(self, name: str, pin: str | None = None) -> bool:
        """Whether it may: one that does not say is given the benefit of the doubt, but for the version of a pin."""
        if pin is not None:
            return (self.versions or {}).get(name) == pin
        return self.names is None or name in self.names


def rate(samples: Sequence[Sample]) -> float | None:
    """Claims per second between the oldest and the newest of these."""
    if len(samples) < 2:
        return None
    newest, oldest = samples[0], samples[-1]
    seconds = (newest.at - oldest.at).total_seconds()
    return None if seconds <= 0 else (newest.claimed - oldest.claimed) / seconds
