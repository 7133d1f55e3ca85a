"""Looks up what became of claims, for a worker whose statement got no answer."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from stepwell.engine import ends
from stepwell.model.ids import ClaimId, RunId, WorkerId
from stepwell.model.run import Claim
from stepwell.model.turn import Consequences
from stepwell.store.pool import Tx


async def held(tx: Tx, worker: WorkerId, claim_ids: Sequence[ClaimId] | None = None) -> list[Claim]:
    """Return the claims that the table says a worker holds, all or among these claim ids, as bare claims."""
    if claim_ids is None:
        found = await tx.rows("held_claims", worker=worker)
    else:
        found = await tx.rows("held_of_claims", worker=worker, claim_ids=claim_ids)
    return [
        Claim.bare(RunId(row["id"]), ClaimId(row["claim_id"]), row["queue"], row["attempt"], row["deadline"])
        for row in found
    ]


async def already_settled(tx: Tx, claims: Sequence[Claim], after: Consequences) -> set[UUID]:
    """Return the claims that were settled, among claims whose settling got no answer. The parents that wait for these
    runs are noted in `after`, since nobody was told of them."""
    ids, claim_ids = [each.id for each in claims], list({each.claim_id for each in claims})
    settled = {row["id"] for row in await tx.rows("settled_claims", ids=ids, claim_ids=claim_ids)}
    if parts := [each.id for each in claims if each.node is not None and each.id in settled]:
        await ends.note_parents(tx, parts, after)
    return settled


async def blocked(tx: Tx, claims: Sequence[Claim]) -> set[RunId]:
    """Return the runs that another transaction holds locked, among these claims that are still held."""
    ids, claim_ids = [each.id for each in claims], list({each.claim_id for each in claims})
    return {RunId(row["id"]) for row in await tx.rows("locked_claims", ids=ids, claim_ids=claim_ids)}
