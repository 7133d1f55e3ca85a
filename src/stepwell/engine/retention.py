"""What comes and goes with time: partitions made ahead, keys and workers forgotten."""

from __future__ import annotations

from datetime import timedelta

from stepwell.store.pool import Tx

AHEAD = 7
"""Days for which partitions stand ready. Beyond, rows go to the default partition: kept, only less tidy."""

KEEP_REPEATED = timedelta(days=2)
"""Far longer than any word can be on its way to the server."""


async def make_partitions(tx: Tx) -> int:
    """How many were missing."""
    return int((await tx.rows("make_partitions", ahead=AHEAD))[0]["made"])


async def forget_repeated_starts(tx: Tx) -> None:
    await tx.rows("forget_repeated_starts", keep=KEEP_REPEATED)


async def forget_keys(tx: Tx, *, limit: int) -> int:
    """Keys past their time whose run is not live; how many there were."""
    return len(await tx.rows("forget_keys", limit=limit))
