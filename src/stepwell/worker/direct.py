"""The link of a worker that has a connection to Postgres: it passes values on without encoding them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence, Set
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import UUID

from stepwell.context.transaction import OwnTx
from stepwell.dispatch.base import WE, WHO, Channel, Claims, Wakes
from stepwell.engine import checkpoints, claim_lookup, notes, runs, settle, turns, workers, workflows
from stepwell.engine.settle import Settled
from stepwell.engine.workers import Identity
from stepwell.model.errors import ClaimLost
from stepwell.model.events import Event
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.notes import LineNote, Saved, StepNote
from stepwell.model.pins import claim_name
from stepwell.model.run import Claim, Claimant, Claimed, Exchanged, Look, Order
from stepwell.model.turn import Advance, Consequences, News, Written
from stepwell.model.worker import Vitals
from stepwell.store.lent import Lending
from stepwell.store.pool import Database, Transaction, Tx, reaching
from stepwell.telemetry import Telemetry
from stepwell.worker.lent import LentTx, blaming_data
from stepwell.worker.link import Completion, Hold, Recorded, Settlement

AWAITED = 15.0
"""Seconds for which finished runs are announced after a client last announced that it waits for one."""

FEW = 8
"""Finished runs that are announced by the statement that records them; more are announced after it."""


class DirectHold:
    def __init__(self, tx: Tx, who: Identity, lease: timedelta) -> None:
        self._tx = tx
        self._who = who
        self._lease = lease

    async def renew(self) -> None:
        with reaching():
            await workers.renew(self._tx, self._who, self._lease)

    async def sample(self, vitals: Vitals) -> None:
        with reaching():
            await workers.sample(self._tx, self._who.id, vitals)

    async def leave(self) -> None:
        with reaching():
            await workers.leave(self._tx, self._who.id)


class DirectLink:
    def __init__(
        self, database: Database, wakes: Wakes, claims: Claims, identity: Identity, *,
        lease: timedelta, telemetry: Telemetry, lending: Lending,
    ) -> None:  # fmt: skip
        self._database = database
        self._wakes = wakes
        self._claims = claims
        self._identity = identity
        self._telemetry = telemetry
        pinned = [claim_name(name, version) for name, version in identity.versions.items()]
        self._claimant = Claimant(identity.id, identity.queues, [*(identity.names or ()), *pinned])
        self._lease = lease
        self._awaited_until = 0.0
        self._limited: set[str] = set()
        """Queues that got a limit since this worker began: runs claimed before count, too."""
        self.lend: Callable[[], OwnTx] | None = lambda: LentTx(lending, database.statements, self)
        self._arrived: Callable[[Container[str]], Set[str]] = lambda _: frozenset()
        """Tells the turns of this worker what arrived; returns the runs that are in one."""

    async def claim(self, look: Look) -> Claimed:
        return await self._claims.claim(self._claimant, look)

    async def exchange(self, completed: Sequence[Completion], order: Order) -> Exchanged:
        finished = [claim.id.hex for claim, _ in completed] if self._is_awaited else []
        word = self._wakes.word(Channel.FINISHED, finished) if 0 < len(finished) <= FEW else None
        exchanged = await self._claims.exchange(self._claimant, completed, order, word=word)
        if not exchanged.said:
            self._wakes.announce(Channel.FINISHED, finished)
        self._announce_slots([claim for claim, _ in completed])
        return exchanged

    async def settle(self, settlements: Sequence[Settlement], *, repeated: bool) -> Recorded:
        everything = settlements
        blocked: set[RunId] = set()
        if repeated:
            blocked = await claim_lookup.blocked(self._database, [claim for claim, _ in settlements])
            settlements = [each for each in settlements if each[0].id not in blocked]
            if not settlements:
                return Recorded(set(), [None] * len(everything), blocked)
        planned = settle.plan(settlements)
        with blaming_data():
            if planned.is_one_statement:
                settled = await settle.apply(self._database, planned)
            else:
                async with self._database.transaction() as tx:
                    settled = await settle.apply(tx, planned)
        lost = [claim for claim, _ in settlements if claim.id not in settled.moved]
        if lost and repeated:
            ours = await claim_lookup.already_settled(self._database, lost, settled.after)
            settled.finished += [claim.id for claim in lost if claim.id in ours]
            lost = [claim for claim in lost if claim.id not in ours]
        self._follow([claim for claim, _ in settlements], settled)
        moves = [settled.moves.get(claim) for claim, _ in everything]
        return Recorded({claim.id for claim in lost}, moves, blocked)

    def _follow(self, claims: Sequence[Claim], settled: Settled) -> None:
        """Announce all that follows from these claims' outcomes, after their commit."""
        self._tell(settled.after)
        self._announce_finished(settled.finished)
        self._announce_slots(claims)

    def completed(self, claim: Claim, settled: Settled) -> None:
        self._follow([claim], settled)

    def _announce_slots(self, settled: Sequence[Claim]) -> None:
        """Announce limited queues that may have room again."""
        freed = {claim.queue for claim in settled if claim.limited or claim.queue in self._limited}
        self._wakes.announce(Channel.PENDING, freed)

    def _announce_finished(self, ids: Sequence[RunId]) -> None:
        if self._is_awaited:
            self._wakes.announce(Channel.FINISHED, [run_id.hex for run_id in ids])

    @property
    def _is_awaited(self) -> bool:
        if not self._wakes.hears:
            return True  # the announcement of a client that waits may not have arrived
        return self._awaited_until > asyncio.get_running_loop().time()

    async def news(self, claims: Sequence[Claim]) -> dict[UUID, News]:
        return await turns.news(self._database, claims)

    async def history(self, run_id: UUID, *, after: int) -> list[Event]:
        return await workflows.history(self._database, run_id, after=after)

    async def advance(self, advances: Sequence[Advance], claim_id: ClaimId) -> Written:
        with blaming_data():
            if advances[0].only == "records":
                return Written(await turns.record(self._database, advances), ())
            if _take_one_statement(advances):
                written = await self.write(self._database, advances, claim_id)
            else:
                async with self._database.transaction() as tx:
                    written = await self.write(tx, advances, claim_id)
        return await self.wrote(advances, written)

    async def write(self, tx: Tx, advances: Sequence[Advance], claim_id: ClaimId) -> Consequences:
        await self._settle_children([child for each in advances for child in each.children], tx)
        return await turns.advance(tx, advances, worker=self._identity.id, claim_id=claim_id)

    async def wrote(self, advances: Sequence[Advance], written: Consequences) -> Written:
        children = [claim for each in advances for claim, _ in each.children]
        if len(children) <= FEW:
            written.finished = [*written.finished, *(claim.id for claim in children)]
        self._tell(written)
        if len(children) > FEW:
            # Hardly any of many children is waited for: announce them after their workflow, and before the turn frees
            # all that they were.
            asyncio.get_running_loop().call_soon(self._announce_finished, [claim.id for claim in children])
            await asyncio.sleep(0)
        self._announce_slots([*(each.claim for each in advances), *children])
        waits = [each.due_in for each in advances if each.due_in is not None]
        # The deadline of a running turn is not scheduled: schedule it now.
        waits += [each.claim.deadline.total_seconds() for each in advances if each.claim.deadline is not None]
        if waits:
            self._wakes.announce(Channel.SCHEDULED, [f"{min(waits):.3f}"])
        return Written(written.turns, written.claims)

    async def _settle_children(self, children: Sequence[Completion], tx: Tx) -> None:
        """Record the ends of children that this transaction's turns have taken. ClaimLost if one was not held."""
        if not children:
            return
        settled = await settle.apply(tx, settle.plan(children), told=True)
        if len(settled.moved) < len(children):
            lost = next(claim for claim, _ in children if claim.id not in settled.moved)
            raise ClaimLost(lost.id, lost.attempt)

    def _tell(self, written: Consequences) -> None:
        if written.gone:
            self._telemetry.tell("runs.cancelled", runs=written.gone)
        if written.soonest is not None:
            self._wakes.announce(Channel.SCHEDULED, [f"{written.soonest.total_seconds():.3f}"])
        self._wakes.announce(Channel.PENDING, written.wakes)
        self._wakes.announce(Channel.CANCELLED, [run_id.hex for run_id in written.cancelled])
        self._announce_finished([RunId(run_id) for run_id in (*written.finished, *written.cancelled)])
        if written.heard:
            # Tell turns of this worker at once: an announcement takes a round trip, and gathers in a burst.
            heard = {run_id.hex for run_id in written.heard}
            self._wakes.announce(Channel.ARRIVED, heard - self._arrived(heard))

    async def note(self, steps: Sequence[StepNote], lines: Sequence[LineNote], *, now: float) -> None:
        await notes.write(self._database, steps, lines, now=now)

    async def save(self, claim: Claim, state: bytes, *, schema: int, after: int | None) -> tuple[int, bool]:
        return await checkpoints.save(self._database, claim, state, schema=schema, after=after)

    async def load(self, claim: Claim) -> Saved | None:
        return await checkpoints.load(self._database, claim)

    async def held(self, claim_ids: Sequence[ClaimId] | None) -> list[Claim]:
        return await claim_lookup.held(self._database, self._identity.id, claim_ids)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Hold]:
        connection = await self._database.connect()
        try:
            speaking = Transaction(connection, self._database.statements, self._database.schema)
            yield DirectHold(speaking, self._identity, self._lease)
        finally:
            connection.terminate()

    def hear(
        self,
        *,
        work: Callable[[str | None], None],
        cancelled: Callable[[Container[str] | None], None],
        arrived: Callable[[Container[str] | None], Set[str]],
    ) -> Callable[[], None]:
        self._arrived = arrived
        mine = None if self._identity.queues is None else frozenset(self._identity.queues)

        def heard(queues: Sequence[str] | None) -> None:
            served = queues if queues is None or mine is None else [queue for queue in queues if queue in mine]
            if served:
                self._wakes.answered(Channel.FINISHED)
            if served is None or served:
                work(served[0] if served and len(served) == 1 else None)

        deaf_to_work = self._wakes.subscribe(Channel.PENDING, heard)
        deaf_to_cancels = self._wakes.subscribe(
            Channel.CANCELLED, lambda ids: cancelled(None if ids is None else frozenset(ids))
        )

        def heard_arrivals(ids: Sequence[str] | None) -> None:
            arrived(None if ids is None else frozenset(ids))

        deaf_to_arrivals = self._wakes.subscribe(Channel.ARRIVED, heard_arrivals)
        deaf_to_limits = self._wakes.subscribe(Channel.LIMITED, lambda queues: self._limited.update(queues or ()))
        deaf_to_awaiting = self._wakes.subscribe(Channel.AWAITED, self._heard_awaiting)

        def end() -> None:
            for deaf in (deaf_to_work, deaf_to_cancels, deaf_to_arrivals, deaf_to_limits, deaf_to_awaiting):
                deaf()

        return end

    def _heard_awaiting(self, words: Sequence[str] | None) -> None:
        if words is None:
            self._wakes.announce(Channel.AWAITED, [WHO])
        elif WE in words:
            self._awaited_until = asyncio.get_running_loop().time() + AWAITED

    @property
    def hears(self) -> bool:
        return self._wakes.hears

    @property
    def queues(self) -> Sequence[str] | None:
        return self._identity.queues


def _take_one_statement(advances: Sequence[Advance]) -> bool:
    if all([each.only == "completes" for each in advances]):
        return True
    return all([each.is_lone and len(each.events) <= runs.MANY for each in advances])
