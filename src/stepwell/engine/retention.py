"""What comes and goes with time: partitions made ahead and dropped, keys and runs forgotten."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from stepwell.store.pool import Tx

AHEAD = 7
"""Days for which partitions stand ready. Beyond, rows go to the default partition: kept, only less tidy."""

BRIEF = timedelta(hours=1)
"""What is not kept is there for this long: for those who wait for its result."""
KEEP_REPEATED = timedelta(days=2)
"""Far longer than any word can be on its way to the server."""


async def may_change_tables(tx: Tx) -> bool:
    """Whether this role can make the tables of days, and drop them."""
    return bool((await tx.rows("may_change_tables"))[0]["may"])


async def make_partitions(tx: Tx) -> bool:
    """Make the partitions of the days ahead; whether all were made that can be.

    Not in one transaction: it would keep each lock until the last partition is made, and hold up every writer.
    """
    in_use: set[str] = set()
    for row in await tx.rows("missing_partitions", ahead=AHEAD):
        if row["parent"] in in_use:
            continue  # each try holds up writers for as long as it waits
        if not (await tx.rows("make_partition", parent=row["parent"], day=row["day"]))[0]["made"]:
            in_use.add(row["parent"])
    return not in_use


async def forget_repeated_starts(tx: Tx) -> None:
    await tx.rows("forget_repeated_starts", keep=KEEP_REPEATED)


async def forget_keys(tx: Tx, *, limit: int) -> int:
    """Keys past their time whose run is not live; how many there were."""
    return len(await tx.rows("forget_keys", limit=limit))


async def drop_old_days(tx: Tx, keep: timedelta) -> list[str]:
    """Drop the partitions of days that are past their time; those that could be dropped without anyone waiting."""
    dropped: list[str] = []
    in_use: set[str] = set()
    for row in await tx.rows("old_partitions", keep=keep):
        if row["parent"] in in_use:
            continue  # who reads it reads all its days: each try would hold up those who write, for nothing
        if (await tx.rows("drop_partition", parent=row["parent"], part=row["part"]))[0]["dropped"]:
            dropped.append(str(row["part"]))
        else:
            in_use.add(row["parent"])
    return dropped


async def forget_strays(tx: Tx, keep: timedelta, *, limit: int) -> int:
    """Finished runs past their time that stand in no day's partition; how many there were."""
    return len(await tx.rows("forget_strays", keep=keep, limit=limit))


async def forget_brief_runs(tx: Tx, *, limit: int) -> int:
    """Runs that are not kept: how many there were."""
    return len(await tx.rows("forget_brief_runs", after=BRIEF, limit=limit))


async def forget_brief_queues(tx: Tx, *, limit: int) -> int:
    """Runs of queues that keep none; how many there were."""
    queues = [row["name"] for row in await tx.rows("brief_queues")]
    last: UUID | None = UUID(int=0)
    gone = 0
    while queues and last is not None:
        (row,) = await tx.rows("forget_brief_queues", queues=queues, last=last, after=BRIEF, limit=limit)
        last, gone = row["last"], gone + row["gone"]
    return gone
