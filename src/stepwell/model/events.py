"""The history of a workflow: its events in order, and the commands that its code issued.

Every event is one of two kinds. An *arrival* comes from outside and is delivered to the code: a task completed, a
timer fired, a signal came. A *command* is what the code then asked for; it is recorded right after the arrival that
caused it. This makes a history replayable: deliver an arrival, run the code until it waits, and the commands that it
issues must equal those that follow in the history.

Details may gain fields. No field is ever removed or renamed, because histories outlive the code that wrote them.
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
"""Types of events that record a command of the code."""

ENDS = frozenset({
    EventType.WORKFLOW_COMPLETED, EventType.WORKFLOW_FAILED, EventType.WORKFLOW_CANCELLED,
    EventType.WORKFLOW_TIMED_OUT, EventType.CONTINUED_AS_NEW,
})  # fmt: skip
"""Types of events that end the code: nothing is delivered to it after them."""


class Event(Struct, eq=False):
    """A fact of a history. Its type decides which details it has.

    Not frozen, because a busy workflow creates many.
    """

    idx: int
    type: EventType
    at: datetime
    command: int | None = None
    """The number of the command that the event records or answers."""
    name: str | None = None
    """The name of a task, child, step, signal, update or patch; for a timer, the signal whose wait it ends."""
    run_id: UUID | None = None
    """The id of a task or child; for an update, the update's own id."""
    takes: tuple[str, ...] | None = None
    """The names of the parameters that a task or child was given."""
    value: bytes | None = None
    """A result, a signal's value, a published state, the next input: JSON."""
    error: Error | None = None
    state: str | None = None
    """The final state in TaskFailed and ChildFailed, if it is not failed: cancelled, expired or skipped. In
    WorkflowFailed, ROLLED_BACK if the workflow was rolled back."""
    attempt: int | None = None
    """The last attempt of a task or child."""
    when: datetime | None = None
    """The time at which a timer fires; for WorkflowStarted, the deadline, if the workflow has a timeout."""
    signals: tuple[tuple[str, bytes], ...] | None = None
    """Signals that arrived and were not yet taken, in order of arrival; only in ContinuedAsNew."""
    version: str | None = None
    """The version of the code that began; only in WorkflowStarted and ContinuedAsNew."""
    id: UUID | None = None
    """The id of something sent from outside: sending the same id again has no effect."""
    more: bool | None = None
    """True if a command was written before the code had issued all commands that the same arrival caused."""
    together: bool | None = None
    """True in TimerFired and SignalTimedOut if the next event fired at the same moment: the code runs only after both
    are delivered."""
    rollback: bool | None = None
    """True if a compensation of `workflow.on_rollback` issued the command or step."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was sent to a workflow from outside."""

    id: UUID
    workflow: str | None
    """The name of the workflow; None if the answer to the first try was lost."""


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """An event of a history, as users see it."""

    idx: int
    type: str
    at: datetime
    data: dict[str, Any]
