"""What comes and goes with time: partitions made ahead, keys and workers forgotten."""

from __future__ import annotations

from stepwell.store.pool import Tx

AHEAD = 7
"""Days for which partitions stand ready. Beyond, rows go to the default partition: kept, only less tidy."""


async def make_partitions(tx: Tx) -> int:
    """How many were missing."""
    return int((await tx.rows("make_partitions", ahead=AHEAD))[0]["made"])


async def forget_keys(tx: Tx, *, limit: int) -> int:
    """Keys past their time whose run is not live; how many there were."""
    return len(await tx.rows("forget_keys", limit=limit))
