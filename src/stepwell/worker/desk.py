"""What a turn asks of the worker it runs on, and what that asks for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager
from typing import Protocol
from uuid import UUID

from stepwell.context import Running
from stepwell.model.events import Event
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.outcome import Outcome
from stepwell.model.run import Claim
from stepwell.model.start import Start
from stepwell.model.turn import Advance, Advanced, News, Written
from stepwell.worker.run_step import Steps

Wrote = tuple[Advanced, Set[RunId]]
"""Where a write left a run, and what was to run here and does not."""


class Waiter(Protocol):
    """Who is offered the ends of its own runs."""

    def takes(self, claim: Claim, outcome: Outcome) -> bool:
        """Whether the end of a run of its own is written with what follows from it here."""
        ...


class Desk(Protocol):
    steps: Steps

    def ask_news(self, claim: Claim, told: Callable[[News | BaseException], None]) -> None: ...

    def write(self, advance: Advance, told: Callable[[Wrote | BaseException], None]) -> None:
        """Where it left the run, and what was to run here and does not. ClaimLost if it was refused."""
        ...

    def can_run(self, starts: Sequence[Start], *, slots: int) -> Sequence[Start]:
        """Those that this worker could run at once, with so many slots beside those that are free."""
        ...

    def may_claim(self, starts: Sequence[Start]) -> Sequence[Start]:
        """Those that this worker may claim before long: worth to stay for."""
        ...

    def expect(self, ids: Collection[RunId], turn: Waiter) -> None:
        """The ends of these runs of its own are offered to this turn, if they run here."""
        ...

    def expect_no_more(self, ids: Collection[RunId], turn: Waiter) -> None: ...

    def rest(self, attempt: Running, rests: bool) -> None:
        """Whether it needs its slot: one that only waits for runs of its own does not."""
        ...

    def settle(self, claim: Claim, outcome: Outcome) -> None: ...


class Host(Protocol):
    """The worker, as its turns see it."""

    def room_for(self, names: Collection[str]) -> int:
        """Slots that nobody has or has been promised, and those that runs of these names would soon have."""
        ...

    @property
    def resting(self) -> int:
        """Turns that need no slot, since they only wait for runs of their own."""
        ...

    @property
    def queues(self) -> Collection[str] | None:
        """Those that it serves; None: every one."""
        ...

    def asking(self, claim_id: ClaimId | None, limit: int) -> AbstractAsyncContextManager[None]: ...

    def begin(self, claims: Sequence[Claim]) -> None: ...

    def rest(self, attempt: Running, rests: bool) -> None: ...

    def settle(self, claim: Claim, outcome: Outcome) -> None: ...

    def settled(self, group: Sequence[tuple[Claim, Outcome]]) -> None: ...


class TurnLink(Protocol):
    """The verbs of a link that turns need."""

    async def news(self, claims: Sequence[Claim]) -> dict[UUID, News]: ...

    async def history(self, run_id: UUID, *, after: int) -> list[Event]: ...

    async def record(self, advances: Sequence[Advance]) -> Mapping[UUID, Advanced]:
        """What turns wrote that only record something. An id that is missing has lost its claim."""
        ...

    async def advance(self, advances: Sequence[Advance], claim_id: ClaimId) -> Written: ...
