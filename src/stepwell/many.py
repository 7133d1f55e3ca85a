"""What is done to many runs at once, in a statement for each batch."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar
from uuid import UUID

from stepwell.dispatch.base import Channel, Dispatch
from stepwell.engine import bulk, reads, runs
from stepwell.model.ids import RunId, new_run_id
from stepwell.model.run import Filter
from stepwell.model.states import State
from stepwell.store.pool import Database

T = TypeVar("T")


class Patiently(Protocol):
    """Asks, and outlasts a short absence of the database; what is asked is told when it is asked again."""

    def __call__(self, ask: Callable[[bool], Awaitable[T]], /) -> Awaitable[T]: ...


class Many:
    def __init__(self, database: Database, dispatch: Dispatch, patiently: Patiently) -> None:
        self._database = database
        self._dispatch = dispatch
        self._patiently = patiently

    async def matching(self, which: Filter, *, finished: bool, limit: int, after: UUID) -> list[UUID]:
        """Ids of live or of finished runs, oldest first, behind `after`."""
        return await self._patiently(
            lambda _again: bulk.matching(self._database, which, finished=finished, limit=limit, after=after)
        )

    async def cancel(self, ids: Sequence[UUID]) -> list[UUID]:
        """Those that were not finished, and are cancelled now."""

        async def cancel(again: bool) -> list[UUID]:
            moved = await runs.cancel(self._database, ids)
            if not again:
                return moved
            # The first try may have moved them.
            return [each.id for each in await reads.finished(self._database, ids) if each.state is State.CANCELLED]

        moved = await self._patiently(cancel)
        for channel in (Channel.CANCELLED, Channel.FINISHED):
            self._dispatch.announce(channel, [run_id.hex for run_id in moved])
        return moved

    async def retry(self, ids: Sequence[UUID]) -> dict[UUID, RunId]:
        """New runs of those that have finished: from the old id to the new."""
        new_ids = {run_id: new_run_id() for run_id in ids}

        async def start_again(again: bool) -> tuple[dict[UUID, RunId], set[str]]:
            async with self._database.transaction() as tx:
                return await bulk.start_again(tx, new_ids, again=again)

        started, queues = await self._patiently(start_again)
        self._dispatch.announce(Channel.PENDING, queues)
        return started
