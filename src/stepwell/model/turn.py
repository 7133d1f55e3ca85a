"""A turn, which is one claim of a workflow: what it reads, what it writes, and the state in which it leaves the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from msgspec import Struct

from stepwell.model.commands import Ended
from stepwell.model.events import Event, EventType
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim, EndedRun
from stepwell.model.start import Start
from stepwell.model.states import State


class News(Struct, eq=False):
    """The workflow's position and new arrivals at the start of a turn, as of one moment."""

    recorded: int
    """The number of events in the history."""
    arrived: int
    """The number of arrivals ever, including these."""
    history_from: int
    parent_id: UUID | None
    now: datetime
    pausing: bool = False
    """True if the run is to be paused when the turn ends."""
    arrivals: list[Event] = []
    """Arrivals that the history does not have yet. The turn that delivers them numbers them."""
    read_at: float = 0.0
    """The worker's own clock at the answer, set by the worker."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A workflow that has begun and is not finished, with what a replay of it needs."""

    id: UUID
    name: str
    pin: str | None
    key: str | None
    queue: str
    parent_id: UUID | None
    root_id: UUID | None
    tags: bytes | None
    input: bytes
    history_from: int


class Advance(Struct, eq=False):
    """The writes of a turn: all of them in one commit, or none if the claim is lost."""

    claim: Claim
    recorded: int = 0
    """The number of events in the history after this write."""
    seen: int = 0
    """The number of arrivals delivered. If more have arrived, the run becomes pending again instead of waiting."""
    took: bool = False
    """True if `events` contains an arrival."""
    history_from: int = 1
    events: list[Event] = []
    starts: list[Start] = []
    here: Sequence[Start] = ()
    """Starts that this worker runs itself at once: they are inserted already claimed."""
    cancels: list[UUID] = []
    """Runs that the workflow started and no longer awaits."""
    children: list[tuple[Claim, Completed]] = []
    """Completed runs that the workflow started and that ran in this worker; their ends are delivered already."""
    published: bytes | None = None
    to: Literal["wait", "stay", "again", "block"] = "wait"
    """The state in which the write leaves the run: waiting, still in this turn, pending at once, or blocked until other
    code comes."""
    due: datetime | None = None
    due_in: float | None = None
    """Seconds until `due`, counted from the moment of its computation."""
    waits_for: dict[str, Any] | None = None
    blocked: dict[str, Any] | None = None
    ended: Ended | None = None
    in_own_tx: bool = False
    """True if it is written with the commit of a step's own transaction."""
    only: Literal["records", "completes"] | None = None
    """The kind of write, if a single statement suffices. `leave` sets it:

    records      write events that contain no arrival; the turn goes on
    completes    write events and complete the run, which has no parent to notify and moves no other run
    """

    def leave(self) -> Advance:
        """Seal the write: nothing is added to it any more."""
        if self.to == "stay":
            if self.is_lone and not self.took and self.published is None:
                self.only = "records"
        elif self.ended is not None and self._only_completes(self.ended):
            self.only = "completes"
        return self

    @property
    def is_long(self) -> bool:
        """True if the server needs a while for it."""
        return len(self.events) >= 200

    def _only_completes(self, ended: Ended) -> bool:
        return (
            ended.type is EventType.WORKFLOW_COMPLETED
            and self.claim.node is None
            and self.published is None
            and not (self.starts or self.here or self.cancels or self.children or self.in_own_tx)
        )

    @property
    def is_lone(self) -> bool:
        """Nothing moves but its own row."""
        return not (self.starts or self.here or self.cancels or self.children or self.ended or self.in_own_tx)


class Advanced(Struct, frozen=True):
    """The state in which a turn left its run."""

    state: State
    arrived: int
    pausing: bool = False
    """True if the run is to be paused when the turn ends, so the turn should end soon."""


@dataclass(frozen=True, slots=True)
class Written:
    """The result of one write of turns. A missing id has lost its claim."""

    turns: dict[UUID, Advanced]
    claims: Sequence[Claim]
    """Claims of the runs that were started for this worker."""


@dataclass(slots=True)
class Consequences:
    """The consequences of several moves in one transaction. A missing id has lost its claim."""

    turns: dict[UUID, Advanced] = field(default_factory=dict)
    finished: Sequence[UUID] = ()
    claims: Sequence[Claim] = ()
    """Claims of the runs that were started for this worker."""
    wakes: set[str] = field(default_factory=set)
    """Queues with new work."""
    cancelled: list[UUID] = field(default_factory=list)
    gone: list[EndedRun] = field(default_factory=list)
    """Facts about the cancelled runs, for hooks."""
    asked: list[UUID] = field(default_factory=list)
    """Workflows that received a cancellation request."""
    heard: list[UUID] = field(default_factory=list)
    """Workflows in a turn that have new arrivals."""
    soonest: timedelta | None = None
    """The shortest delay among the runs that were rescheduled."""

    def due_in(self, wait: timedelta | None) -> None:
        """Note the delay of a rescheduled run."""
        if wait is not None and (self.soonest is None or wait < self.soonest):
            self.soonest = wait
