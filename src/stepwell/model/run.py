"""A run, as the outside sees it, and a claim, as the worker that holds it does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from stepwell.model.ids import ClaimId, RunId, WorkerId
from stepwell.model.notes import LogLine, Usage
from stepwell.model.states import State

Kind = Literal["task", "workflow", "graph"]


class Reason(StrEnum):
    """Why an attempt failed, apart from what it said: a closed set, so that nobody parses messages."""

    RAISED = "raised"
    TIMED_OUT = "timed_out"
    WORKER_LOST = "worker_lost"
    GAVE_UP = "gave_up"


@dataclass(frozen=True, slots=True)
class Error:
    """What went wrong in an attempt, as plain data: no exception is ever rebuilt from a row."""

    type: str
    message: str
    reason: Reason
    code: str | None = None
    traceback: str | None = None
    types: tuple[str, ...] = ()
    """The names of the exception's bases, for the retry policy; not stored."""


OVERDUE = Error(
    "DeadlineExceeded", "its deadline passed", Reason.TIMED_OUT, types=("DeadlineExceeded", "TimeoutError", "Exception")
)


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Everything the tables say about one run. `started_at` and `worker` are of its last attempt."""

    id: UUID
    key: str | None
    kind: Kind
    name: str
    queue: str
    priority: int
    state: State
    input: dict[str, Any]
    result: Any
    error: Error | None
    attempt: int
    failures: int
    due_at: datetime | None
    expires_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    worker: UUID | None
    parent_id: UUID | None
    root_id: UUID
    retry_of: UUID | None
    node: str | None
    map_index: int | None
    tags: dict[str, Any]
    version: str | None = None
    """Of the code that a workflow began with; only where one run is asked for."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """A run by what people tell it from others by."""

    id: UUID
    name: str
    state: State
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Waits:
    """What a live run waits for."""

    signals: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    """The names of tasks, steps and children."""
    until: datetime | None = None
    blocked: Mapping[str, Any] | None = None
    """How the code of a workflow does not fit its history."""


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed for good, as its failure handler gets it."""

    id: UUID
    name: str
    input: dict[str, Any]
    error: Error
    tags: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a run. `outcome` is a final state, "running", or failed, snoozed or released."""

    run_id: UUID
    attempt: int
    outcome: str
    error: Error | None
    worker: UUID
    started_at: datetime
    ended_at: datetime | None
    host: str | None = None
    pid: int | None = None
    """Where its worker ran."""
    usage: Usage | None = None
    """Only of a body that ran in a process of its own."""
    logs: tuple[LogLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """Some runs, newest first. `next` goes into `after=` for the page that follows; None at the end."""

    items: list[RunInfo]
    next: UUID | None


class Claim(Struct, eq=False):
    """A worker's right to one attempt of a run: the pair (id, claim_id) is what every write must name.

    Not frozen, and compared by identity: one is made for every attempt on the hot path, its fields in the
    order of the columns.
    """

    claim_id: ClaimId
    id: RunId
    name: str
    queue: str
    priority: int
    attempt: int
    failures: int
    input: bytes
    retry: bytes
    timeout: timedelta | None
    key: str | None
    tags: bytes | None
    root_id: UUID | None
    alone: bool = False
    """It has lost its worker, and one more loss would be its last: no other such run beside it."""
    limited: bool = False
    """Its claim counts against a limit of its queue."""
    deadline: timedelta | None = None
    expiry: timedelta | None = None
    """What was left, when it was claimed, until it must have ended, and until it is no longer tried."""
    node: str | None = None
    """Which part of its parent it is, if its end is told there."""
    fresh: datetime | None = None
    """Of a workflow that has not begun, and for which nothing has come: when it was claimed.
    By the database's clock."""
    claimed_at: float = 0.0
    """By our own clock; only where something was left, or it is fresh."""
    usage: Usage | None = None
    """What the attempt took, if that was measured."""
    turn: bool = False
    """It is a turn of a workflow."""
    begun_at: float = 0.0
    """When its body began, by our own clock; only where a hook is to be told how long it took."""
    holder: UUID | None = None
    """The worker that held it, where another settles it."""

    @property
    def left(self) -> timedelta | None:
        """What is left now for another attempt."""
        limits = [each for each in (self.deadline, self.expiry) if each is not None]
        if not limits:
            return None
        passed = time.monotonic() - self.claimed_at if self.claimed_at else 0.0
        return min(limits) - timedelta(seconds=passed)

    def as_of_now(self) -> Claim:
        """Return the claim with the time that is left now, without reference to this process's clock."""
        if not self.claimed_at:
            return self
        passed = timedelta(seconds=time.monotonic() - self.claimed_at)
        deadline = None if self.deadline is None else self.deadline - passed
        expiry = None if self.expiry is None else self.expiry - passed
        return replace(self, claimed_at=0.0, deadline=deadline, expiry=expiry)

    @classmethod
    def bare(
        cls, run_id: RunId, claim_id: ClaimId, queue: str, attempt: int, deadline: timedelta | None = None
    ) -> Claim:
        """A claim of which only the fence is known, and what is left of its time: enough to give it back."""
        nothing = (None, None, None, None)
        return cls(claim_id, run_id, "", queue, 0, attempt, 0, b"{}", b"{}", *nothing, deadline=deadline)

    @property
    def is_over(self) -> bool:
        """Whether its time was out when it was looked at."""
        return self.deadline is not None and self.deadline <= timedelta(0)

    @property
    def fence(self) -> Fence:
        return self.id, self.claim_id


Fence = tuple[RunId, ClaimId]


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that ended otherwise than by an attempt: cancelled, expired or overdue."""

    id: UUID
    kind: str
    name: str
    queue: str
    attempt: int
    failures: int
    key: str | None
    tags: bytes | None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A run that was cancelled from outside."""

    run: EndedRun
    freed: str | None
    """The queue where it was running, if it was: a limit may have room there again."""


class Wanted(Struct, frozen=True):
    """What a worker would claim."""

    worker: WorkerId
    queues: Sequence[str] | None
    """None: every queue."""
    names: Sequence[str]
    limit: int
    alone: bool
    """Whether one of them may be a run that must be alone."""


class Claimant(Struct, frozen=True):
    """A worker, as claims see it."""

    worker: WorkerId
    queues: Sequence[str] | None
    """None: every queue."""
    names: Sequence[str]
    """The definitions that it can run."""


class Look(Struct, frozen=True):
    """An order for new claims: how many, and where."""

    claim_id: ClaimId
    limit: int
    alone: bool = False
    """Whether one of them may be a run that must be alone."""
    queue: str | None = None
    """Only from this queue, and nothing that is limited or must be alone."""
    limited: bool = False
    """Only limited work, of which there may be more than anyone may claim now."""


class Claimed(Struct, frozen=True):
    """The answer to a look for work."""

    claims: list[Claim]
    share: int = 0
    """The most that any queue could give."""
    others: bool = False
    """There is work that this look left out: limited work, or after a look at one queue, any other."""
    again: float | None = None
    """Only of limited work: seconds until there may be more, whatever is heard until then."""
    further: bool = False
    """Only of limited work: there is room, and there are more limit keys than one look takes in. The next look goes on
    behind these."""


class Place(Struct, frozen=True):
    """The last run that was taken from a queue: the next one stands behind it."""

    queue: str
    priority: int
    id: UUID


class Order(Struct, frozen=True):
    """What a worker would claim from queues that it knows to be busy: up to `share` from each."""

    claim_id: ClaimId
    places: Sequence[Place]
    share: int


class Exchanged(Struct, frozen=True):
    """What came of an exchange of completed runs for new claims."""

    claims: list[Claim]
    lost: set[RunId]
    """Those of the completed whose claim was lost."""
    said: bool = False
    """Whether the word that went with it was."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which runs a list shows. None lets everything through."""

    states: Sequence[State] | None = None
    name: str | None = None
    queue: str | None = None
    kind: str | None = None
    tags: dict[str, Any] | None = None
    error: str | None = None
    since: datetime | None = None
    blocked: bool = False
    """Only workflows whose code does not fit their history."""


class Finished(Struct, frozen=True):
    """The end of a run, for those who wait for it."""

    id: UUID
    name: str
    state: State
    result: bytes | None
    error: Error | None
    attempt: int
