"""Many runs at once: found by what they have in common, and started again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from stepwell.engine import reads, runs
from stepwell.model.ids import RunId
from stepwell.model.run import Filter
from stepwell.store.pool import Tx


async def matching(tx: Tx, which: Filter, *, finished: bool, limit: int, after: UUID) -> list[UUID]:
    """The ids of runs that match, oldest first, behind `after`; of the live ones, or of the finished."""
    values: dict[str, Any] = {
        "after": after,
        "states": None if which.states is None else [state.value for state in which.states],
        "name": which.name,
        "queue": which.queue,
        "kind": which.kind,
        "tags": None if which.tags is None else msgspec.json.encode(which.tags),
        "since": which.since,
        "limit": limit,
    }
    if finished:
        return [row["id"] for row in await tx.rows("matching_finished_runs", error=which.error, **values)]
    return [row["id"] for row in await tx.rows("matching_live_runs", **values)]


async def start_again(tx: Tx, new_ids: Mapping[UUID, RunId], *, again: bool) -> tuple[dict[UUID, RunId], set[str]]:
    """-> pending: a new run for each of these that has finished; which those are, and their queues.

    `again` says that an earlier try lost its answer, and may have started them.
    """
    made = await tx.rows("start_runs_again", ids=list(new_ids.values()), origins=list(new_ids))
    started, queues = {row["id"] for row in made}, {row["queue"] for row in made}
    if again:
        ids = list(new_ids.values())
        await runs.undo_finished_starts(tx, ids)
        await runs.note_repeated_starts(tx, ids)
        started = await reads.existing(tx, ids)
    return {origin: new_id for origin, new_id in new_ids.items() if new_id in started}, queues
