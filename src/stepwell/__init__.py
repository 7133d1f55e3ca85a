"""Stepwell: durable work on the Postgres you already have."""

from stepwell.app import App
from stepwell.context import NotInARun, current
from stepwell.definition import Task
from stepwell.handle import Run, SyncRun
from stepwell.model.errors import (
    AlreadyFinished,
    ClaimLost,
    DuplicateName,
    InvalidSetting,
    KeyConflict,
    NewerCheckpoint,
    NotDecodable,
    NotEncodable,
    NotFinished,
    NotFound,
    RunCancelled,
    RunExpired,
    RunFailed,
    RunUnsuccessful,
    SchemaError,
    StateError,
    StepwellError,
    Unavailable,
    UnknownName,
    UsageError,
    WrongUse,
)
from stepwell.model.explanation import Cause, Explanation, Why
from stepwell.model.notes import LogLine, Progress, Usage
from stepwell.model.queue import Limits, QueueInfo
from stepwell.model.raised import Fatal, RunError, Snooze
from stepwell.model.retry import Retry
from stepwell.model.run import Attempt, Error, Page, Reason, RunInfo
from stepwell.model.states import State
from stepwell.model.worker import Sample, WorkerInfo
from stepwell.options import Call
from stepwell.queue import Queue
from stepwell.sync import InEventLoop

__all__ = [
    "AlreadyFinished",
    "App",
    "Attempt",
    "Call",
    "Cause",
    "ClaimLost",
    "DuplicateName",
    "Error",
    "Explanation",
    "Fatal",
    "InEventLoop",
    "InvalidSetting",
    "KeyConflict",
    "Limits",
    "LogLine",
    "NewerCheckpoint",
    "NotDecodable",
    "NotEncodable",
    "NotFinished",
    "NotFound",
    "NotInARun",
    "Page",
    "Progress",
    "Queue",
    "QueueInfo",
    "Reason",
    "Retry",
    "Run",
    "RunCancelled",
    "RunError",
    "RunExpired",
    "RunFailed",
    "RunInfo",
    "RunUnsuccessful",
    "Sample",
    "SchemaError",
    "Snooze",
    "State",
    "StateError",
    "StepwellError",
    "SyncRun",
    "Task",
    "Unavailable",
    "UnknownName",
    "Usage",
    "UsageError",
    "Why",
    "WorkerInfo",
    "WrongUse",
    "current",
]
