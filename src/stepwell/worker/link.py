"""What a worker asks of the system: twelve verbs. How they travel is the link's business."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from stepwell.model.ids import ClaimId, RunId
from stepwell.model.notes import LineNote, Saved, StepNote
from stepwell.model.outcome import Completed, Outcome
from stepwell.model.run import Claim, Claimed, ClaimedLimited, Exchanged, Order
from stepwell.model.worker import Vitals
from stepwell.own_tx import OwnTx

Settlement = tuple[Claim, Outcome]
Completion = tuple[Claim, Completed]


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

    async def claim_limited(self, claim_id: ClaimId, limit: int, *, alone: bool) -> ClaimedLimited:
        """The same, of work that is limited: of which there may be more than anyone may claim now."""
        ...

    async def exchange(self, completed: Sequence[Completion], order: Order) -> Exchanged:
        """Record these, and claim what is ordered, in one step: both are done, or neither is."""
        ...

    async def settle(self, settlements: Sequence[Settlement], *, repeated: bool) -> set[RunId]:
        """Record how attempts ended, all of them in one transaction; those whose claim was lost.

        `repeated` says that an earlier try lost its answer: a lost claim is then looked up before it is
        believed, since that try may have settled it.
        """
        ...

    async def note(self, steps: Sequence[StepNote], lines: Sequence[LineNote]) -> None:
        """Write down what bodies said. To repeat it does no harm."""
        ...

    async def save(self, claim: Claim, state: bytes, *, schema: int) -> int:
        """Save a checkpoint; its version. Raises ClaimLost, or NewerCheckpoint."""
        ...

    async def load(self, claim: Claim) -> Saved | None:
        """The checkpoint of the claim's run. Raises ClaimLost."""
        ...

    def lend(self) -> OwnTx:
        """A transaction for a body's own writes, with whose commit its run is completed."""
        ...

    async def held(self, claim_ids: Sequence[ClaimId] | None) -> list[Claim]:
        """What the system says this worker holds, of these claims or at all: bare claims."""
        ...

    def lease(self) -> AbstractAsyncContextManager[Hold]:
        """For the lease's own thread and loop: a way to renew that shares nothing with the other verbs."""
        ...

    async def leave(self) -> None:
        """Give up the lease: this worker is gone."""
        ...

    def hear(
        self, *, work: Callable[[], None], cancelled: Callable[[Container[str] | None], None]
    ) -> Callable[[], None]:
        """Be told that there may be work, or which runs were cancelled (None: any); the answer ends it."""
        ...

    @property
    def hears(self) -> bool: ...
