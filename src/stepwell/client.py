"""The client: every verb that is asked from outside of a run. One per app and event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar
from uuid import UUID

from stepwell.dispatch.base import Channel, Dispatch
from stepwell.engine import reads, runs
from stepwell.model.errors import Unavailable
from stepwell.model.ids import RunId, new_run_id
from stepwell.model.run import NO_FAMILY, Attempt, Family, Filter, Finished, Page, RunInfo, Start
from stepwell.store.pool import Database
from stepwell.waiting import Waiting

T = TypeVar("T")

PATIENCE = 15.0
"""Seconds for which a verb outlasts a database that is away, before it raises Unavailable."""
MOST = 5_000
"""Runs of one statement: enough to be fast, and a bound on what one call can hold up."""


class Client:
    def __init__(self, database: Database, dispatch: Dispatch) -> None:
        self._database = database
        self._dispatch = dispatch
        self._waiting = Waiting(database, dispatch)

    async def close(self) -> None:
        await self._waiting.close()

    async def start(self, starts: Sequence[Start], family: Family = NO_FAMILY) -> list[RunId]:
        """Accept these runs, all of them or none; the id each start led to."""
        ids = await self._patiently(lambda again: self._start(starts, family, again=again))
        self._dispatch.announce(
            Channel.PENDING, {each.queue for each in starts if each.delay is None and each.at is None}
        )
        return ids

    async def _start(self, starts: Sequence[Start], family: Family, *, again: bool) -> list[RunId]:
        together = len(starts) <= MOST and (len(starts) == 1 or all(each.key is None for each in starts))
        if together and not again:
            return await runs.start(self._database, starts, family)
        async with self._database.transaction() as tx:
            ids: list[RunId] = []
            for first in range(0, len(starts), MOST):
                ids += await runs.start(tx, starts[first : first + MOST], family)
            if again:
                # The first try may have committed, and its runs have finished since.
                await runs.undo_finished_starts(tx, [each.id for each in starts])
                await runs.note_repeated_starts(tx, [each.id for each in starts])
        return ids

    async def retry(self, run_id: UUID) -> RunId:
        new_id = new_run_id()

        async def start_again(again: bool) -> str:
            async with self._database.transaction() as tx:
                queue = await runs.start_again(tx, run_id, new_id)
                if again:
                    await runs.undo_finished_starts(tx, [new_id])
                    await runs.note_repeated_starts(tx, [new_id])
            return queue

        self._dispatch.announce(Channel.PENDING, [await self._patiently(start_again)])
        return new_id

    async def cancel(self, run_id: UUID) -> None:
        moved = await self._patiently(lambda _again: runs.cancel(self._database, [run_id]))
        if not moved:
            await self._patiently(lambda _again: runs.refuse_finished(self._database, run_id))
        self._dispatch.announce(Channel.CANCELLED, [run_id.hex])
        self._dispatch.announce(Channel.FINISHED, [run_id.hex])

    async def wait(self, run_id: UUID) -> Finished:
        return await self._waiting.wait(run_id)

    async def info(self, run_id: UUID) -> RunInfo:
        return await self._patiently(lambda _again: reads.run_info(self._database, run_id))

    async def id_by_key(self, key: str) -> UUID:
        return await self._patiently(lambda _again: reads.id_by_key(self._database, key))

    async def attempts(self, run_id: UUID) -> list[Attempt]:
        return await self._patiently(lambda _again: reads.attempts(self._database, run_id))

    async def runs(self, which: Filter, *, limit: int, after: UUID | None) -> Page:
        return await self._patiently(lambda _again: reads.page(self._database, which, limit=limit, after=after))

    async def _patiently(self, ask: Callable[[bool], Awaitable[T]]) -> T:
        """Outlast a short absence of the database. `ask` is told when it asks again: what it asked before
        may have happened."""
        end, pause, again = None, 0.05, False
        while True:
            try:
                return await ask(again)
            except Unavailable:
                # From the first failure on: it may itself have been a long wait, on a line that was dead.
                end = end or time.monotonic() + PATIENCE
                if time.monotonic() + pause > end:
                    raise
                again = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
