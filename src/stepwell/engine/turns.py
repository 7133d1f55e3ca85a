"""Turns: read what is new for a turn, write what it produced, and move its run.

waiting ──arrives, due──► pending ──claim──► running ──advance──┬─► waiting, or pending if more has arrived
                                                               ├─► running: the turn goes on
                                                               └─► completed, failed, cancelled
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any
from uuid import UUID

import msgspec

from stepwell.engine import arrivals, eager_children, ends, runs
from stepwell.engine.arrivals import NEVER
from stepwell.engine.ends import ClaimEnd
from stepwell.engine.runs import MANY
from stepwell.model.commands import Ended
from stepwell.model.errors import ClaimLost, KeyConflict
from stepwell.model.events import Event, EventType
from stepwell.model.ids import ClaimId, RunId, WorkerId
from stepwell.model.run import Claim, Error, Reason
from stepwell.model.start import Start, plain_parts
from stepwell.model.states import State
from stepwell.model.turn import Advance, Advanced, Consequences, News
from stepwell.store import copying
from stepwell.store import history as stored
from stepwell.store.pool import Transaction, Tx

PAGE = 2_000
"""Starts per statement."""


async def news(tx: Tx, claims: Sequence[Claim]) -> dict[UUID, News]:
    """Return what is new for turns that are held. An id that is missing has lost its claim."""
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


async def advance(tx: Tx, advances: Sequence[Advance], *, worker: WorkerId, claim_id: ClaimId) -> Consequences:
    """running -> waiting, pending, paused, or a finished state: write what turns produced, and move their runs.

    It needs a transaction, unless all of them are lone, or `only` record or complete. It raises ClaimLost, which rolls
    back the whole transaction, if a turn that moves other runs with it has lost its claim.
    """
    if all([each.only == "records" for each in advances]):
        return Consequences(await record(tx, advances))
    advances = sorted(advances, key=_BY_ID)
    if all([each.only == "completes" for each in advances]):
        return await _complete(tx, advances)
    return await _advance(tx, advances, worker, claim_id)


async def record(tx: Tx, advances: Sequence[Advance]) -> dict[UUID, Advanced]:
    """Write the events of turns that go on. An id that is missing has lost its claim. Nobody else needs to be told."""
    if len(advances) == 1 and len(advances[0].events) == 1:
        (only,) = advances
        recorded = await _record_one(tx, only)
        return {} if recorded is None else {only.claim.id: recorded}
    advances = sorted(advances, key=_BY_ID)
    (made,) = await tx.rows("record_turns", **_record_columns(advances))
    ids = [each.claim.id for each in advances] if made["moved"] is None else made["moved"]
    turns: dict[UUID, Advanced] = dict.fromkeys(ids, _WENT_ON)
    heard, pausing = set(made["heard"]), set(made["pausing"])
    for run_id in heard | pausing:
        turns[run_id] = Advanced(State.RUNNING, _ALL if run_id in heard else 0, run_id in pausing)
    return turns


async def _record_one(tx: Tx, advance: Advance) -> Advanced | None:
    """Write the one event of a turn that goes on; None if it has lost its claim."""
    (event,) = advance.events
    claim = advance.claim
    moved = await tx.rows(
        "record_turn", id=claim.id, claim_id=claim.claim_id, idx=event.idx, type=event.type, at=event.at,
        data=stored.details(event),
    )  # fmt: skip
    return Advanced(State.RUNNING, moved[0]["arrived"], moved[0]["pausing"]) if moved else None


async def _complete(tx: Tx, advances: Sequence[Advance]) -> Consequences:
    """running -> completed: complete workflows whose end nobody waits for."""
    made = {row["id"]: row["arrived"] for row in await tx.rows("complete_turns", **_completed_columns(advances))}
    finished = list(made)
    if late := [each.claim.id for each in advances if made.get(each.claim.id, 0) > each.seen]:
        await tx.rows("forget_arrivals", ids=late)
    return Consequences(dict.fromkeys(finished, Advanced(State.COMPLETED, 0)), finished)


async def _advance(tx: Tx, advances: Sequence[Advance], worker: WorkerId, claim_id: ClaimId) -> Consequences:
    """running -> waiting, pending, paused, or a finished state: the general case, with starts, cancellations and
    ends."""
    after = Consequences()
    starts = [start for each in advances for start in each.starts]
    refused = await _start(tx, starts)
    after.wakes |= {start.terms.queue for start in starts if not start.terms.is_delayed}
    here = [start for each in advances for start in each.here]
    claims = await eager_children.start_claimed(tx, here, worker, claim_id) if here else []
    if len(claims) < len(here):
        after.wakes |= {start.terms.queue for start in here}
    # After the starts: a run may be cancelled in the turn that started it.
    await ends.cancel_parts(tx, [run_id for each in advances for run_id in each.cancels], after)
    # Before the workflows' own rows: whoever ends a child locks it first, and then tells its parent.
    await ends.lock_children(tx, [each.claim.id for each in advances if each.ended is not None and each.ended.cancels])
    by_copy = sum([len(each.events) for each in advances]) > MANY and isinstance(tx, Transaction)
    for row in await tx.rows("advance_turns", **_columns(advances), **_event_columns([] if by_copy else advances)):
        after.turns[row["id"]] = Advanced(State(row["state"]), row["arrived"], row["pausing"])
        if row["state"] == State.PENDING:
            after.wakes.add(row["queue"])
    if by_copy:
        await _copy_events(tx, [each for each in advances if each.claim.id in after.turns])
    lost = [each for each in advances if each.claim.id not in after.turns]
    if any(not each.is_lone for each in lost):
        raise ClaimLost(lost[0].claim.id, lost[0].claim.attempt)
    ending = {each.claim.id: each for each in advances if each.ended is not None}
    for parent, event in refused:
        if parent not in ending:
            await arrivals.arrive(tx, parent, event, after)
    await _end(tx, list(ending.values()), after)
    after.claims = claims
    return after


async def _start(tx: Tx, starts: Sequence[Start]) -> list[tuple[UUID, Event]]:
    """-> pending, scheduled: start the runs of turns. Return the refusals for the parents of children whose key belongs
    to another run."""
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
            refusal = Event(0, type, NEVER, int(each.node or 0), run_id=each.id, error=error)
            refused.append((each.terms.parent_id, refusal))
    return refused


async def _start_unkeyed(tx: Tx, starts: Sequence[Start]) -> None:
    """-> pending, scheduled: start runs without a key, by COPY if there are many plain ones."""
    if isinstance(tx, Transaction) and len(starts) > MANY:
        plain = plain_parts(starts)
        await runs.start_plain(tx, plain)
        starts = [] if len(plain) == len(starts) else [start for start in starts if not start.is_plain_part]
    for first in range(0, len(starts), PAGE):
        await runs.start(tx, starts[first : first + PAGE])


async def _copy_events(tx: Any, advances: Sequence[Advance]) -> None:
    """Write many events by COPY, which is the fastest way."""
    histories = [(each.claim.id, each.events) for each in advances]
    chunks = copying.event_chunks(histories, stored.details, chunk=copying.LARGE_CHUNK)
    await tx.copy("events", copying.EVENT_COLUMNS, chunks)


def _event_columns(advances: Sequence[Advance]) -> dict[str, Any]:
    """Return the columns of events in the form that is fastest for the driver: texts, and one JSON document instead of
    many."""
    events = [event for each in advances for event in each.events]
    return {
        "places": copying.array([place for place, each in enumerate(advances, 1) for _ in each.events]),
        "idxs": copying.array([event.idx for event in events]),
        "types": copying.array([event.type for event in events]),
        "ats": copying.array([copying.microseconds(event.at) for event in events]),
        "datas": b"[%b]" % b",".join([stored.details(event) for event in events]),
    }


def _record_columns(advances: Sequence[Advance]) -> dict[str, Any]:
    return {
        "ids": copying.array([each.claim.id for each in advances]),
        "claim_ids": copying.array([each.claim.claim_id for each in advances]),
        "recorded": copying.array([each.recorded for each in advances]),
        "seen": copying.array([each.seen for each in advances]),
        **_event_columns(advances),
    }


def _completed_columns(advances: Sequence[Advance]) -> dict[str, Any]:
    return {
        "ids": [each.claim.id for each in advances],
        "claim_ids": [each.claim.claim_id for each in advances],
        "results": [each.ended and each.ended.value for each in advances],
        **_event_columns(advances),
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


async def _end(tx: Tx, ending: Sequence[Advance], after: Consequences) -> None:
    """running -> completed, failed, cancelled: end workflows whose code has ended. Their claims are known to hold,
    since this transaction has locked their rows."""
    endings = [_ending(each, each.ended) for each in ending if each.ended is not None and each.ended.type in _STATES]
    cancelled = [each.claim.id for each in endings if each.state is State.CANCELLED]
    await ends.cancel_children(tx, cancelled, after)
    ended = await ends.end(tx, endings, after, by_own_code=True)
    finished = [each.claim.id for each in endings if each.claim.id in ended.moved]
    after.finished = finished
    if any(each.seen < after.turns[each.claim.id].arrived for each in ending):
        await tx.rows("forget_arrivals", ids=finished)


def _ending(advance: Advance, ended: Ended) -> ClaimEnd:
    state = _STATES[ended.type]
    return ClaimEnd(advance.claim, state, ended.value or b"null", ended.error if state is State.FAILED else None)


_BY_ID = attrgetter("claim.id")
"""Sort key for the order in which rows are locked."""

_STATES = {
    EventType.WORKFLOW_COMPLETED: State.COMPLETED,
    EventType.WORKFLOW_FAILED: State.FAILED,
    EventType.WORKFLOW_CANCELLED: State.CANCELLED,
}


_ALL = 2**31 - 1
"""Larger than any number of arrivals. As `seen`, it marks all arrivals of an ending workflow as seen; as `arrived`, it
makes a turn look for arrivals."""

_WENT_ON = Advanced(State.RUNNING, 0)
"""The turn goes on, and nothing has arrived that it does not know of."""
