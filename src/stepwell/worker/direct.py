"""The link of a worker that speaks to Postgres itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from uuid import UUID

from stepwell.dispatch.base import WE, WHO, Channel, Dispatch
from stepwell.engine import checkpoints, claim_lookup, ends, notes, runs, settle, turns, workers, workflows
from stepwell.engine.ends import ClaimEnd
from stepwell.engine.settle import Settled
from stepwell.engine.workers import Identity
from stepwell.model.errors import ClaimLost
from stepwell.model.events import Event
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.notes import LineNote, Saved, StepNote
from stepwell.model.pins import claim_name
from stepwell.model.run import Claim, Claimed, ClaimedLimited, Exchanged, Order, Wanted
from stepwell.model.states import State
from stepwell.model.turn import Advance, Advanced, Consequences, News, Written
from stepwell.model.word import Word
from stepwell.model.worker import Vitals
from stepwell.store.lent import Lending
from stepwell.store.pool import Database, Transaction, Tx, is_of_data, reaching
from stepwell.telemetry import Telemetry
from stepwell.worker.lent import LentTx
from stepwell.worker.link import Completion, DataRefused, Hold, Recorded, Settlement

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


class DirectLink:
    def __init__(
        self, database: Database, dispatch: Dispatch, identity: Identity, *, lease: timedelta, telemetry: Telemetry
    ) -> None:
        self._database = database
        self._dispatch = dispatch
        self._identity = identity
        self._telemetry = telemetry
        pinned = [claim_name(name, version) for name, version in identity.versions.items()]
        self._names = [*(identity.names or ()), *pinned]
        self._lease = lease
        self._awaited_until = 0.0
        self._limited: set[str] = set()
        """Queues that got a limit since: runs claimed before count, too."""
        self._lending = Lending(database)
        self._arrived: Callable[[Container[str]], Set[str]] = lambda _: frozenset()
        """Tells the turns of this worker what arrived; the runs that are in one."""

    async def claim(self, claim_id: ClaimId, limit: int, *, alone: bool) -> Claimed:
        wanted = Wanted(self._identity.id, self._identity.queues, self._names, limit, alone)
        return await self._dispatch.claim(wanted, claim_id)

    async def claim_from(self, queue: str, claim_id: ClaimId, limit: int) -> Claimed:
        wanted = Wanted(self._identity.id, self._identity.queues, self._names, limit, alone=False)
        return await self._dispatch.claim_from(queue, wanted, claim_id)

    async def claim_limited(self, claim_id: ClaimId, limit: int, *, alone: bool) -> ClaimedLimited:
        wanted = Wanted(self._identity.id, self._identity.queues, self._names, limit, alone)
        return await self._dispatch.claim_limited(wanted, claim_id)

    async def exchange(self, completed: Sequence[Completion], order: Order) -> Exchanged:
        finished = [claim.id.hex for claim, _ in completed] if self._is_awaited else []
        word = self._dispatch.word(Channel.FINISHED, finished) if 0 < len(finished) <= FEW else None
        if order.places:
            exchanged = await runs.exchange(
                self._database, completed, order, worker=self._identity.id, names=self._names, word=word
            )
        else:
            exchanged = await self._complete(completed, word)
        if not exchanged.said:
            self._dispatch.announce(Channel.FINISHED, finished)
        self._announce_slots([claim for claim, _ in completed])
        return exchanged

    async def _complete(self, completed: Sequence[Completion], word: Word | None) -> Exchanged:
        """An exchange in which nothing is claimed."""
        endings = [ClaimEnd(claim, State.COMPLETED, outcome.result) for claim, outcome in completed]
        ended = await ends.end(self._database, endings, Consequences(), word=word)
        return Exchanged([], {claim.id for claim, _ in completed} - ended.moved, ended.said)

    async def settle(self, settlements: Sequence[Settlement], *, repeated: bool) -> Recorded:
        planned = settle.plan(settlements)
        with _blaming_data():
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
        return Recorded({claim.id for claim in lost}, settled.moves)

    def _follow(self, claims: Sequence[Claim], settled: Settled) -> None:
        """Announce all that follows from these claims' outcomes, after their commit."""
        self._tell(settled.after)
        self._announce_finished(settled.finished)
        self._announce_slots(claims)

    async def blocked(self, claims: Sequence[Claim]) -> set[RunId]:
        return await claim_lookup.blocked(self._database, claims)

    def _announce_slots(self, settled: Sequence[Claim]) -> None:
        """Announce limited queues that may have room again."""
        freed = {claim.queue for claim in settled if claim.limited or claim.queue in self._limited}
        self._dispatch.announce(Channel.PENDING, freed)

    def _announce_finished(self, ids: Sequence[RunId]) -> None:
        if self._is_awaited:
            self._dispatch.announce(Channel.FINISHED, [run_id.hex for run_id in ids])

    @property
    def _is_awaited(self) -> bool:
        if not self._dispatch.hears:
            return True  # a client may wait whose announcement did not arrive here
        return self._awaited_until > asyncio.get_running_loop().time()

    async def news(self, claims: Sequence[Claim]) -> dict[UUID, News]:
        return await turns.news(self._database, claims)

    async def history(self, run_id: UUID, *, after: int) -> list[Event]:
        return await workflows.history(self._database, run_id, after=after)

    async def record(self, advances: Sequence[Advance]) -> Mapping[UUID, Advanced]:
        with _blaming_data():
            return await turns.record(self._database, advances)

    async def advance(self, advances: Sequence[Advance], claim_id: ClaimId) -> Written:
        written = Consequences()

        async def write(tx: Tx) -> None:
            nonlocal written
            await self._settle_children([child for each in advances for child in each.children], tx)
            written = await turns.advance(tx, advances, worker=self._identity.id, claim_id=claim_id)

        with _blaming_data():
            if advances[0].tx is not None:
                await advances[0].tx.record(write)
            elif _take_one_statement(advances):
                await write(self._database)
            else:
                async with self._database.transaction() as tx:
                    await write(tx)
        children = [claim for each in advances for claim, _ in each.children]
        if len(children) <= FEW:
            written.finished = [*written.finished, *(claim.id for claim in children)]
        self._tell(written)
        if len(children) > FEW:
            # Of many children hardly one is waited for: announce them after their workflow, and before the turn frees
            # all that they were.
            asyncio.get_running_loop().call_soon(self._announce_finished, [claim.id for claim in children])
            await asyncio.sleep(0)
        self._announce_slots([*(each.claim for each in advances), *children])
        waits = [each.due_in for each in advances if each.due_in is not None]
        # The deadline of a running turn is not scheduled: schedule it now.
        waits += [each.claim.deadline.total_seconds() for each in advances if each.claim.deadline is not None]
        if waits:
            self._dispatch.announce(Channel.SCHEDULED, [f"{min(waits):.3f}"])
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
            self._dispatch.announce(Channel.SCHEDULED, [f"{written.soonest.total_seconds():.3f}"])
        self._dispatch.announce(Channel.PENDING, written.wakes)
        self._dispatch.announce(Channel.CANCELLED, [run_id.hex for run_id in written.cancelled])
        self._announce_finished([RunId(run_id) for run_id in (*written.finished, *written.cancelled)])
        if written.heard:
            # A turn of this worker hears of it at once: an announcement takes a round trip, and gathers in a burst.
            heard = {run_id.hex for run_id in written.heard}
            self._dispatch.announce(Channel.ARRIVED, heard - self._arrived(heard))

    async def note(self, steps: Sequence[StepNote], lines: Sequence[LineNote]) -> None:
        await notes.write(self._database, steps, lines)

    async def save(self, claim: Claim, state: bytes, *, schema: int, after: int | None) -> tuple[int, bool]:
        return await checkpoints.save(self._database, claim, state, schema=schema, after=after)

    async def load(self, claim: Claim) -> Saved | None:
        return await checkpoints.load(self._database, claim)

    def lend(self) -> LentTx:
        return LentTx(
            self._lending, self._database.statements, lambda claim, settled: self._follow([claim], settled)
        )  # fmt: skip

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

    async def unblock(self) -> bool:
        if not self._identity.versions:
            return False
        versions, queues = self._identity.versions, self._identity.queues
        pinned = {claim_name(name, version): version for name, version in versions.items()}
        woken = await workflows.unblock(self._database, {**versions, **pinned}, self._identity.id)
        ours = woken if queues is None else woken.intersection(queues)
        self._dispatch.announce(Channel.PENDING, woken - ours)
        return bool(ours)

    async def leave(self) -> None:
        try:
            await workers.leave(self._database, self._identity.id)
        finally:
            await self._lending.close()

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
                self._dispatch.answered(Channel.FINISHED)
            if served is None or served:
                work(served[0] if served and len(served) == 1 else None)

        deaf_to_work = self._dispatch.subscribe(Channel.PENDING, heard)
        deaf_to_cancels = self._dispatch.subscribe(
            Channel.CANCELLED, lambda ids: cancelled(None if ids is None else frozenset(ids))
        )

        def heard_arrivals(ids: Sequence[str] | None) -> None:
            arrived(None if ids is None else frozenset(ids))

        deaf_to_arrivals = self._dispatch.subscribe(Channel.ARRIVED, heard_arrivals)
        deaf_to_limits = self._dispatch.subscribe(Channel.LIMITED, lambda queues: self._limited.update(queues or ()))
        deaf_to_awaiting = self._dispatch.subscribe(Channel.AWAITED, self._heard_awaiting)

        def end() -> None:
            for deaf in (deaf_to_work, deaf_to_cancels, deaf_to_arrivals, deaf_to_limits, deaf_to_awaiting):
                deaf()

        return end

    def _heard_awaiting(self, words: Sequence[str] | None) -> None:
        if words is None:
            self._dispatch.announce(Channel.AWAITED, [WHO])
        elif WE in words:
            self._awaited_until = asyncio.get_running_loop().time() + AWAITED

    @property
    def hears(self) -> bool:
        return self._dispatch.hears

    @property
    def queues(self) -> Sequence[str] | None:
        return self._identity.queues


@contextmanager
def _blaming_data() -> Iterator[None]:
    """Tell the errors of the data that is written from those that may pass."""
    try:
        yield
    except Exception as error:
        if is_of_data(error):
            raise DataRefused(error) from error
        raise


def _take_one_statement(advances: Sequence[Advance]) -> bool:
    if all([each.only == "completes" for each in advances]):
        return True
    return all([each.is_lone and len(each.events) <= runs.MANY for each in advances])
