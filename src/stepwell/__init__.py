"""Stepwell: durable work on the Postgres you already have."""

from stepwell.app import App
from stepwell.context.checkpoints import Checkpoint
from stepwell.context.current import NotInARun, current
from stepwell.context.workflow import NotInAWorkflow, workflow
from stepwell.definitions.definition import Task
from stepwell.definitions.options import Call
from stepwell.definitions.queue import Queue
from stepwell.definitions.run import Run, SyncRun
from stepwell.definitions.workflow import Step, Workflow
from stepwell.model.errors import (
    AlreadyFinished,
    ClaimLost,
    DuplicateName,
    InvalidSetting,
    KeyConflict,
    NewerCheckpoint,
    Nondeterminism,
    NotDecodable,
    NotDurable,
    NotEncodable,
    NotFinished,
    NotFound,
    RunCancelled,
    RunExpired,
    RunFailed,
    RunUnsuccessful,
    SchemaError,
    StateError,
    StepFailed,
    StepwellError,
    Unavailable,
    UnknownName,
    UpdateFailed,
    UpdateRejected,
    UsageError,
    WrongUse,
)
from stepwell.model.explanation import Cause, Explanation, Why
from stepwell.model.hooks import RunEvent, WorkerEvent
from stepwell.model.notes import LogLine, Progress, Usage
from stepwell.model.queue import Limits, QueueInfo
from stepwell.model.raised import Fatal, RunError, Snooze
from stepwell.model.rate import Rate
from stepwell.model.retry import Retry
from stepwell.model.run import Attempt, Error, FailedRun, Filter, Glimpse, Page, Reason, RunInfo
from stepwell.model.states import State
from stepwell.model.worker import Sample, WorkerInfo
from stepwell.operator.errors import AmbiguousId, NoHistory, WrongInput
from stepwell.operator.operator import Operator
from stepwell.sync import InEventLoop

__all__ = [
    "AlreadyFinished",
    "AmbiguousId",
    "App",
    "Attempt",
    "Call",
    "Cause",
    "Checkpoint",
    "ClaimLost",
    "DuplicateName",
    "Error",
    "Explanation",
    "FailedRun",
    "Fatal",
    "Filter",
    "Glimpse",
    "InEventLoop",
    "InvalidSetting",
    "KeyConflict",
    "Limits",
    "LogLine",
    "NewerCheckpoint",
    "NoHistory",
    "Nondeterminism",
    "NotDecodable",
    "NotDurable",
    "NotEncodable",
    "NotFinished",
    "NotFound",
    "NotInARun",
    "NotInAWorkflow",
    "Operator",
    "Page",
    "Progress",
    "Queue",
    "QueueInfo",
    "Rate",
    "Reason",
    "Retry",
    "Run",
    "RunCancelled",
    "RunError",
    "RunEvent",
    "RunExpired",
    "RunFailed",
    "RunInfo",
    "RunUnsuccessful",
    "Sample",
    "SchemaError",
    "Snooze",
    "State",
    "StateError",
    "Step",
    "StepFailed",
    "StepwellError",
    "SyncRun",
    "Task",
    "Unavailable",
    "UnknownName",
    "UpdateFailed",
    "UpdateRejected",
    "Usage",
    "UsageError",
    "Why",
    "WorkerEvent",
    "WorkerInfo",
    "Workflow",
    "WrongInput",
    "WrongUse",
    "current",
    "workflow",
]
