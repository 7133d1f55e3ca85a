"""What an explanation is made of: the facts about a run and what stands around it, and the causes they come to."""

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
    """What a cause is, for programs: a closed set, so that nobody parses texts."""

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
    """One reason: what it is for programs, what it means for people, and the facts it rests on."""

    code: Why
    text: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a run is where it is. The first reason is the one to mend first."""

    run_id: UUID
    name: str
    queue: str
    state: State
    limit_key: str | None
    deadline_at: datetime | None
    """As long as it is not finished."""
    causes: list[Cause]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
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
    """Of a run that failed: type and message."""
    worker: UUID | None = None
    kind: str = "task"
    pin: str | None = None
    """The version of its code that alone may run it."""
    signals: Sequence[str] = ()
    """Those that a workflow waits for."""
    awaits: Sequence[str] = ()
    """The names of the runs that it waits for."""
    untaken: Mapping[str, int] = field(default_factory=dict)
    """Signals that arrived for a workflow and that its code has not taken: how many of each name."""
    blocked: Mapping[str, Any] | None = None
    """How the code of a workflow does not fit its history."""
    paused_at: datetime | None = None
    paused_by: str | None = None
    pausing: bool = False


@dataclass(frozen=True, slots=True)
class Awaited:
    """A run that a workflow waits for."""

    id: UUID
    name: str
    state: State


@dataclass(frozen=True, slots=True)
class Ended:
    """How the last attempt ended, of a run that has not finished."""

    attempt: int
    outcome: str
    error: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Taken:
    """Places of a limit, and some of the runs that hold them."""

    limit: int | None = None
    held: int = 0
    holders: Sequence[UUID] = ()

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.held >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    paused_at: datetime | None = None
    paused_by: str | None = None
    places: Taken = Taken()
    key_places: Taken = Taken()
    rate: Rate | None = None
    spent_until: datetime | None = None
    """If the rate is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything but the run itself, at the moment `now`."""

    now: datetime
    queue: QueueFacts = field(default_factory=QueueFacts)
    workers: Sequence[WorkerInfo] = ()
    """The live ones."""
    lone: Mapping[UUID, UUID] = field(default_factory=dict)
    """Of the workers that run a run that must be alone: which one."""
    ahead: int = 0
    most_ahead: int = 10_000
    """How far was counted."""
    ended: Ended | None = None
    holder: WorkerInfo | None = None
    """Who has claimed it, if there is such a worker."""
    services: frozenset[str] = frozenset()
    """Those that a worker leads now."""
    calm_until: datetime | None = None
    """Nobody is reaped before: the server has just come up."""
    progress: Progress | None = None
    """What its body said last."""
    awaited: Sequence[Awaited] = ()
    """Some of the runs that a workflow waits for."""
    awaited_in_all: int = 0
    untold: Sequence[UUID] = ()
    """Those that it waits for though they are not live: nobody has told it so."""
    quiet_since: datetime | None = None
    """When a workflow last went on."""
