"""Children of a workflow that its own worker claims in the statement that starts them."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.engine import runs
from stepwell.model.ids import ClaimId, WorkerId
from stepwell.model.run import Claim
from stepwell.model.start import Start
from stepwell.model.states import State
from stepwell.store import copying
from stepwell.store.pool import Transaction, Tx


async def start_claimed(tx: Tx, starts: Sequence[Start], worker: WorkerId, claim_id: ClaimId) -> list[Claim]:
    """-> running, or pending where the worker may not take it: plain starts of a workflow's own worker."""
    if len(starts) > runs.MANY and isinstance(tx, Transaction):
        return await _copy_claimed(tx, starts, worker, claim_id)
    made = await tx.rows(
        "start_claimed_runs",
        ids=[each.id for each in starts],
        names=[each.terms.name for each in starts],
        queues=[each.terms.queue for each in starts],
        priorities=[each.terms.priority for each in starts],
        inputs=[each.input for each in starts],
        tags=[each.terms.tags for each in starts],
        retries=[each.terms.retry for each in starts],
        timeouts=[each.terms.timeout for each in starts],
        parent_ids=[each.terms.parent_id for each in starts],
        root_ids=[each.terms.root_id for each in starts],
        nodes=[each.node for each in starts],
        worker=worker,
        claim_id=claim_id,
    )
    taken = {row["id"] for row in made if row["state"] == State.RUNNING}
    return [_claimed(each, claim_id) for each in starts if each.id in taken]


async def _copy_claimed(tx: Transaction, starts: Sequence[Start], worker: WorkerId, claim_id: ClaimId) -> list[Claim]:
    """Start and claim many runs by COPY, which is the fastest way."""
    (found,) = await tx.rows("open_queues", queues=list({each.terms.queue for each in starts}), worker=worker)
    is_open = set(found["open"])
    taken = [each for each in starts if each.terms.queue in is_open]
    if len(taken) < len(starts):
        await runs.start_plain(tx, [each for each in starts if each.terms.queue not in is_open])
    claim = copying.EagerClaim(claim_id, worker, found["now"])
    await tx.copy("runs", copying.TAKEN_COLUMNS, copying.chunks(taken, claim, chunk=copying.LARGE_CHUNK))
    return [_claimed(each, claim_id) for each in taken]


def _claimed(start: Start, claim_id: ClaimId) -> Claim:
    terms = start.terms
    return Claim(
        claim_id, start.id, terms.name, terms.queue, terms.priority, 1, 0, start.input, terms.retry, terms.timeout,
        None, terms.tags, terms.root_id, node=start.node,
    )  # fmt: skip
