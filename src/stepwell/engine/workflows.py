"""Workflows between their turns: their history, the answers to updates, what they publish, and blocked code."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from stepwell.engine import arrivals, runs
from stepwell.model.errors import AlreadyFinished, KeyConflict, NotFound
from stepwell.model.events import ENDS, Event, EventType, HistoryEvent
from stepwell.model.ids import RunId, WorkerId
from stepwell.model.start import Start
from stepwell.model.turn import Consequences
from stepwell.store import history as stored
from stepwell.store.pool import Tx

PAGE = 2_000
"""Events of a history that are read at once."""


async def history(tx: Tx, run_id: UUID, *, after: int = 0) -> list[Event]:
    """Return the events of a run behind `after`, read page by page."""
    events: list[Event] = []
    while True:
        page = await tx.rows("history", id=run_id, after=after, limit=PAGE)
        events += [stored.event(row) for row in page]
        if len(page) < PAGE:
            return events
        after = events[-1].idx


async def signal_or_start(tx: Tx, start: Start, event: Event, after: Consequences) -> RunId:
    """-> pending, or waiting -> pending: send a signal to the run to which a start leads, new or not. Return its id."""
    try:
        (run_id,) = await runs.start(tx, [start])
    except KeyConflict as conflict:
        # The run was started with another input, perhaps long ago. It is still the right one, unless the key belongs to
        # another workflow.
        found = await tx.rows("run_by_id", id=conflict.run_id)
        if not found or found[0]["name"] != start.terms.name:
            raise
        run_id = RunId(conflict.run_id)
    if run_id == start.id and not start.terms.is_delayed:
        after.wakes.add(start.terms.queue)
    if not await arrivals.arrive(tx, run_id, event, after):
        await arrivals.refuse_arrival(tx, run_id)
    return run_id


async def answer(tx: Tx, run_id: UUID, update: UUID, after: int) -> tuple[Event | None, int]:
    """Return the answer to an update, if it is among the events behind `after`, and the number of the last event."""
    for event in await history(tx, run_id, after=after):
        after = event.idx
        if event.run_id == update and event.type in _ANSWERS:
            return event, after
        if event.type in ENDS and event.type is not EventType.CONTINUED_AS_NEW:
            raise AlreadyFinished(run_id, event.type)
    return None, after


_ANSWERS = (EventType.UPDATE_COMPLETED, EventType.UPDATE_FAILED, EventType.UPDATE_REJECTED)


async def shown(tx: Tx, run_id: UUID) -> list[HistoryEvent]:
    """Return a history in readable form."""
    events: list[HistoryEvent] = []
    while True:
        page = await tx.rows("history", id=run_id, after=events[-1].idx if events else 0, limit=PAGE)
        events += [HistoryEvent(row["idx"], row["type"], row["at"], stored.shown(row)) for row in page]
        if len(page) < PAGE:
            break
    if not events and not await tx.rows("run_by_id", id=run_id):
        raise NotFound("id", str(run_id))
    return events


async def children(tx: Tx, run_id: UUID) -> list[RunId]:
    """Return the runs that a workflow started, finished or not."""
    return [RunId(row["id"]) for row in await tx.rows("started_by", id=run_id)]


async def unblock(tx: Tx, versions: Mapping[str, str], worker: WorkerId | None = None) -> set[str]:
    """waiting -> pending: move blocked workflows for which there is other code now. Return their queues."""
    names, had = list(versions), list(versions.values())
    woken = await tx.rows("unblock_runs", names=names, versions=had, worker=worker)
    return {row["queue"] for row in woken}


async def forget_published(tx: Tx, *, limit: int) -> int:
    """Delete the published states of runs that are not kept any more. Return how many there were."""
    last: UUID | None = UUID(int=0)
    gone = 0
    while last is not None:
        (row,) = await tx.rows("forget_published", last=last, limit=limit)
        last, gone = row["last"], gone + row["gone"]
    return gone


async def published(tx: Tx, run_id: UUID) -> bytes | None:
    """Return the last state that a workflow published."""
    found = await tx.rows("last_published", id=run_id)
    return found[0]["state"] if found else None
