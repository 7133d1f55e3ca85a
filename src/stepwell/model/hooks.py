"""Events that hooks receive: one value for each thing that happened to a run or a worker."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args
from uuid import UUID

from stepwell.model.run import Error, Kind

RunEventName = Literal[
    "run.completed", "run.failed", "run.retrying", "run.snoozed", "run.cancelled", "run.expired", "workflow.blocked"
]
WorkerEventName = Literal["worker.ready", "worker.stopping", "worker.stopped", "worker.lost"]
EventName = RunEventName | WorkerEventName

RUN_EVENTS: tuple[RunEventName, ...] = get_args(RunEventName)
WORKER_EVENTS: tuple[WorkerEventName, ...] = get_args(WorkerEventName)
EVENTS: tuple[str, ...] = (*RUN_EVENTS, *WORKER_EVENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEvent:
    """The end of an attempt or of a run. It is sent after the commit."""

    type: RunEventName
    run_id: UUID
    name: str
    kind: Kind
    queue: str
    attempt: int
    """The number of times the run was claimed, this attempt included."""
    failures: int
    """The number of failed attempts, this one included."""
    max_attempts: int | None = None
    """The number of attempts that the retry policy allows; only where an attempt failed."""
    error: Error | None = None
    """The error, for run.failed, run.retrying and workflow.blocked."""
    next_at: datetime | None = None
    """The time of the next attempt, for run.retrying and run.snoozed, by this machine's clock."""
    duration: float | None = None
    """Seconds that a task's attempt took, its commit included; None if it ran elsewhere, and for a workflow."""
    worker: UUID | None = None
    """The worker of the attempt; None if the run ended without one."""
    key: str | None = None
    tags: dict[str, Any] = field(default_factory=dict)
    at: datetime
    """The time at which the event was created, by this machine's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEvent:
    """A change in the life of a worker."""

    type: WorkerEventName
    worker: UUID
    name: str
    host: str
    pid: int
    queues: tuple[str, ...] | None
    """The queues that the worker serves; None: all of them."""
    slots: int
    at: datetime
    """The time at which the event was created, by this machine's clock."""


Event = RunEvent | WorkerEvent
