"""The protocols between a turn, the worker it runs on, and the lanes of that worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from msgspec import Struct

from stepwell.context.current import Running
from stepwell.context.transaction import OwnTx
from stepwell.model.commands import StepCall
from stepwell.model.events import Event
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.outcome import Outcome
from stepwell.model.run import Claim
from stepwell.model.start import Start
from stepwell.model.turn import Advance, Advanced, News, Written
from stepwell.worker.turns.run_step import Steps

Wrote = tuple[Advanced, Set[RunId]]
"""The answer to a write: where it left the run, and the runs that were to run here but do not."""


class WritePage(Struct, eq=False):
    """A write of a turn: the values that go through the link, and the live objects that stay on this side of it."""

    advance: Advance
    calls: list[StepCall] = []
    """Steps that begin once it is written."""
    tx: OwnTx | None = None
    """A step's own transaction, with whose commit all of it is written."""

    def close(self) -> None:
        """Roll back what a step wrote: this page is not going to be written."""
        if self.tx is not None:
            self.tx.close()


class Waiter(Protocol):
    """A turn that is offered the ends of its children."""

    def takes(self, claim: Claim, outcome: Outcome) -> bool:
        """Take the end of a child, to write it with its consequences. Return False if this turn cannot."""
        ...


class Host(Protocol):
    """The worker, as its turns see it."""

    steps: Steps

    def ask_news(self, claim: Claim, told: Callable[[News | BaseException], None]) -> None: ...

    def write(self, page: WritePage, told: Callable[[Wrote | BaseException], None]) -> None:
        """Write, and tell where that left the run, and what was to run here and does not; ClaimLost if it was
        refused."""
        ...

    def can_run(self, starts: Sequence[Start], *, slots: int) -> Sequence[Start]:
        """Select the runs that this worker could run at once, with so many slots in addition to those that are free."""
        ...

    def may_claim(self, starts: Sequence[Start]) -> Sequence[Start]:
        """Select the runs that this worker may claim before long, so that the turn should stay for them."""
        ...

    def expect(self, ids: Collection[RunId], turn: Waiter) -> None:
        """Offer the ends of these runs to this turn, if they run here."""
        ...

    def expect_no_more(self, ids: Collection[RunId], turn: Waiter) -> None: ...

    def rest(self, attempt: Running, rests: bool) -> None:
        """Lend the turn's slot, or take it back. A turn that only waits for its children needs none."""
        ...

    def settle(self, claim: Claim, outcome: Outcome) -> None: ...


class Claiming(Protocol):
    """The lanes, as turns see them: a turn claims what it starts."""

    def room_for(self, names: Collection[str]) -> int:
        """Count slots that are free and not promised, and those that runs of these names would soon have."""
        ...

    @property
    def resting(self) -> int:
        """Number of turns that need no slot, since they only wait for their children."""
        ...

    def rest(self, claim: Claim, rests: bool) -> None: ...

    def asking(self, claim_id: ClaimId | None, limit: int) -> AbstractAsyncContextManager[None]:
        """Expect a claim that is on its way, and keep room for it."""
        ...

    def begin(self, claims: Sequence[Claim]) -> None: ...


class TurnLink(Protocol):
    """The verbs of a link that turns need."""

    @property
    def queues(self) -> Collection[str] | None: ...

    async def news(self, claims: Sequence[Claim]) -> dict[UUID, News]: ...

    async def history(self, run_id: UUID, *, after: int) -> list[Event]: ...

    async def advance(self, advances: Sequence[Advance], claim_id: ClaimId) -> Written: ...
