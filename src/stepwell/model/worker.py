"""A worker, as users see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

WorkerState = Literal["live", "stopped", "lost"]


@dataclass(frozen=True, slots=True)
class Sample:
    """The load of a worker at one moment."""

    at: datetime
    cpu: float
    """Cores that its process used, on average, since the previous sample."""
    memory: int
    """Resident memory of its process, in bytes."""
    running: int
    """The number of claims that it held."""
    claimed: int
    """The number of claims since it started."""


@dataclass(frozen=True, slots=True)
class Unrecorded:
    """Outcomes that a worker cannot record because the database refuses its writes."""

    outcomes: int
    seconds: float
    """The time since the first refusal."""
    why: str
    """The error of the last refusal."""


@dataclass(frozen=True, slots=True)
class Vitals:
    """A worker's own measurements: a sample without its time, which the database adds."""

    cpu: float
    memory: int
    running: int
    claimed: int
    unrecorded: Unrecorded | None = None


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The current facts about one worker, from the tables."""

    id: UUID
    name: str
    host: str
    pid: int
    version: str
    queues: list[str] | None
    """The queues that it serves; None: all of them."""
    names: list[str] | None
    """The names of the definitions that it knows; None: its version does not report them."""
    slots: int
    running: int
    """The number of claims that it holds, according to the table of runs."""
    state: WorkerState
    """The worker's state; "lost": its lease ended, but it did not stop in order."""
    started_at: datetime
    lease_until: datetime
    stopped_at: datetime | None
    lease_left: timedelta
    """The time left of its lease, by the database's clock; negative after its end."""
    samples: list[Sample]
    """The last samples, newest first, one every 5 seconds."""
    versions: dict[str, str] | None = None
    """The versions of its workflows, by name; None: its version does not report them."""

    @property
    def claims_per_second(self) -> float | None:
        """The rate over the samples; None if there are too few."""
        return rate(self.samples)

    def serves(self, queue: str) -> bool:
        return self.queues is None or queue in self.queues

    def knows(self, name: str, pin: str | None = None) -> bool:
        """Tell whether the worker may know a definition. Assume so if it does not report names, except for a pin."""
        if pin is not None:
            return (self.versions or {}).get(name) == pin
        return self.names is None or name in self.names


def rate(samples: Sequence[Sample]) -> float | None:
    """Return the claims per second between the oldest and the newest sample."""
    if len(samples) < 2:
        return None
    newest, oldest = samples[0], samples[-1]
    seconds = (newest.at - oldest.at).total_seconds()
    return None if seconds <= 0 else (newest.claimed - oldest.claimed) / seconds
