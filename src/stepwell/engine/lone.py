"""Runs that come one by one: the same moves as in runs.py and turns.py, by statements that are ready sooner."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.engine.runs import by_id
from stepwell.model.ids import ClaimId
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim, Claimed, Exchanged, Wanted
from stepwell.model.states import State
from stepwell.model.turn import Advance, Advanced
from stepwell.model.word import Word
from stepwell.store import history, rows
from stepwell.store.pool import Tx


async def claim_from(tx: Tx, queue: str, wanted: Wanted, claim_id: ClaimId) -> Claimed:
    """pending -> running, up to `limit`: from one queue without a limit, the most urgent and then the oldest."""
    taken = await tx.rows(
        "claim_from_queue",
        queue=queue,
        names=wanted.names,
        worker=wanted.worker,
        limit=wanted.limit,
        claim_id=claim_id,
    )
    first = taken[0]
    claims = rows.claims(taken, claim_id, first=1) if first["id"] is not None else []
    return Claimed(claims, wanted.limit, first["more"])


async def record(tx: Tx, advance: Advance) -> Advanced | None:
    """The one event of a turn that goes on; None if it has lost its claim."""
    (event,) = advance.events
    claim = advance.claim
    moved = await tx.rows(
        "record_turn", id=claim.id, claim_id=claim.claim_id, idx=event.idx, type=event.type, at=event.at,
        data=history.details(event),
    )  # fmt: skip
    return Advanced(State.RUNNING, moved[0]["arrived"], moved[0]["pausing"]) if moved else None


async def complete(tx: Tx, completed: Sequence[tuple[Claim, Completed]], word: Word | None = None) -> Exchanged:
    """running -> completed: an exchange for nothing."""
    completed = sorted(completed, key=by_id)
    ids = [claim.id for claim, _ in completed]
    answer = await tx.rows(
        "complete_and_say",
        ids=ids,
        claim_ids=[claim.claim_id for claim, _ in completed],
        results=b"[%b]" % b",".join([outcome.result for _, outcome in completed]),
        channel=word and word.channel,
        word=word and word.text,
    )
    moved = answer[0]["moved"]
    return Exchanged([], set() if moved is None else set(ids).difference(moved), answer[0]["said"])
