"""Gathers the facts that explain the state of a run. The explanation itself is made by `model/explanation.py`."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from stepwell.engine import notes, undelivered_ends, workers
from stepwell.engine.runs import CALM
from stepwell.model.errors import NotFound
from stepwell.model.explanation import explain
from stepwell.model.facts import Awaited, EndFacts, Explanation, QueueFacts, RunFacts, Surroundings, Taken
from stepwell.model.notes import Progress
from stepwell.model.pins import pin_of
from stepwell.model.rate import Rate
from stepwell.model.states import State
from stepwell.model.worker import WorkerInfo
from stepwell.store.pool import Row, Tx

MOST = 10_000
"""The largest number that is counted exactly."""
HOLDERS = 20
"""Maximum number of runs that are named as holders of a limit's places."""


async def explanation(tx: Tx, run_id: UUID) -> Explanation:
    """Explain the state of a run. Call it in one transaction, so that all facts are from one moment of the database's
    clock."""
    found = await tx.rows("run_facts", id=run_id)
    if not found:
        raise NotFound("id", str(run_id))
    run = _run(found[0])
    if run.state.finished:
        return explain(run, Surroundings(now=found[0]["now"]))
    everyone = await workers.seen(tx)
    holder = None if run.worker is None else await _holder(tx, run.worker, everyone)
    awaited, in_all, quiet_since = await _awaited(tx, run, found[0]["history_from"])
    around = Surroundings(
        now=found[0]["now"],
        queue=await _queue(tx, run) if run.state in (State.PENDING, State.SCHEDULED) else QueueFacts(),
        workers=[each for each in everyone if each.state == "live"],
        lone={row["claimed_by"]: row["id"] for row in await tx.rows("lone_runs", limit=MOST)} if run.alone else {},
        ahead=await _ahead(tx, run, found[0]["priority"]) if run.state is State.PENDING else 0,
        most_ahead=MOST,
        ended=await _ended(tx, run) if run.state is State.SCHEDULED else None,
        holder=holder,
        services=frozenset(row["service"] for row in await tx.rows("led_services")),
        progress=await _progress(tx, run) if run.state is State.RUNNING else None,
        calm_until=(await tx.rows("calm_until", calm=CALM))[0]["until"],
        awaited=awaited,
        awaited_in_all=in_all,
        quiet_since=quiet_since,
        untold=await _untold(tx, run) if run.awaits and not awaited else (),
    )
    return explain(run, around)


def _run(row: Row) -> RunFacts:
    """Convert a row of `run_facts`."""
    return RunFacts(
        id=row["id"],
        name=row["name"],
        queue=row["queue"],
        state=State(row["state"]),
        attempt=row["attempt"],
        failures=row["failures"],
        alone=row["alone"],
        limit_key=row["limit_key"],
        debounced=row["debounced"],
        created_at=row["created_at"],
        due_at=row["due_at"],
        expires_at=row["expires_at"],
        deadline_at=row["deadline_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        error=row["error"],
        worker=row["claimed_by"],
        kind=row["kind"],
        pin=pin_of(row["claim_name"] or "") if row["kind"] == "workflow" else None,
        signals=_json(row["waits_for"]).get("signals", ()),
        awaits=_json(row["waits_for"]).get("runs", ()),
        untaken=_json(row["waits_for"]).get("untaken", {}),
        blocked=_json(row["blocked"]) or None,
        paused_at=row["paused_at"],
        paused_by=row["paused_by"],
        pausing=row["pausing"],
    )


def _json(stored: bytes | None) -> dict[str, Any]:
    return {} if stored is None else msgspec.json.decode(stored)


async def _awaited(tx: Tx, run: RunFacts, begun: int | None) -> tuple[list[Awaited], int, datetime | None]:
    """Return some of the runs that a workflow waits for, their total number, and the time of the workflow's last
    event."""
    if run.kind != "workflow" or run.state not in (State.WAITING, State.PAUSED):
        return [], 0, None
    found = await tx.rows("awaited_runs", id=run.id, begun=begun or 1, names=list(run.awaits), most=MOST, limit=HOLDERS)
    last = await tx.rows("last_event", id=run.id)
    awaited = [Awaited(row["id"], row["name"], State(row["state"])) for row in found]
    return awaited, found[0]["runs"] if found else 0, last[0]["at"] if last else None


async def _untold(tx: Tx, run: RunFacts) -> list[UUID]:
    """Return some of the runs whose end was never delivered to the workflow that waits for them."""
    if run.kind != "workflow" or run.state is not State.WAITING:
        return []
    return [event.run_id for event in (await undelivered_ends.ends(tx, run.id))[:HOLDERS] if event.run_id is not None]


async def _progress(tx: Tx, run: RunFacts) -> Progress | None:
    """Return the latest step whose progress the body reported."""
    return next(reversed(await notes.progress(tx, run.id)), None)


async def _holder(tx: Tx, worker: UUID, seen: list[WorkerInfo]) -> WorkerInfo | None:
    """Return the worker that holds the claim, from `seen` if it is there."""
    known = [each for each in seen if each.id == worker] or await workers.seen(tx, [worker])
    return next(iter(known), None)


async def _queue(tx: Tx, run: RunFacts) -> QueueFacts:
    """Return the limits of the run's queue, how much of them is used, and whether the queue is paused."""
    (row,) = await tx.rows("queue_facts", queue=run.queue, limit_key=run.limit_key, most=MOST)
    places = Taken(row["concurrency"], row["held"])
    key_places = Taken(row["per_key"] if run.limit_key is not None else None, row["key_held"])
    rate = None if row["rate"] is None else Rate(row["rate"], row["rate_period"])
    return QueueFacts(
        paused_at=row["paused_at"],
        paused_by=row["paused_by"],
        places=await _with_holders(tx, run, places, None),
        key_places=await _with_holders(tx, run, key_places, run.limit_key),
        rate=rate,
        spent_until=row["spent_until"] if rate is not None and row["uses"] >= rate.count else None,
    )


async def _with_holders(tx: Tx, run: RunFacts, taken: Taken, limit_key: str | None) -> Taken:
    """Add the ids of runs that hold places, if the limit is full."""
    if not taken.is_full:
        return taken
    rows = await tx.rows("slot_holders", queue=run.queue, limit_key=limit_key, limit=HOLDERS)
    return Taken(taken.limit, taken.held, [row["id"] for row in rows])


async def _ahead(tx: Tx, run: RunFacts, priority: int) -> int:
    """Count the pending runs that are claimed before this one, up to `MOST` + 1."""
    where = {"queue": run.queue, "priority": priority, "id": run.id, "most": MOST + 1}
    if run.limit_key is None:
        return int((await tx.rows("runs_ahead", **where))[0]["runs"])
    return int((await tx.rows("runs_ahead_of_key", limit_key=run.limit_key, **where))[0]["runs"])


async def _ended(tx: Tx, run: RunFacts) -> EndFacts | None:
    """Return the last attempt of the run that has ended."""
    rows = await tx.rows("last_attempt", id=run.id)
    return EndFacts(rows[0]["attempt"], rows[0]["outcome"], rows[0]["error"], rows[0]["ended_at"]) if rows else None
