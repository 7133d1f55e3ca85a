"""The link of a worker that speaks to Postgres itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from stepwell.dispatch.base import WE, WHO, Channel, Dispatch
from stepwell.engine import checkpoints, notes, runs, settle, workers
from stepwell.engine.workers import Identity
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.notes import LineNote, Saved, StepNote
from stepwell.model.run import Claim, Claimed, ClaimedLimited, Exchanged, Order, Wanted
from stepwell.model.worker import Vitals
from stepwell.store.lent import Lending
from stepwell.store.pool import Database, Transaction, Tx, reaching
from stepwell.worker.lent import LentTx
from stepwell.worker.link import Completion, Hold, Settlement

AWAITED = 15.0
"""Seconds for which finished runs are announced after someone last said to be waiting for any."""

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
        self, database: Database, dispatch: Dispatch, identity: Identity, *, names: Sequence[str], lease: timedelta
    ) -> None:
        self._database = database
        self._dispatch = dispatch
        self._identity = identity
        self._names = names
        self._lease = lease
        self._awaited_until = 0.0
        self._lending = Lending(database)

    async def claim(self, claim_id: ClaimId, limit: int, *, alone: bool) -> Claimed:
        wanted = Wanted(self._identity.id, self._identity.queues, self._names, limit, alone)
        return await self._dispatch.claim(wanted, claim_id)

    async def claim_limited(self, claim_id: ClaimId, limit: int, *, alone: bool) -> ClaimedLimited:
        wanted = Wanted(self._identity.id, self._identity.queues, self._names, limit, alone)
        return await self._dispatch.claim_limited(wanted, claim_id)

    async def exchange(self, completed: Sequence[Completion], order: Order) -> Exchanged:
        finished = [claim.id.hex for claim, _ in completed] if self._is_awaited else []
        word = self._dispatch.word(Channel.FINISHED, finished) if 0 < len(finished) <= FEW else None
        exchanged = await runs.exchange(
            self._database, completed, order, worker=self._identity.id, names=self._names, word=word
        )
        if not exchanged.said:
            self._dispatch.announce(Channel.FINISHED, finished)
        self._announce_slots([claim for claim, _ in completed])
        return exchanged

    async def settle(self, settlements: Sequence[Settlement], *, repeated: bool) -> set[RunId]:
        batches = settle.plan(settlements)
        if len(batches) == 1:
            settled = await settle.apply(self._database, batches)
        else:
            async with self._database.transaction() as tx:
                settled = await settle.apply(tx, batches)
        self._dispatch.announce(Channel.PENDING, settled.wakes)
        if settled.soonest is not None:
            self._dispatch.announce(Channel.SCHEDULED, [f"{settled.soonest.total_seconds():.3f}"])
        lost = [claim for claim, _ in settlements if claim.id not in settled.moved]
        if lost and repeated:
            ours = await settle.already_settled(self._database, lost)
            settled.finished += [claim.id for claim in lost if claim.id in ours]
            lost = [claim for claim in lost if claim.id not in ours]
        self._announce_finished(settled.finished)
        self._announce_slots([claim for claim, _ in settlements])
        return {claim.id for claim in lost}

    def _announce_slots(self, settled: Sequence[Claim]) -> None:
        """A limited queue may have room again, for whoever can use it."""
        self._dispatch.announce(Channel.PENDING, {claim.queue for claim in settled if claim.limited})

    def _announce_finished(self, ids: Sequence[RunId]) -> None:
        if self._is_awaited:
            self._dispatch.announce(Channel.FINISHED, [run_id.hex for run_id in ids])

    @property
    def _is_awaited(self) -> bool:
        if not self._dispatch.hears:
            return True  # someone may wait, who hears us and whom we do not hear
        return self._awaited_until > asyncio.get_running_loop().time()

    async def note(self, steps: Sequence[StepNote], lines: Sequence[LineNote]) -> None:
        await notes.write(self._database, steps, lines)

    async def save(self, claim: Claim, state: bytes, *, schema: int) -> int:
        return await checkpoints.save(self._database, claim, state, schema=schema)

    async def load(self, claim: Claim) -> Saved | None:
        return await checkpoints.load(self._database, claim)

    def lend(self) -> LentTx:
        return LentTx(self._lending, self._database.statements, self._completed)

    def _completed(self, claim: Claim) -> None:
        self._announce_finished([claim.id])
        self._announce_slots([claim])

    async def held(self, claim_ids: Sequence[ClaimId] | None) -> list[Claim]:
        return await runs.held(self._database, self._identity.id, claim_ids)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Hold]:
        connection = await self._database.connect()
        try:
            speaking = Transaction(connection, self._database.statements, self._database.schema)
            yield DirectHold(speaking, self._identity, self._lease)
        finally:
            connection.terminate()

    async def leave(self) -> None:
        try:
            await workers.leave(self._database, self._identity.id)
        finally:
            await self._lending.close()

    def hear(
        self, *, work: Callable[[], None], cancelled: Callable[[Container[str] | None], None]
    ) -> Callable[[], None]:
        mine = None if self._identity.queues is None else frozenset(self._identity.queues)

        def heard(queues: Sequence[str] | None) -> None:
            if queues is None or mine is None or not mine.isdisjoint(queues):
                work()

        deaf_to_work = self._dispatch.subscribe(Channel.PENDING, heard)
        deaf_to_cancels = self._dispatch.subscribe(
            Channel.CANCELLED, lambda ids: cancelled(None if ids is None else frozenset(ids))
        )

        deaf_to_awaiting = self._dispatch.subscribe(Channel.AWAITED, self._heard_awaiting)

        def end() -> None:
            deaf_to_work()
            deaf_to_cancels()
            deaf_to_awaiting()

        return end

    def _heard_awaiting(self, words: Sequence[str] | None) -> None:
        if words is None:
            self._dispatch.announce(Channel.AWAITED, [WHO])
        elif WE in words:
            self._awaited_until = asyncio.get_running_loop().time() + AWAITED

    @property
    def hears(self) -> bool:
        return self._dispatch.hears
