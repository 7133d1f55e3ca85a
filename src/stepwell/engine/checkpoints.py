"""What a body saves for the next attempt. Only who holds the claim may, and no older code over newer."""

from __future__ import annotations

from uuid import UUID

from stepwell.model.errors import ClaimLost, NewerCheckpoint
from stepwell.model.notes import Saved
from stepwell.model.run import Claim
from stepwell.store.pool import Tx


async def save(tx: Tx, claim: Claim, state: bytes, *, schema: int, after: int | None = None) -> tuple[int, bool]:
    """The version that is there now, and whether this is it: not if it isn't `after`, the last that this attempt
    saved (None: it saved nothing yet)."""
    saved = await tx.rows(
        "save_checkpoint", id=claim.id, claim_id=claim.claim_id, schema=schema, state=state, after=after
    )
    if saved:
        return int(saved[0]["version"]), True
    there = await load(tx, claim)
    if there is None:
        raise ClaimLost(claim.id, claim.attempt)
    if there.schema > schema:
        raise NewerCheckpoint(claim.id, there.schema, schema)
    return there.version, False


async def load(tx: Tx, claim: Claim) -> Saved | None:
    found = await tx.rows("load_checkpoint", id=claim.id, claim_id=claim.claim_id)
    if not found:
        raise ClaimLost(claim.id, claim.attempt)
    row = found[0]
    return None if row["version"] is None else Saved(row["version"], row["schema"], row["state"])


async def forget(tx: Tx, *, limit: int) -> int:
    """Those of runs that have finished; how many there were. Some at a time, along their ids."""
    last: UUID | None = UUID(int=0)
    gone = 0
    while last is not None:
        (row,) = await tx.rows("forget_checkpoints", last=last, limit=limit)
        last, gone = row["last"], gone + row["gone"]
    return gone
