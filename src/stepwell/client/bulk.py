"""Verbs on many runs at once, with one statement for each batch."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from stepwell.concurrency.retry_unavailable import patiently
from stepwell.dispatch.base import Channel, Wakes, tell_all
from stepwell.engine import bulk, ends, reads
from stepwell.model.ids import RunId, new_run_id
from stepwell.model.run import Filter
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.store.pool import Database
from stepwell.telemetry import Telemetry


class BatchVerbs:
    """List, cancel or retry many runs. A call takes one batch of ids."""

    def __init__(self, database: Database, wakes: Wakes, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._database = database
        self._wakes = wakes

    async def matching(self, which: Filter, *, finished: bool, limit: int, after: UUID) -> list[UUID]:
        """Return the ids of live or of finished runs that match, oldest first, after the id `after`."""
        return await patiently(
            lambda _again: bulk.matching(self._database, which, finished=finished, limit=limit, after=after)
        )

    async def cancel(self, ids: Sequence[UUID], *, force: bool = False) -> tuple[list[UUID], list[UUID]]:
        """Cancel runs. Return the ids that are cancelled now, and the ids of workflows that were asked to end.

        A workflow that has begun is only asked, and may clean up first; with `force` it is cancelled at once. Finished
        runs are skipped.
        """

        async def cancel(again: bool) -> tuple[list[UUID], Consequences]:
            async with self._database.transaction() as tx:
                moved, after = await ends.cancel(tx, ids, force=force)
                ended = list(moved)
                if again:
                    # The first try may have committed: then this one moves nothing, and the cancelled runs are looked
                    # up.
                    finished = await reads.finished(tx, ids)
                    ended = [each.id for each in finished if each.state is State.CANCELLED]
            after.cancelled += ended
            return ended, after

        cancelled, after = await patiently(cancel)
        tell_all(self._wakes, after)
        if after.gone:
            self._telemetry.tell("runs.cancelled", runs=after.gone)
        return cancelled, list(after.asked)

    async def retry(self, ids: Sequence[UUID]) -> dict[UUID, RunId]:
        """Start each finished run again, as a new run. Return the new id for each old one."""
        new_ids = {run_id: new_run_id() for run_id in ids}

        async def start_again(again: bool) -> tuple[dict[UUID, RunId], set[str]]:
            async with self._database.transaction() as tx:
                return await bulk.start_again(tx, new_ids, again=again)

        started, queues = await patiently(start_again)
        self._wakes.announce(Channel.PENDING, queues)
        return started
