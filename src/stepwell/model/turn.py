"""A turn: one claim of a workflow. What it finds, what it writes, and where that leaves the run."""

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
    """What there is for a turn that was claimed, as of one moment."""

    recorded: int
    """Events in the history."""
    arrived: int
    """Arrivals ever, these included."""
    history_from: int
    parent_id: UUID | None
    now: datetime
    pausing: bool = False
    """It is to be paused when the turn ends."""
    arrivals: list[Event] = []
    """Not in the history yet; numbered by whoever delivers them."""
    read_at: float = 0.0
    """The worker's own clock at the answer, set by the worker."""


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A workflow that has begun and is not finished, for whoever tells its history again."""

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
    """What a turn writes. All of it, or if its claim is lost nothing."""

    claim: Claim
    recorded: int = 0
    """Events in the history, once it is written."""
    seen: int = 0
    """Arrivals that were delivered: should there be more, the run is pending again and does not wait."""
    took: bool = False
    """Whether any of them is among its events."""
    history_from: int = 1
    events: list[Event] = []
    starts: list[Start] = []
    here: Sequence[Start] = ()
    """Those that this worker runs itself, and at once: they are claimed as they are started."""
    cancels: list[UUID] = []
    """Runs that it started and waits for no longer."""
    children: list[tuple[Claim, Completed]] = []
    """Runs that it started, that ran here, and whose end it has been told."""
    published: bytes | None = None
    to: Literal["wait", "stay", "again", "block"] = "wait"
    """Where it leaves the run: waiting for something, in this turn, pending at once, waiting for other code."""
    due: datetime | None = None
    due_in: float | None = None
    """The same in seconds, from when it was reckoned."""
    waits_for: dict[str, Any] | None = None
    blocked: dict[str, Any] | None = None
    ended: Ended | None = None
    in_own_tx: bool = False
    """It is written with the commit of a step's own transaction."""
    only: Literal["records", "completes"] | None = None
    """What it does, if that takes one statement. Known once it leaves:

    records      events, and its turn goes on. Nothing that had arrived is among them
    completes    events, and its run has completed: nobody here waits for it, and nothing goes with it
    """

    def leave(self) -> Advance:
        """Nothing is added to it any more."""
        if self.to == "stay":
            if self.is_lone and not self.took and self.published is None:
                self.only = "records"
        elif self.ended is not None and self._only_completes(self.ended):
            self.only = "completes"
        return self

    @property
    def is_long(self) -> bool:
        """It takes the server a while."""
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
    """Where a turn left its run."""

    state: State
    arrived: int
    pausing: bool = False
    """It is to be paused when the turn ends: the sooner the better."""


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a write. An id that is missing has lost its claim."""

    turns: dict[UUID, Advanced]
    claims: Sequence[Claim]
    """Runs that were started to be run here."""


@dataclass(slots=True)
class Consequences:
    """What came of several. An id that is missing has lost its claim."""

    turns: dict[UUID, Advanced] = field(default_factory=dict)
    finished: Sequence[UUID] = ()
    claims: Sequence[Claim] = ()
    """Runs that were started to be run here."""
    wakes: set[str] = field(default_factory=set)
    """Queues with new work."""
    cancelled: list[UUID] = field(default_factory=list)
    gone: list[EndedRun] = field(default_factory=list)
    """What is known of the cancelled runs, for hooks."""
    asked: list[UUID] = field(default_factory=list)
    """Workflows that were asked to end."""
    heard: list[UUID] = field(default_factory=list)
    """Workflows in a turn for which something arrived."""
    soonest: timedelta | None = None
    """How soon the first run is due that was put off."""

    def due_in(self, wait: timedelta | None) -> None:
        """Note how soon a run is due."""
        if wait is not None and (self.soonest is None or wait < self.soonest):
            self.soonest = wait
