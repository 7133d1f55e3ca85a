"""Checkpoints: what a body saves for its next attempt. Only the holder of the claim may save, and older code may not
overwrite the checkpoint of newer code."""

from __future__ import annotations

from uuid import UUID

from stepwell.model.errors import ClaimLost, NewerCheckpoint
from stepwell.model.notes import Saved
from stepwell.model.run import Claim
from stepwell.store.pool import Tx


async def save(tx: Tx, claim: Claim, state: bytes, *, schema: int, after: int | None = None) -> tuple[int, bool]:
    """Save a checkpoint. Return the version that is stored now, and whether this call stored it.

    It is refused if the stored version is not `after`, the last one that this attempt saved (None: nothing saved yet).
    """
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
    """Return the checkpoint of the run, or None if nothing was saved."""
    found = await tx.rows("load_checkpoint", id=claim.id, claim_id=claim.claim_id)
    if not found:
        raise ClaimLost(claim.id, claim.attempt)
    row = found[0]
    return None if row["version"] is None else Saved(row["version"], row["schema"], row["state"])


async def forget(tx: Tx, *, limit: int) -> int:
    """Delete the checkpoints of finished runs, page by page along their ids. Return how many were deleted."""
    last: UUID | None = UUID(int=0)
    gone = 0
    while last is not None:
        (row,) = await tx.rows("forget_checkpoints", last=last, limit=limit)
        last, gone = row["last"], gone + row["gone"]
    return gone
