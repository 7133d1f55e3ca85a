"""Rows in any state, with everything about them as the tables demand."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import msgspec

from stepwell.engine import ends, runs, settle, workers
from stepwell.engine.workers import Identity
from stepwell.model.ids import ClaimId, RunId, WorkerId, new_claim_id, new_run_id, new_worker_id
from stepwell.model.outcome import Completed, Failed
from stepwell.model.retry import Retry
from stepwell.model.run import Claim, Error, Reason, Wanted
from stepwell.model.start import Start, Terms
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.store.pool import Transaction

BOOM = Error("ValueError", "boom", Reason.RAISED, traceback="Traceback …", types=("ValueError", "Exception"))


@dataclass(frozen=True)
class Made:
    """A run that stands in some state, and the claim that once held it or holds it now."""

    id: RunId
    claim: Claim


OWN = ("key", "digest", "limit_key", "unique_key", "debounce_key")


def a_start(name: str = "tests.task", **changes: Any) -> Start:
    own = {field: changes.pop(field) for field in OWN if field in changes}
    input = changes.pop("input", b'{"n": 1}')
    retry = msgspec.json.encode(changes.pop("retry", Retry()).packed())
    return Start(new_run_id(), input, Terms(name, retry=retry, **changes), **own)


async def a_worker(tx: Transaction, lease: float = 60.0) -> WorkerId:
    who = Identity(new_worker_id(), "tests", "host", 1, "0", None, 10)
    await workers.renew(tx, who, timedelta(seconds=lease))
    return who.id


async def claimed(tx: Transaction, start: Start | None = None, *, worker: WorkerId | None = None) -> Claim:
    """A run that is running."""
    start = start or a_start(queue=f"q-{uuid.uuid4().hex[:8]}")
    await runs.start(tx, [start])
    worker = worker or await a_worker(tx)
    claimed = await runs.claim(
        tx, Wanted(worker, [start.terms.queue], [start.terms.name], 1, alone=True), new_claim_id()
    )
    return claimed.claims[0]


async def a_run(tx: Transaction, state: State) -> Made:
    """A run in the given state. Its claim is real while it runs, and well-formed but stale otherwise."""
    claim = await claimed(tx)
    match state:
        case State.RUNNING:
            pass
        case State.COMPLETED:
            await settle.apply(tx, settle.plan([(claim, Completed(b"1"))]))
        case State.FAILED:
            gave_up = Error("Fatal", "no", Reason.GAVE_UP)
            await settle.apply(tx, settle.plan([(claim, Failed(gave_up))]))
        case State.CANCELLED:
            await ends.cancel(tx, [claim.id])
        case State.EXPIRED:
            await force(tx, claim.id, State.PENDING)
            await execute(
                tx, "update stepwell.runs set expires_at = stepwell.now() - interval '1s' where id = $1", claim.id
            )
            await ends.expire(tx, Consequences(), limit=1000)
        case State.SKIPPED:
            # Nothing skips a run yet: the row is written as a graph will write it.
            await ends.cancel(tx, [claim.id])
            await execute(tx, "alter table stepwell.finished_runs disable trigger user")
            await execute(tx, "update stepwell.finished_runs set state = 'skipped' where id = $1", claim.id)
            await execute(tx, "alter table stepwell.finished_runs enable trigger user")
        case _:
            await force(tx, claim.id, state)
    return Made(claim.id, claim)


async def force(tx: Transaction, run_id: RunId, state: State) -> None:
    """Put a running run into an unclaimed state, whatever moves there are."""
    due = state in (State.SCHEDULED, State.WAITING)
    await execute(
        tx,
        "update stepwell.runs set state = $2, claim_id = null, claimed_by = null, started_at = null, "
        "due_at = case when $3 then stepwell.now() - interval '1s' end where id = $1",
        run_id,
        state.value,
        due,
    )


async def execute(tx: Transaction, sql: str, *values: Any) -> Any:
    return await tx.connection.execute(sql, *values)  # type: ignore[attr-defined]


async def row_of(tx: Transaction, run_id: uuid.UUID) -> dict[str, Any]:
    (found,) = await tx.rows("run_by_id", id=run_id)
    return dict(found)


async def state_of(tx: Transaction, run_id: uuid.UUID) -> State:
    return State((await row_of(tx, run_id))["state"])


async def attempts_of(tx: Transaction, run_id: uuid.UUID) -> list[dict[str, Any]]:
    return [dict(row) for row in await tx.rows("attempts_of", id=run_id)]


def another_claim(claim: Claim) -> Claim:
    """The same run under a claim id that never held it."""
    return Claim.bare(claim.id, ClaimId(uuid.uuid4()), claim.queue, claim.attempt)
