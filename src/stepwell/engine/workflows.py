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
from typing import Any, NoReturn
from uuid import UUID

import msgspec

from stepwell.engine import runs
from stepwell.model.errors import AlreadyFinished, ClaimLost, KeyConflict, NotFound, WrongUse
from stepwell.model.events import ENDS, Event, EventType, HistoryEvent
from stepwell.model.ids import ClaimId, RunId, WorkerId
from stepwell.model.run import Cancelled, Claim, Error, Reason
from stepwell.model.start import Start, plain_parts
from stepwell.model.states import State
from stepwell.model.turn import Advance, Advanced, Consequences, News
from stepwell.store import copying
from stepwell.store import history as stored
from stepwell.store.pool import Row, Transaction, Tx
from stepwell.store.rows import stored_error

PAGE = 2_000
"""Events of a history that are fetched at once."""
MANY = 200
"""From this many on, events and runs of one write are copied into their tables."""


async def news(tx: Tx, claims: Sequence[Claim]) -> dict[UUID, News]:
    """What there is for turns that are held. An id that is missing has lost its claim."""
    claims = sorted(claims, key=lambda claim: claim.id.bytes)
    found = await tx.rows(
        "turns_held", ids=[claim.id for claim in claims], claim_ids=[claim.claim_id for claim in claims]
    )
    news: dict[UUID, News] = {}
    for row in found:
        held = news.get(row["id"])
        if held is None:
            held = news[row["id"]] = News(
                row["recorded"], row["arrived"], row["history_from"] or 1, row["parent_id"], row["now"],
                row["pausing"],
            )  # fmt: skip
        if row["place"] is not None:
            held.arrivals.append(stored.arrival(row))
    return news


async def history(tx: Tx, run_id: UUID, *, after: int = 0) -> list[Event]:
    """What happened to a run behind this event, page by page."""
    events: list[Event] = []
    while True:
        page = await tx.rows("history", id=run_id, after=after, limit=PAGE)
        events += [stored.event(row) for row in page]
        if len(page) < PAGE:
            return events
        after = events[-1].idx


async def advance(tx: Tx, advances: Sequence[Advance], *, worker: WorkerId, claim_id: ClaimId) -> Consequences:
    """running -> waiting, pending, paused, or a finished state: what turns wrote, and where it leaves their runs.

    In a transaction, unless all of them are lone. ClaimLost, which takes it back as a whole, if one of several
    that move others with them has lost its claim.
    """
    advances = sorted(advances, key=lambda each: each.claim.id.bytes)
    all_of_them = Consequences()
    if all([each.only_records for each in advances]):
        for row in await tx.rows("record_turns", **_record_columns(advances)):
            all_of_them.turns[row["id"]] = Advanced(State.RUNNING, row["arrived"], row["pausing"])
        return all_of_them
    starts = [start for each in advances for start in each.starts]
    refused = await _start(tx, starts)
    all_of_them.wakes |= {start.terms.queue for start in starts if not start.terms.is_delayed}
    here = [start for each in advances for start in each.here]
    claims = await runs.start_claimed(tx, here, worker, claim_id) if here else []
    if len(claims) < len(here):
        all_of_them.wakes |= {start.terms.queue for start in here}
    # After the starts: one may have been given up in the turn that started it.
    await _cancel(tx, [run_id for each in advances for run_id in each.cancels], all_of_them)
    events = [(each.claim.id, event) for each in advances for event in each.events]
    apart = len(events) > MANY and isinstance(tx, Transaction)
    for row in await tx.rows("advance_turns", **_columns(advances), **_event_columns([] if apart else events)):
        all_of_them.turns[row["id"]] = Advanced(State(row["state"]), row["arrived"], row["pausing"])
        if row["state"] == State.PENDING:
            all_of_them.wakes.add(row["queue"])
    if apart:
        await _copy_events(tx, [each for each in events if each[0] in all_of_them.turns])
    lost = [each for each in advances if each.claim.id not in all_of_them.turns]
    if any(not each.is_lone for each in lost):
        raise ClaimLost(lost[0].claim.id, lost[0].claim.attempt)
    ending = {each.claim.id: each for each in advances if each.ended is not None}
    for parent, event in refused:
        if parent not in ending:
            await arrive(tx, parent, event, all_of_them)
    await _end(tx, list(ending.values()), all_of_them)
    all_of_them.claims = claims
    return all_of_them


async def _start(tx: Tx, starts: Sequence[Start]) -> list[tuple[UUID, Event]]:
    """-> pending, scheduled: what turns start; and what is to be told to those whose child has a key of another run."""
    await _start_unkeyed(tx, [each for each in starts if each.key is None])
    refused = []
    for each in starts:
        if each.key is None or each.terms.parent_id is None:
            continue
        try:
            (held_by,) = await runs.start(tx, [each])
        except KeyConflict as conflict:
            held_by = RunId(conflict.run_id)
        if held_by != each.id:
            why = f"the key {each.key!r} belongs to run {held_by}, which was not started by this call"
            type = EventType.CHILD_FAILED if each.terms.kind == "workflow" else EventType.TASK_FAILED
            error = Error("stepwell.KeyConflict", why, Reason.GAVE_UP)
            told = Event(0, type, _NEVER, int(each.node or 0), run_id=each.id, error=error)
            refused.append((each.terms.parent_id, told))
    return refused


async def _start_unkeyed(tx: Tx, starts: Sequence[Start]) -> None:
    if isinstance(tx, Transaction) and len(starts) > MANY:
        plain = plain_parts(starts)
        await runs.start_plain(tx, plain)
        starts = [] if len(plain) == len(starts) else [start for start in starts if not start.is_plain_part]
    for first in range(0, len(starts), PAGE):
        await runs.start(tx, starts[first : first + PAGE])


async def _copy_events(tx: Any, events: Sequence[tuple[UUID, Event]]) -> None:
    """Many events, in the quickest way there is."""
    rows = ((run_id, event.idx, event.type, event.at, stored.details(event)) for run_id, event in events)
    await tx.copy("events", copying.EVENT_COLUMNS, copying.event_chunks(rows))


def _event_columns(events: Sequence[tuple[UUID, Event]]) -> dict[str, Any]:
    return {
        "event_runs": [run_id for run_id, _ in events],
        "idxs": [event.idx for _, event in events],
        "types": [event.type for _, event in events],
        "ats": [event.at for _, event in events],
        "datas": [stored.details(event) for _, event in events],
    }


def _record_columns(advances: Sequence[Advance]) -> dict[str, Any]:
    return {
        "ids": [each.claim.id for each in advances],
        "claim_ids": [each.claim.claim_id for each in advances],
        "recorded": [each.recorded for each in advances],
        "seen": [each.seen for each in advances],
        **_event_columns([(each.claim.id, event) for each in advances for event in each.events]),
    }


def _columns(advances: Sequence[Advance]) -> dict[str, Any]:
    shown = [each for each in advances if each.published is not None]
    return {
        "ids": [each.claim.id for each in advances],
        "claim_ids": [each.claim.claim_id for each in advances],
        "shown_runs": [each.claim.id for each in shown],
        "shown": [each.published for each in shown],
        "recorded": [each.recorded for each in advances],
        "seen": [each.seen if each.ended is None else _ALL for each in advances],
        "froms": [each.history_from for each in advances],
        "tos": ["stay" if each.ended is not None else each.to for each in advances],
        "dues": [each.due for each in advances],
        "waits": [None if each.waits_for is None else msgspec.json.encode(each.waits_for) for each in advances],
        "blocks": [None if each.blocked is None else msgspec.json.encode(each.blocked) for each in advances],
    }


async def _end(tx: Tx, ending: Sequence[Advance], all_of_them: Consequences) -> None:
    """Workflows whose code has ended. Their claims are known to hold: this transaction has their rows."""
    finished: list[UUID] = []
    for statement, which in _ENDING.items():
        group = [each for each in ending if each.ended is not None and each.ended.type is which]
        if not group:
            continue
        columns: dict[str, Any] = {
            "ids": [each.claim.id for each in group],
            "claim_ids": [each.claim.claim_id for each in group],
        }
        if statement == "complete_runs":
            columns |= {"results": [each.ended.value for each in group if each.ended], "usages": [None] * len(group)}
        elif statement == "fail_runs":
            errors = [stored_error(each.ended.error) for each in group if each.ended and each.ended.error]
            columns |= {"errors": errors, "usages": [None] * len(group)}
        finished += [row["id"] for row in await tx.rows(statement, **columns)]
        if which is EventType.WORKFLOW_CANCELLED:
            await cancel_children(tx, columns["ids"], all_of_them)
    all_of_them.finished = finished
    if any(each.seen < all_of_them.turns[each.claim.id].arrived for each in ending):
        await tx.rows("forget_arrivals", ids=finished)
    parts = {each.claim.id for each in ending if each.claim.node is not None}
    await tell_parents(tx, [run_id for run_id in finished if run_id in parts], all_of_them)


_ENDING = {
    "complete_runs": EventType.WORKFLOW_COMPLETED,
    "fail_runs": EventType.WORKFLOW_FAILED,
    "cancel_turns": EventType.WORKFLOW_CANCELLED,
}


async def tell_parents(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
    """waiting -> pending: those who wait for runs that ended in this transaction."""
    if ids:
        for row in await tx.rows("tell_parents", ids=list(ids)):
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
    moved = await runs.cancel(tx, ids, force=force)
    await ended_from_outside(tx, [run_id for run_id, each in moved.items() if each.parts], after)
    after.asked += await _ask_to_end(tx, sorted(set(ids) - moved.keys()), after)
    after.wakes |= {each.freed for each in moved.values() if each.freed is not None}
    return moved, after


async def cancel_children(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
    """scheduled, waiting, pending, running, paused -> cancelled: what these workflows started and is not finished."""
    await _cancel(tx, [row["id"] for row in await tx.rows("children_of", ids=list(ids))], after)


async def _cancel(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
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
    request = Event(0, EventType.CANCEL_REQUESTED, _NEVER)
    asked: list[UUID] = []
    for first in range(0, len(ids), PAGE):
        asked += await _arrive(tx, dict.fromkeys(ids[first : first + PAGE], request), after)
    return asked


async def arrive(tx: Tx, run_id: UUID, event: Event, after: Consequences) -> bool:
    """waiting -> pending: something for a workflow from outside; whether there is such a live workflow."""
    return bool(await _arrive(tx, {run_id: event}, after))


async def _arrive(tx: Tx, events: Mapping[UUID, Event], after: Consequences) -> list[UUID]:
    """One for each of several workflows, by their ids; those that are live."""
    told = await tx.rows(
        "arrive",
        ids=list(events),
        arrivals=[event.id for event in events.values()],
        types=[event.type for event in events.values()],
        datas=[stored.details(event) for event in events.values()],
    )
    for row in told:
        _told(row, after)
    return [row["id"] for row in told]


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


_ALL = 2**31 - 1
"""Of what has arrived for a workflow that ends: nobody will ask for it."""
_NEVER = datetime.min  # the table's clock says when
