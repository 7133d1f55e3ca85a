"""What became of claims, for a worker that cannot know: an answer was lost, or does not come."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from stepwell.engine import ends
from stepwell.model.ids import ClaimId, RunId, WorkerId
from stepwell.model.run import Claim
from stepwell.model.turn import Consequences
from stepwell.store.pool import Tx


async def held(tx: Tx, worker: WorkerId, claim_ids: Sequence[ClaimId] | None = None) -> list[Claim]:
    """What the table says a worker holds, of these claims or at all: bare claims."""
    if claim_ids is None:
        found = await tx.rows("held_claims", worker=worker)
    else:
        found = await tx.rows("held_of_claims", worker=worker, claim_ids=claim_ids)
    return [
        Claim.bare(RunId(row["id"]), ClaimId(row["claim_id"]), row["queue"], row["attempt"], row["deadline"])
        for row in found
    ]


async def already_settled(tx: Tx, claims: Sequence[Claim], after: Consequences) -> set[UUID]:
    """Of claims whose settling lost its answer, those that it did settle; `after` gets the parents that wait for them,
    of whom nobody was told."""
    ids, claim_ids = [each.id for each in claims], list({each.claim_id for each in claims})
    settled = {row["id"] for row in await tx.rows("settled_claims", ids=ids, claim_ids=claim_ids)}
    if parts := [each.id for each in claims if each.node is not None and each.id in settled]:
        await ends.note_parents(tx, parts, after)
    return settled


async def blocked(tx: Tx, claims: Sequence[Claim]) -> set[RunId]:
    """Of claims that are held, those whose run another transaction holds locked."""
    ids, claim_ids = [each.id for each in claims], list({each.claim_id for each in claims})
    return {RunId(row["id"]) for row in await tx.rows("locked_claims", ids=ids, claim_ids=claim_ids)}
