"""The link: sixteen verbs that a worker asks of the system. How they travel is the link's business."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from stepwell.context.transaction import OwnTx
from stepwell.model.events import Event
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.notes import LineNote, Saved, StepNote
from stepwell.model.outcome import Completed, Move, Outcome
from stepwell.model.run import Claim, Claimed, ClaimedLimited, Exchanged, Order
from stepwell.model.turn import Advance, Advanced, News, Written
from stepwell.model.worker import Vitals

Settlement = tuple[Claim, Outcome]
Completion = tuple[Claim, Completed]


class DataRefused(Exception):
    """A write that the database refuses for the data in it: to repeat it is of no use."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class NotRecorded(Exception):
    """A write of ours that failed in a body's own transaction, and took it back: the body is not to blame."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Recorded:
    """What came of a group of outcomes."""

    lost: set[RunId]
    """Runs whose claim was lost: nothing was recorded of them."""
    moves: Mapping[Claim, Move]
    """What was decided for all that did not complete."""


class Hold(Protocol):
    """A way to keep the lease, on a connection that does nothing else."""

    async def renew(self) -> None: ...

    async def sample(self, vitals: Vitals) -> None:
        """Note how the worker fares. Nothing is decided by it, and anything may keep it from being noted."""
        ...


class Link(Protocol):
    """Every verb raises Unavailable while the system cannot be reached. It may then have happened."""

    async def claim(self, claim_id: ClaimId, limit: int, *, alone: bool) -> Claimed:
        """Up to `limit` runs that this worker can run, now its own; one that must be alone only if `alone`."""
        ...

    async def claim_from(self, queue: str, claim_id: ClaimId, limit: int) -> Claimed:
        """Claim from one queue only, and nothing that is limited or must be alone: if there are `others`, `claim` finds
        them."""
        ...

    async def claim_limited(self, claim_id: ClaimId, limit: int, *, alone: bool) -> ClaimedLimited:
        """Claim limited work, of which there may be more than anyone may claim now."""
        ...

    async def exchange(self, completed: Sequence[Completion], order: Order) -> Exchanged:
        """Record these, and claim what is ordered, in one step: both are done, or neither is."""
        ...

    async def settle(self, settlements: Sequence[Settlement], *, repeated: bool) -> Recorded:
        """Record how attempts ended, all of them in one transaction. Raises DataRefused if
        one of them can never be recorded as it is.

        `repeated` says that an earlier try lost its answer: a lost claim is then looked up before it is
        believed, since that try may have settled it.
        """
        ...

    async def blocked(self, claims: Sequence[Claim]) -> set[RunId]:
        """Find the runs that a transaction holds locked at this moment: to settle them is to wait for it."""
        ...

    async def news(self, claims: Sequence[Claim]) -> dict[UUID, News]:
        """Read what there is for turns that are held. An id that is missing has lost its claim."""
        ...

    async def history(self, run_id: UUID, *, after: int) -> list[Event]:
        """The history of a run, behind this event."""
        ...

    async def record(self, advances: Sequence[Advance]) -> Mapping[UUID, Advanced]:
        """running: what turns wrote that only record something. An id that is missing has lost its claim. DataRefused
        as `settle`."""
        ...

    async def advance(self, advances: Sequence[Advance], claim_id: ClaimId) -> Written:
        """Write what turns wrote, in one transaction. ClaimLost, and nothing is written, if one of those that move
        others with them has lost its claim, or one of those. DataRefused as `settle`, and NotRecorded if the
        transaction is a step's own."""
        ...

    async def note(self, steps: Sequence[StepNote], lines: Sequence[LineNote]) -> None:
        """Write down what bodies said. To repeat it does no harm."""
        ...

    async def save(self, claim: Claim, state: bytes, *, schema: int, after: int | None) -> tuple[int, bool]:
        """Save a checkpoint in place of the version that its attempt saved last; the version that is there now, and
        whether this is it. Raises ClaimLost, or NewerCheckpoint."""
        ...

    async def load(self, claim: Claim) -> Saved | None:
        """The checkpoint of the claim's run. Raises ClaimLost."""
        ...

    def lend(self) -> OwnTx:
        """A transaction for a body's own writes, with whose commit its run is completed."""
        ...

    async def held(self, claim_ids: Sequence[ClaimId] | None) -> list[Claim]:
        """Read which claims the system says this worker holds, of these claims or at all: bare claims."""
        ...

    def lease(self) -> AbstractAsyncContextManager[Hold]:
        """Open a way to renew the lease that shares nothing with the other verbs, for the lease's own thread and
        loop."""
        ...

    async def unblock(self) -> bool:
        """Wake workflows that stopped at other code than this worker has; whether there are any in its queues. Those
        are not announced: a worker with the code that they stopped at would be as quick to claim them."""
        ...

    async def leave(self) -> None:
        """Give up the lease: this worker is gone."""
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
    def hears(self) -> bool: ...

    @property
    def queues(self) -> Sequence[str] | None:
        """The queues that this worker serves; None: every one."""
        ...
