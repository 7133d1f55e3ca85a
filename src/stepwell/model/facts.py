"""The parts of an explanation: facts about a run and its surroundings, and the causes that follow from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from stepwell.model.notes import Progress
from stepwell.model.rate import Rate
from stepwell.model.states import State
from stepwell.model.worker import WorkerInfo


class Why(StrEnum):
    """The code of a cause: a closed set, so that programs need not parse texts."""

    FINISHED = "finished"
    RUNNING = "running"
    LEASE_EXPIRED = "lease_expired"
    NOT_DUE = "not_due"
    OVERDUE = "overdue"
    WAITING = "waiting"
    RUN_PAUSED = "run_paused"
    QUEUE_PAUSED = "queue_paused"
    QUEUE_NOT_SERVED = "queue_not_served"
    NAME_NOT_KNOWN = "name_not_known"
    MUST_BE_ALONE = "must_be_alone"
    CAP_FULL = "cap_full"
    KEY_CAP_FULL = "key_cap_full"
    RATE_SPENT = "rate_spent"
    SLOTS_FULL = "slots_full"
    IN_LINE = "in_line"
    NEXT = "next"
    EXPIRES = "expires"
    DEADLINE = "deadline"
    BLOCKED = "blocked"
    PINNED = "pinned"
    WAITS_FOR_SIGNAL = "waits_for_signal"
    SIGNAL_NOT_TAKEN = "signal_not_taken"
    WAITS_FOR_RUN = "waits_for_run"
    WAITS_FOR_TIME = "waits_for_time"


@dataclass(frozen=True, slots=True)
class Cause:
    """A reason: its code for programs, its text for people, and the facts behind it."""

    code: Why
    text: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reasons why a run is in its state. The first one is the one to fix first."""

    run_id: UUID
    name: str
    queue: str
    state: State
    limit_key: str | None
    deadline_at: datetime | None
    """The deadline of a run that is not finished."""
    causes: list[Cause]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """Facts about the run itself."""

    id: UUID
    name: str
    queue: str
    state: State
    attempt: int = 0
    failures: int = 0
    alone: bool = False
    limit_key: str | None = None
    debounced: bool = False
    created_at: datetime
    due_at: datetime | None = None
    expires_at: datetime | None = None
    deadline_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    """Type and message of the error of a failed run."""
    worker: UUID | None = None
    kind: str = "task"
    pin: str | None = None
    """The only version of its code that may run it."""
    signals: Sequence[str] = ()
    """Names of the signals that a workflow waits for."""
    awaits: Sequence[str] = ()
    """Names of the runs that a workflow waits for."""
    untaken: Mapping[str, int] = field(default_factory=dict)
    """The number of signals, by name, that arrived for a workflow and that its code has not taken."""
    blocked: Mapping[str, Any] | None = None
    """The mismatch between a workflow's code and its history."""
    paused_at: datetime | None = None
    paused_by: str | None = None
    pausing: bool = False


@dataclass(frozen=True, slots=True)
class Awaited:
    """A live run that a workflow waits for."""

    id: UUID
    name: str
    state: State


@dataclass(frozen=True, slots=True)
class EndFacts:
    """The end of the last attempt of an unfinished run."""

    attempt: int
    outcome: str
    error: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Taken:
    """The use of a concurrency limit, and some of the runs that count against it."""

    limit: int | None = None
    held: int = 0
    holders: Sequence[UUID] = ()

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.held >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """Facts about the queue of the run."""

    paused_at: datetime | None = None
    paused_by: str | None = None
    places: Taken = Taken()
    key_places: Taken = Taken()
    rate: Rate | None = None
    spent_until: datetime | None = None
    """The time until which the rate limit is used up; None if it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Facts about everything but the run itself, at the moment `now`."""

    now: datetime
    queue: QueueFacts = field(default_factory=QueueFacts)
    workers: Sequence[WorkerInfo] = ()
    """The live workers."""
    lone: Mapping[UUID, UUID] = field(default_factory=dict)
    """The run that must be alone, by the worker that runs it."""
    ahead: int = 0
    most_ahead: int = 10_000
    """The number at which counting `ahead` stopped."""
    ended: EndFacts | None = None
    holder: WorkerInfo | None = None
    """The worker that has claimed the run, if it has a row."""
    services: frozenset[str] = frozenset()
    """Names of the services that have a leader now."""
    calm_until: datetime | None = None
    """The time before which no claim is reaped, because the server has just started."""
    progress: Progress | None = None
    """The last progress that the run's body reported."""
    awaited: Sequence[Awaited] = ()
    """Some of the runs that a workflow waits for."""
    awaited_in_all: int = 0
    untold: Sequence[UUID] = ()
    """Runs that the workflow waits for although they are not live: it was not notified of their end."""
    quiet_since: datetime | None = None
    """The time of a waiting workflow's last event."""
