"""Arrivals: what reaches a workflow from outside of its turn.

Only the worker that holds a workflow's turn writes its history. Everyone else inserts an arrival and counts it on the
run's row. A turn that parks the run compares that count, under the row's lock, with the arrivals that it has delivered,
so that no arrival is missed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NoReturn
from uuid import UUID

from stepwell.model.errors import AlreadyFinished, NotFound, WrongUse
from stepwell.model.events import Event, EventType
from stepwell.model.pins import plain_name
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.store import history as stored
from stepwell.store.pool import Row, Tx

PAGE = 2_000
"""Arrivals per statement."""
NEVER = datetime.min
"""Placeholder for the time of an event that the database's clock will date."""


async def arrive(tx: Tx, run_id: UUID, event: Event, after: Consequences) -> str | None:
    """waiting -> pending: deliver an event to a workflow from outside. Return its name, or None if no such workflow is
    live."""
    return (await arrive_many(tx, {run_id: event}, after)).get(run_id)


async def arrive_many(tx: Tx, events: Mapping[UUID, Event], after: Consequences) -> dict[UUID, str]:
    """waiting -> pending: deliver one event to each of several workflows, in the order of their ids. Return the names
    of those that are live."""
    reached = await tx.rows(
        "arrive",
        ids=list(events),
        arrivals=[event.id for event in events.values()],
        types=[event.type for event in events.values()],
        datas=[stored.details(event) for event in events.values()],
    )
    for row in reached:
        note(row, after)
    return {row["id"]: plain_name(row["name"]) for row in reached}


async def ask_to_end(tx: Tx, ids: Sequence[UUID], after: Consequences) -> list[UUID]:
    """waiting -> pending: ask workflows to end. Return the ids of those that are live workflows."""
    request = Event(0, EventType.CANCEL_REQUESTED, NEVER)
    asked: list[UUID] = []
    for first in range(0, len(ids), PAGE):
        asked += await arrive_many(tx, dict.fromkeys(ids[first : first + PAGE], request), after)
    return asked


async def has_arrived(tx: Tx, run_id: UUID, event: Event, after: Consequences) -> bool:
    """Tell whether an event that is sent again, because the answer to it was lost, has arrived. The wake may be lost,
    too, so the run is noted again."""
    for row in await tx.rows("lock_run", id=run_id):
        after.wakes.add(row["queue"])
        after.heard.append(run_id)
    return bool((await tx.rows("has_arrived", id=run_id, arrival=str(event.id)))[0]["arrived"])


async def refuse_arrival(tx: Tx, run_id: UUID) -> NoReturn:
    """Raise the reason why nothing could be sent to a run."""
    found = await tx.rows("run_by_id", id=run_id)
    if not found:
        raise NotFound("id", str(run_id))
    if State(found[0]["state"]).finished:
        raise AlreadyFinished(run_id, found[0]["state"])
    why = f"{found[0]['name']} {run_id} is a {found[0]['kind']}: only workflows take signals and updates"
    if found[0]["attempt"] == 0:
        why += (
            ". If it is a workflow that was started by its name alone, send again once a worker that has its code "
            "is running"
        )
    raise WrongUse(why)


def note(row: Row, after: Consequences) -> None:
    """Note a workflow for which something arrived: wake its queue if it is pending, or tell its turn if it is
    running."""
    if row["state"] == State.PENDING:
        after.wakes.add(row["queue"])
    elif row["state"] == State.RUNNING:
        after.heard.append(row["id"])
