"""A run, as users see it, and a claim, as its worker sees it."""

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
    """The reason why an attempt failed: a closed set, so that programs need not parse messages."""

    RAISED = "raised"
    TIMED_OUT = "timed_out"
    WORKER_LOST = "worker_lost"
    GAVE_UP = "gave_up"


@dataclass(frozen=True, slots=True)
class Error:
    """The error of an attempt, as plain data: no exception is ever rebuilt from a row."""

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
    """All stored facts about one run. `started_at` and `worker` belong to its last attempt."""

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
    """The version of the code with which a workflow began; only where a single run is read."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """The few facts by which people recognise a run."""

    id: UUID
    name: str
    state: State
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Waits:
    """Everything that a live run waits for."""

    signals: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    """The names of tasks, steps and children."""
    until: datetime | None = None
    blocked: Mapping[str, Any] | None = None
    """The mismatch between a workflow's code and its history."""


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed for good, as its failure handler receives it."""

    id: UUID
    name: str
    input: dict[str, Any]
    error: Error
    tags: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt of a run. `outcome` is a final state, "running", or failed, snoozed or released."""

    run_id: UUID
    attempt: int
    outcome: str
    error: Error | None
    worker: UUID
    started_at: datetime
    ended_at: datetime | None
    host: str | None = None
    pid: int | None = None
    """The process of its worker."""
    usage: Usage | None = None
    """The resources that the body used, if it ran in a process of its own."""
    logs: tuple[LogLine, ...] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """A page of runs, newest first. Pass `next` as `after=` to get the next page; it is None on the last one."""

    items: list[RunInfo]
    next: UUID | None


class Claim(Struct, eq=False):
    """A worker's right to one attempt of a run. Every write of the worker must name the pair (id, claim_id).

    It is not frozen, and compared by identity, because the hot path creates one for every attempt. Its fields have the
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
    """True if the run has lost a worker and one more loss would fail it: then no other such run may run beside it."""
    limited: bool = False
    """True if the claim counts against a limit of its queue."""
    deadline: timedelta | None = None
    expiry: timedelta | None = None
    """The time that was left at the claim: until its deadline, and until no further attempt may start."""
    node: str | None = None
    """The run's place in its parent, if the parent is notified of its end."""
    fresh: datetime | None = None
    """The time of the claim, by the database's clock; only for a workflow that has not begun and has no arrivals."""
    claimed_at: float = 0.0
    """The time of the claim, by the worker's monotonic clock; only if `deadline`, `expiry` or `fresh` is set."""
    usage: Usage | None = None
    """The resources that the attempt used, if they were measured."""
    turn: bool = False
    """True if the attempt is a turn of a workflow."""
    begun_at: float = 0.0
    """The start of its body, by the worker's monotonic clock; only if a hook needs the duration."""
    holder: UUID | None = None
    """The worker that held the claim, if another one settles it."""

    @property
    def left(self) -> timedelta | None:
        """The time that is left now for another attempt."""
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
        """Return a claim with only its fence and its remaining time: enough to release it."""
        nothing = (None, None, None, None)
        return cls(claim_id, run_id, "", queue, 0, attempt, 0, b"{}", b"{}", *nothing, deadline=deadline)

    @property
    def is_over(self) -> bool:
        """True if its deadline had passed when it was claimed."""
        return self.deadline is not None and self.deadline <= timedelta(0)

    @property
    def fence(self) -> Fence:
        return self.id, self.claim_id


Fence = tuple[RunId, ClaimId]


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that ended without an attempt's outcome: cancelled, expired or overdue."""

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
    """The queue in which the run was running, if it was: a limit may have room there again."""


class Wanted(Struct, frozen=True):
    """A worker's request for claims."""

    worker: WorkerId
    queues: Sequence[str] | None
    """The queues to claim from; None: every queue."""
    names: Sequence[str]
    limit: int
    alone: bool
    """True if one of the claims may be a run that must be alone."""


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
    """True if one of them may be a run that must be alone."""
    queue: str | None = None
    """The one queue to claim from; nothing that is limited or must be alone. None: every queue."""
    limited: bool = False
    """True to claim only limited work, of which there may be more than any worker may claim now."""


class Claimed(Struct, frozen=True):
    """The answer to a look for work."""

    claims: list[Claim]
    share: int = 0
    """The most that any queue could give."""
    others: bool = False
    """True if this look left work out: limited work, or after a look at one queue, any other."""
    again: float | None = None
    """Seconds until there may be more limited work, whatever is announced until then."""
    further: bool = False
    """True if there is room for limited work, and there are more limit keys than one look takes in. The next look goes
    on behind these."""


class Place(Struct, frozen=True):
    """A cursor: the last run that was claimed from a queue. The next claim continues after it."""

    queue: str
    priority: int
    id: UUID


class Order(Struct, frozen=True):
    """A worker's request for claims from queues that it knows to be busy: up to `share` from each."""

    claim_id: ClaimId
    places: Sequence[Place]
    share: int


class Exchanged(Struct, frozen=True):
    """The result of an exchange of completed runs for new claims."""

    claims: list[Claim]
    lost: set[RunId]
    """The completed runs whose claim was lost."""
    said: bool = False
    """True if the notification that was passed along was sent with the commit."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter for lists of runs. A field that is None filters nothing."""

    states: Sequence[State] | None = None
    name: str | None = None
    queue: str | None = None
    kind: str | None = None
    tags: dict[str, Any] | None = None
    error: str | None = None
    since: datetime | None = None
    blocked: bool = False
    """True to show only workflows whose code does not fit their history."""


class Finished(Struct, frozen=True):
    """The end of a run, as callers that await its result receive it."""

    id: UUID
    name: str
    state: State
    result: bytes | None
    error: Error | None
    attempt: int
