"""Undelivered ends: runs that ended without their end being delivered to the workflow that waits for them.

A run's end and its delivery are one transaction, so there are none, unless rows were deleted or restored by hand, or we
have a bug. Then the workflow would wait for ever, and no later event would make anyone look.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from stepwell.engine import arrivals
from stepwell.model.events import Event, EventType
from stepwell.model.run import Error, Reason
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.store import rows
from stepwell.store.pool import Row, Tx

LIVE = 5_000
"""Live runs examined by one look."""
EVENTS = 20_000
"""Events of histories that one look reads, plus those of the last workflow that it reads."""
ENDS = 1_000
"""Ends that are delivered in one transaction."""
FIRST = UUID(int=0)

_NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Scan:
    """The result of examining one page of live runs."""

    last: UUID | None
    """The last run that was examined; None if there are no more."""
    untold: list[UUID]
    """Workflows that wait for a run which is not live, and whose end was not delivered to them."""


async def look(tx: Tx, after: UUID = FIRST, *, live: int = LIVE, events: int = EVENTS) -> Scan:
    """Examine the next few runs behind this one."""
    (row,) = await tx.rows("untold_workflows", after=after, limit=live, most=events)
    return Scan(row["last"], row["untold"])


async def ends(tx: Tx, run_id: UUID) -> list[Event]:
    """Return the ends that were not delivered to a workflow. Lock its row first if they are to be delivered."""
    return [_end(row) for row in await tx.rows("untold_ends", id=run_id, limit=ENDS)]


async def tell(tx: Tx, run_id: UUID, after: Consequences) -> list[Event]:
    """waiting -> pending: deliver the ends that a workflow missed, once: every other delivery needs the lock on its
    row, too."""
    locked = await tx.rows("lock_run", id=run_id)
    if not locked or locked[0]["state"] != State.WAITING:
        return []
    found = await ends(tx, run_id)
    for event in found:
        await arrivals.arrive(tx, run_id, event, after)
    return found


def _end(row: Row) -> Event:
    task = row["type"] == EventType.TASK_SCHEDULED
    if row["state"] == State.COMPLETED:
        type = EventType.TASK_COMPLETED if task else EventType.CHILD_COMPLETED
    else:
        type = EventType.TASK_FAILED if task else EventType.CHILD_FAILED
    event = Event(0, type, _NEVER, row["command"], run_id=row["run"], value=row["result"], attempt=row["attempt"])
    event.error = rows.error(row["error"])
    if row["state"] is None:
        why = f"run {row['run']} is neither live nor finished: its row was deleted, and its outcome is unknown"
        event.error = Error("stepwell.NotFound", why, Reason.GAVE_UP)
    elif row["state"] not in (State.COMPLETED, State.FAILED):
        event.state = row["state"]
    return event
