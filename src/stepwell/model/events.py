"""A history: what happened to a workflow, in order, and the commands by which it went on.

Every event is one of two kinds. *Arrivals* come from outside and are delivered to the code: a task completed, a
timer fired, a signal came. *Commands* are what the code then asked for, and stand right behind the arrival that
made it ask. So a history can be told again: deliver an arrival, let the code run until it waits, and the commands
it issues must be those that follow.

Details may gain fields; none is ever lost or renamed, for histories outlive the code that wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from msgspec import Struct

from stepwell.model.run import Error


class EventType(StrEnum):
    WORKFLOW_STARTED = "WorkflowStarted"
    TASK_SCHEDULED = "TaskScheduled"
    TASK_COMPLETED = "TaskCompleted"
    TASK_FAILED = "TaskFailed"
    TASK_CANCELLED = "TaskCancelled"
    STEP_COMPLETED = "StepCompleted"
    STEP_FAILED = "StepFailed"
    CHILD_STARTED = "ChildStarted"
    CHILD_COMPLETED = "ChildCompleted"
    CHILD_FAILED = "ChildFailed"
    CHILD_CANCELLED = "ChildCancelled"
    TIMER_SCHEDULED = "TimerScheduled"
    TIMER_FIRED = "TimerFired"
    SIGNAL_RECEIVED = "SignalReceived"
    SIGNAL_TIMED_OUT = "SignalTimedOut"
    UPDATE_REQUESTED = "UpdateRequested"
    UPDATE_COMPLETED = "UpdateCompleted"
    UPDATE_FAILED = "UpdateFailed"
    UPDATE_REJECTED = "UpdateRejected"
    STATE_PUBLISHED = "StatePublished"
    VERSION_MARKED = "VersionMarked"
    CANCEL_REQUESTED = "CancelRequested"
    WORKFLOW_COMPLETED = "WorkflowCompleted"
    WORKFLOW_FAILED = "WorkflowFailed"
    WORKFLOW_CANCELLED = "WorkflowCancelled"
    WORKFLOW_TIMED_OUT = "WorkflowTimedOut"
    CONTINUED_AS_NEW = "ContinuedAsNew"


COMMANDS = frozenset({
    EventType.TASK_SCHEDULED, EventType.TASK_CANCELLED, EventType.CHILD_STARTED, EventType.CHILD_CANCELLED,
    EventType.TIMER_SCHEDULED, EventType.STATE_PUBLISHED, EventType.VERSION_MARKED, EventType.UPDATE_COMPLETED,
    EventType.UPDATE_FAILED, EventType.UPDATE_REJECTED,
})  # fmt: skip
"""What the code asked for."""

ENDS = frozenset({
    EventType.WORKFLOW_COMPLETED, EventType.WORKFLOW_FAILED, EventType.WORKFLOW_CANCELLED,
    EventType.WORKFLOW_TIMED_OUT, EventType.CONTINUED_AS_NEW,
})  # fmt: skip
"""Behind them nothing is delivered to this code any more."""


class Event(Struct, eq=False):
    """One fact. Which details it has is its type's affair; not frozen, since a busy workflow makes many."""

    idx: int
    type: EventType
    at: datetime
    command: int | None = None
    """The number of the command that it records, or answers."""
    name: str | None = None
    """Of a task, child, step, signal, update or patch; of a timer, the signal whose wait it ends."""
    run_id: UUID | None = None
    """Of a task or child; of an update, its own id."""
    takes: tuple[str, ...] | None = None
    """The parameters that a task or child was given."""
    value: bytes | None = None
    """A result, a signal's value, a published state, the next input: JSON."""
    error: Error | None = None
    state: str | None = None
    """Of TaskFailed and ChildFailed: how it finished, if not failed. Cancelled, expired or skipped. Of WorkflowFailed:
    whether it was rolled back."""
    attempt: int | None = None
    """Of a task or child, the last."""
    when: datetime | None = None
    """When a timer fires; of WorkflowStarted, when it must have ended, if it has a timeout."""
    signals: tuple[tuple[str, bytes], ...] | None = None
    """Of ContinuedAsNew: signals that came and were not yet waited for, in their order."""
    version: str | None = None
    """Of WorkflowStarted and ContinuedAsNew: the code that began."""
    id: UUID | None = None
    """Of what was sent from outside: who sends it again sends nothing new."""
    more: bool | None = None
    """Of a command: it was written before the code had issued all that it asked for upon the same arrival."""
    together: bool | None = None
    """Of TimerFired and SignalTimedOut: the next event is of the same moment, and the code runs upon both."""
    rollback: bool | None = None
    """Of a command, and the end of a step: a compensation of `workflow.on_rollback` asked for it."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Something that was sent to a workflow from outside."""

    id: UUID
    workflow: str | None
    """The name of the workflow; None if its answer was lost at the first try."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One event of a history, as people see it."""

    idx: int
    type: str
    at: datetime
    data: dict[str, Any]
