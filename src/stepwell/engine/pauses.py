"""Pausing and resuming of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from stepwell.model.errors import AlreadyFinished, NotFound, WrongUse
from stepwell.model.states import State
from stepwell.store.pool import Row, Tx


@dataclass(frozen=True, slots=True)
class Steered:
    """The outcome of a pause or a resume."""

    queues: set[str]
    """Queues of the runs that were moved."""
    heard: list[UUID]
    """Workflows in a turn, whose worker must be told."""


async def pause(tx: Tx, ids: Sequence[UUID], *, by: str = "") -> Steered:
    """scheduled, waiting, pending -> paused: pause runs. A workflow that is in a turn is paused when the turn ends."""
    return _steered(await tx.rows("pause_runs", ids=list(ids), by=by))


async def resume(tx: Tx, ids: Sequence[UUID]) -> Steered:
    """paused -> scheduled, pending: resume runs where they were."""
    return _steered(await tx.rows("resume_runs", ids=list(ids)))


def _steered(rows: Sequence[Row]) -> Steered:
    return Steered({row["queue"] for row in rows}, [row["id"] for row in rows if row["state"] == State.RUNNING])


async def refuse_pause(tx: Tx, run_id: UUID, fine: State | None) -> None:
    """Raise the reason why a run could not be paused or resumed. A run that is in the wanted state already is no
    error."""
    found = await tx.rows("run_by_id", id=run_id)
    if not found:
        raise NotFound("id", str(run_id))
    state = State(found[0]["state"])
    if state.finished:
        raise AlreadyFinished(run_id, state)
    if fine is State.PAUSED and state is State.RUNNING:
        raise WrongUse(
            f"{found[0]['name']} {run_id} is running: a running task cannot be paused. Pause it before it begins, "
            "or cancel it"
        )
