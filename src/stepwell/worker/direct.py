"""The link of a worker that speaks to Postgres itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from stepwell.dispatch.base import Channel, Dispatch
from stepwell.engine import runs, settle, workers
from stepwell.engine.workers import Identity
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.run import Claim, Claimed, Wanted
from stepwell.store.pool import Database, Transaction, reaching
from stepwell.worker.link import Renew, Settlement


class DirectLink:
    def __init__(
        self, database: Database, dispatch: Dispatch, identity: Identity, *, names: Sequence[str], lease: timedelta
    ) -> None:
        self._database = database
        self._dispatch = dispatch
        self._identity = identity
        self._names = names
        self._lease = lease

    async def claim(self, claim_id: ClaimId, limit: int, *, alone: bool) -> Claimed:
        wanted = Wanted(self._identity.id, self._identity.queues, self._names, limit, alone)
        return await self._dispatch.claim(wanted, claim_id)

    async def settle(self, settlements: Sequence[Settlement], *, repeated: bool) -> set[RunId]:
        batches = settle.plan(settlements)
        if len(batches) == 1:
            settled = await settle.apply(self._database, batches)
        else:
            async with self._database.transaction() as tx:
                settled = await settle.apply(tx, batches)
        self._dispatch.announce(Channel.PENDING, settled.wakes)
        lost = [claim for claim, _ in settlements if claim.id not in settled.moved]
        if lost and repeated:
            ours = await settle.already_settled(self._database, lost)
            settled.finished += [claim.id for claim in lost if claim.id in ours]
            lost = [claim for claim in lost if claim.id not in ours]
        self._dispatch.announce(Channel.FINISHED, [run_id.hex for run_id in settled.finished])
        return {claim.id for claim in lost}

    async def held(self) -> list[Claim]:
        return await runs.held(self._database, self._identity.id)

    @asynccontextmanager
    async def lease(self) -> AsyncIterator[Renew]:
        connection = await self._database.connect()

        async def renew() -> None:
            with reaching():
                await workers.renew(Transaction(connection, self._database.statements), self._identity, self._lease)

        try:
            yield renew
        finally:
            connection.terminate()

    async def leave(self) -> None:
        await workers.leave(self._database, self._identity.id)

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

        def end() -> None:
            deaf_to_work()
            deaf_to_cancels()

        return end

    @property
    def hears(self) -> bool:
        return self._dispatch.hears
