"""The link: ten verbs by which a worker asks the system. Their arguments and answers are values.

A link may pass them on as they are, or encode them and cross a network: every argument and answer is made of structs,
dataclasses and plain data, and every error has a type and a text. Times are durations, or come with the clock of the
sender. Beside the verbs there are `lease`, a channel of its own, and `hear`, the subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence, Set
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from msgspec import Struct

from stepwell.context.transaction import OwnTx
from stepwell.model.events import Event
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.notes import LineNote, Saved, StepNote
from stepwell.model.outcome import Completed, Move, Outcome
from stepwell.model.run import Claim, Claimed, Exchanged, Look, Order
from stepwell.model.turn import Advance, News, Written
from stepwell.model.worker import Vitals
from stepwell.worker.unrecorded import first_line

Settlement = tuple[Claim, Outcome]
Completion = tuple[Claim, Completed]


class DataRefused(Exception):
    """A write that the database refuses for the data in it: to repeat it is of no use."""

    def __init__(self, type: str, message: str) -> None:
        """`type` is the name of the database's error."""
        super().__init__(message)
        self.type = type

    @property
    def why(self) -> str:
        return first_line(self.type, str(self))


class NotRecorded(Exception):
    """A write of ours that failed in a body's own transaction, and took it back: the body is not to blame."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Recorded(Struct, frozen=True):
    """The answer to `settle`."""

    lost: set[RunId]
    """Runs whose claim was lost: nothing was recorded of them."""
    moves: list[Move | None]
    """The move of each outcome, in their order; None for completed runs."""
    blocked: set[RunId]
    """Runs that a transaction of somebody else holds locked: left out, and still claimed."""


class Hold(Protocol):
    """A channel that keeps the lease, and does nothing else."""

    async def renew(self) -> None: ...

    async def sample(self, vitals: Vitals) -> None:
        """Note how the worker fares. Nothing is decided by it, and any error may keep it from being noted."""
        ...

    async def leave(self) -> None:
        """Give up the lease: this worker is gone."""
        ...


class Link(Protocol):
    """Every verb raises Unavailable while the system cannot be reached. The call may then have had its effect."""

    async def claim(self, look: Look) -> Claimed:
        """Claim up to `look.limit` runs that this worker can run."""
        ...

    async def exchange(self, completed: Sequence[Completion], order: Order) -> Exchanged:
        """Record completed runs, and claim what is ordered, in one step: both are done, or neither is."""
        ...

    async def settle(self, settlements: Sequence[Settlement], *, repeated: bool) -> Recorded:
        """Record how attempts ended, all of them in one transaction. Raises DataRefused if one of them can never be
        recorded as it is.

        `repeated` says that an earlier try lost its answer. A lost claim is then looked up before it is believed,
        since that try may have settled it; and runs that a transaction holds locked are left out, so that they hold up
        no other.
        """
        ...

    async def news(self, claims: Sequence[Claim]) -> dict[UUID, News]:
        """Read what there is for turns that are held. An id that is missing has lost its claim."""
        ...

    async def history(self, run_id: UUID, *, after: int) -> list[Event]:
        """Read the history of a run, behind this event."""
        ...

    async def advance(self, advances: Sequence[Advance], claim_id: ClaimId) -> Written:
        """Write what turns wrote. Either all of them only record events (`only`), or none does.

        An id that is missing from the answer has lost its claim. Turns that move others with them are written in one
        transaction: ClaimLost, and nothing is written, if one of these has lost its claim, or one of the runs whose
        end it takes along. DataRefused as `settle`.
        """
        ...

    async def note(self, steps: Sequence[StepNote], lines: Sequence[LineNote], *, now: float) -> None:
        """Write down progress and log lines. A repeated call does no harm. `now` is the sender's clock, by which the
        notes have their times."""
        ...

    async def save(self, claim: Claim, state: bytes, *, schema: int, after: int | None) -> tuple[int, bool]:
        """Save a checkpoint in place of the version that its attempt saved last. Return the version that is there now,
        and True if it is this one. Raises ClaimLost, or NewerCheckpoint."""
        ...

    async def load(self, claim: Claim) -> Saved | None:
        """Read the checkpoint of the claim's run. Raises ClaimLost."""
        ...

    async def held(self, claim_ids: Sequence[ClaimId] | None) -> list[Claim]:
        """Read which claims the system says this worker holds, of these claims or at all: bare claims."""
        ...

    # -- beside the verbs

    def lease(self) -> AbstractAsyncContextManager[Hold]:
        """Open a channel for the lease that shares nothing with the verbs, for the lease's own thread and loop."""
        ...

    def hear(
        self,
        *,
        work: Callable[[str | None], None],
        cancelled: Callable[[Container[str] | None], None],
        arrived: Callable[[Container[str] | None], Set[str]],
    ) -> Callable[[], None]:
        """Subscribe to announcements: of work (in a queue; None: in any), of runs that were cancelled, and of runs in a
        turn for which something arrived (None: any). The answer ends the subscription. `arrived` returns the runs that
        are in a turn here: these need not be announced to other workers."""
        ...

    @property
    def hears(self) -> bool:
        """True while announcements arrive."""
        ...

    @property
    def queues(self) -> Sequence[str] | None:
        """The queues that this worker serves; None: every one."""
        ...

    @property
    def lend(self) -> Callable[[], OwnTx] | None:
        """Make a transaction for a body's own writes, with whose commit its run is completed. None where the link has
        no connection that a body could use."""
        ...
