"""Bulk operations: find many runs by a filter, and start them again."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from stepwell.engine import forks, reads, runs
from stepwell.model.errors import WrongUse
from stepwell.model.ids import RunId
from stepwell.model.run import Filter
from stepwell.model.states import State
from stepwell.store.pool import Tx
from stepwell.telemetry import log


async def matching(tx: Tx, which: Filter, *, finished: bool, limit: int, after: UUID) -> list[UUID]:
    """Return the ids of runs that match the filter, oldest first, behind `after`: of finished runs if `finished`, else
    of live ones."""
    values = reads.packed(which)
    if not finished:
        del values["error"]  # live runs have no error
    name = "matching_finished_runs" if finished else "matching_live_runs"
    if finished and set(which.states or ()) == {State.FAILED}:
        name = "matching_failed_runs"
        del values["states"]
    return [row["id"] for row in await tx.rows(name, after=after, limit=limit, **values)]


async def start_again(tx: Tx, new_ids: Mapping[UUID, RunId], *, again: bool) -> tuple[dict[UUID, RunId], set[str]]:
    """-> pending: start a new run for each of these runs that has finished. Return the new ids by their origins, and
    the queues with work.

    `again` says that the answer to an earlier try was lost, so that it may have started them already.
    """
    forked = await forks.failed_workflows(tx, list(new_ids))
    queues: set[str] = set()
    refused: set[UUID] = set()
    for origin in sorted(forked):
        try:
            queues |= await forks.fork(tx, origin, new_ids[origin], at=None, again=again)
        except WrongUse as error:
            log.warning("workflow %s was not retried: %s", origin, error)
            refused.add(origin)
    plain = {origin: new_id for origin, new_id in new_ids.items() if origin not in forked}
    made = await tx.rows("start_runs_again", ids=list(plain.values()), origins=list(plain))
    started = {row["id"] for row in made} | {new_ids[origin] for origin in forked - refused}
    queues |= {row["queue"] for row in made}
    if again:
        ids = list(new_ids.values())
        await runs.undo_finished_starts(tx, ids)
        await runs.note_repeated_starts(tx, ids)
        started = await reads.existing(tx, ids)
    return {origin: new_id for origin, new_id in new_ids.items() if new_id in started}, queues
