"""Workflows: what a turn finds, what it writes, what arrives between turns, and what a run's end is to its parent.

    waiting ──arrives, due──► pending ──claim──► running ──advance──┬─► waiting, or pending if more has arrived
                                                                   ├─► running: the turn goes on
                                                                   └─► completed, failed, cancelled

Only who holds the turn writes the history. Everyone else leaves an arrival, and counts it on the run's row: whoever
parks the run compares that count, under the row's lock, with what it has delivered. So nothing is missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn
from uuid import UUID

from stepwell.engine import runs
from stepwell.model.errors import AlreadyFinished, KeyConflict, NotFound, WrongUse
from stepwell.model.events import ENDS, Event, EventType, HistoryEvent
from stepwell.model.ids import RunId, WorkerId
from stepwell.model.pins import plain_name
from stepwell.model.run import Cancelled
from stepwell.model.start import Start
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.store import history as stored
from stepwell.store.pool import Row, Tx

PAGE = 2_000
"""Events of a history that are fetched at once."""


async def history(tx: Tx, run_id: UUID, *, after: int = 0) -> list[Event]:
    """What happened to a run behind this event, page by page."""
    events: list[Event] = []
    while True:
        page = await tx.rows("history", id=run_id, after=after, limit=PAGE)
        events += [stored.event(row) for row in page]
        if len(page) < PAGE:
            return events
        after = events[-1].idx


async def tell_parents(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
    """waiting -> pending: those who wait for runs that ended in this transaction."""
    if ids:
        for row in await tx.rows("tell_parents", ids=list(ids)):
            _told(row, after)


async def note_parents(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
    """Note the workflows that started these finished runs: a lost answer said nothing of them."""
    for row in await tx.rows("parents_of", ids=list(ids)):
        _told(row, after)


def _told(row: Row, after: Consequences) -> None:
    if row["state"] == State.PENDING:
        after.wakes.add(row["queue"])
    elif row["state"] == State.RUNNING:
        after.heard.append(row["id"])


async def ended_from_outside(tx: Tx, ids: Sequence[UUID], after: Consequences, *, turns: bool = True) -> None:
    """What follows when runs end, in the transaction in which they do, otherwise than by a workflow's own code: the
    last event of a workflow among them, the end of what it started, and news for those who wait."""
    if not ids:
        return
    if turns:
        workflows = [row["run_id"] for row in await tx.rows("end_histories", ids=list(ids))]
        if workflows:
            await cancel_children(tx, workflows, after)
    await tell_parents(tx, ids, after)


async def cancel(tx: Tx, ids: Sequence[UUID], *, force: bool = False) -> tuple[dict[UUID, Cancelled], Consequences]:
    """scheduled, waiting, pending, running, paused -> cancelled, with all that follows. A workflow that has begun is
    asked instead: what came of it is not known yet."""
    after = Consequences()
    if force:
        await lock_children(tx, ids)
    moved = await runs.cancel(tx, ids, force=force)
    await ended_from_outside(tx, [run_id for run_id, each in moved.items() if each.parts], after)
    after.asked += await _ask_to_end(tx, sorted(set(ids) - moved.keys()), after)
    after.wakes |= {each.freed for each in moved.values() if each.freed is not None}
    return moved, after


async def cancel_children(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
    """scheduled, waiting, pending, running, paused -> cancelled: what these workflows started and is not finished."""
    await cancel_parts(tx, await lock_children(tx, ids), after)


async def lock_children(tx: Tx, ids: Sequence[UUID]) -> list[UUID]:
    """What these workflows started and is not finished; before they end themselves: who ends a child has it first."""
    return [row["id"] for row in await tx.rows("children_of", ids=list(ids))] if ids else []


async def cancel_parts(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
    """Runs whose parent waits for them no longer: a workflow among them is asked, and may clean up.

    Tasks before workflows, as everyone takes them who takes both: a workflow may be the parent of such a task.
    """
    ids = sorted(set(ids))
    for page in [ids[first : first + PAGE] for first in range(0, len(ids), PAGE)]:
        tasks = [row["id"] for row in await tx.rows("kinds_of", ids=page) if row["kind"] != "workflow"]
        ended = await runs.cancel(tx, tasks) if tasks else {}
        after.cancelled += ended  # not told: nobody waits for them any more
        await _ask_to_end(tx, [run_id for run_id in page if run_id not in ended], after)


async def _ask_to_end(tx: Tx, ids: Sequence[UUID], after: Consequences) -> list[UUID]:
    """waiting -> pending: workflows that are to end; those of these runs that are such."""
    request = Event(0, EventType.CANCEL_REQUESTED, NEVER)
    asked: list[UUID] = []
    for first in range(0, len(ids), PAGE):
        asked += await _arrive(tx, dict.fromkeys(ids[first : first + PAGE], request), after)
    return asked


async def arrive(tx: Tx, run_id: UUID, event: Event, after: Consequences) -> str | None:
    """waiting -> pending: something for a workflow from outside; its name, or None if none such is live."""
    return (await _arrive(tx, {run_id: event}, after)).get(run_id)


async def _arrive(tx: Tx, events: Mapping[UUID, Event], after: Consequences) -> dict[UUID, str]:
    """One for each of several workflows, by their ids; the names of those that are live."""
    told = await tx.rows(
        "arrive",
        ids=list(events),
        arrivals=[event.id for event in events.values()],
        types=[event.type for event in events.values()],
        datas=[stored.details(event) for event in events.values()],
    )
    for row in told:
        _told(row, after)
    return {row["id"]: plain_name(row["name"]) for row in told}


async def signal_or_start(tx: Tx, start: Start, event: Event, after: Consequences) -> RunId:
    """-> pending, or waiting -> pending: a signal for the run that a start leads to, new or not; its id."""
    try:
        (run_id,) = await runs.start(tx, [start])
    except KeyConflict as conflict:
        # It began with another input, long ago perhaps. Only another workflow's key is another's.
        found = await tx.rows("run_by_id", id=conflict.run_id)
        if not found or found[0]["name"] != start.terms.name:
            raise
        run_id = RunId(conflict.run_id)
    if run_id == start.id and not start.terms.is_delayed:
        after.wakes.add(start.terms.queue)
    if not await arrive(tx, run_id, event, after):
        await refuse_arrival(tx, run_id)
    return run_id


async def has_arrived(tx: Tx, run_id: UUID, event: Event, after: Consequences) -> bool:
    """For what is sent again, because its answer was lost: whether it had arrived. Perhaps nobody was told of it."""
    for row in await tx.rows("lock_run", id=run_id):
        after.wakes.add(row["queue"])
        after.heard.append(run_id)
    return bool((await tx.rows("has_arrived", id=run_id, arrival=str(event.id)))[0]["arrived"])


async def refuse_arrival(tx: Tx, run_id: UUID) -> NoReturn:
    """Why nothing could be sent to a run."""
    found = await tx.rows("run_by_id", id=run_id)
    if not found:
        raise NotFound("id", str(run_id))
    if State(found[0]["state"]).finished:
        raise AlreadyFinished(run_id, found[0]["state"])
    why = f"{found[0]['name']} {run_id} is a {found[0]['kind']}: only workflows take signals and updates"
    if found[0]["attempt"] == 0:
        why += ". If it is one, it was started by its name alone, and will be known as one when a worker has its code"
    raise WrongUse(why)


async def answer(tx: Tx, run_id: UUID, update: UUID, after: int) -> tuple[Event | None, int]:
    """The answer to an update among the events behind this one; and the last event there is."""
    for event in await history(tx, run_id, after=after):
        after = event.idx
        if event.run_id == update and event.type in _ANSWERS:
            return event, after
        if event.type in ENDS and event.type is not EventType.CONTINUED_AS_NEW:
            raise AlreadyFinished(run_id, event.type)
    return None, after


_ANSWERS = (EventType.UPDATE_COMPLETED, EventType.UPDATE_FAILED, EventType.UPDATE_REJECTED)


async def shown(tx: Tx, run_id: UUID) -> list[HistoryEvent]:
    """A history, for people."""
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
    """Runs that a workflow started, finished or not."""
    return [RunId(row["id"]) for row in await tx.rows("started_by", id=run_id)]


async def unblock(tx: Tx, versions: Mapping[str, str], worker: WorkerId | None = None) -> set[str]:
    """waiting -> pending: runs whose code did not fit, where there is other code now; their queues."""
    names, had = list(versions), list(versions.values())
    woken = await tx.rows("unblock_runs", names=names, versions=had, worker=worker)
    return {row["queue"] for row in woken}


async def forget_published(tx: Tx, *, limit: int) -> int:
    """What was published by runs that are not kept any more; how many there were."""
    last: UUID | None = UUID(int=0)
    gone = 0
    while last is not None:
        (row,) = await tx.rows("forget_published", last=last, limit=limit)
        last, gone = row["last"], gone + row["gone"]
    return gone


async def published(tx: Tx, run_id: UUID) -> bytes | None:
    """What a workflow last showed."""
    found = await tx.rows("last_published", id=run_id)
    return found[0]["state"] if found else None


NEVER = datetime.min  # the table's clock says when
