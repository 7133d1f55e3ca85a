"""Retention: partitions are created ahead and dropped, and expired keys and runs are deleted."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from stepwell.store.pool import Tx

AHEAD = 7
"""Days for which partitions are created ahead. Rows of later days go to the default partition: they are kept, but
deleted less cheaply."""

BRIEF = timedelta(hours=1)
"""Time for which a run that is not to be kept stays, so that callers who wait for its result can read it."""
KEEP_REPEATED = timedelta(days=2)
"""Time for which repeated starts are remembered: far longer than any start can be on its way to the server."""


async def may_change_tables(tx: Tx) -> bool:
    """Tell whether this role can create and drop the partitions."""
    return bool((await tx.rows("may_change_tables"))[0]["may"])


async def make_partitions(tx: Tx) -> bool:
    """Create the partitions of the coming days. Return True if every partition that can be created was.

    Not in one transaction: that would keep each lock until the last partition is created, and block every writer.
    """
    in_use: set[str] = set()
    for row in await tx.rows("missing_partitions", ahead=AHEAD):
        if row["parent"] in in_use:
            continue  # each try blocks writers for as long as it waits for the lock
        if not (await tx.rows("make_partition", parent=row["parent"], day=row["day"]))[0]["made"]:
            in_use.add(row["parent"])
    return not in_use


async def forget_repeated_starts(tx: Tx) -> None:
    """Delete the records of repeated starts that are old enough."""
    await tx.rows("forget_repeated_starts", keep=KEEP_REPEATED)


async def forget_keys(tx: Tx, *, limit: int) -> int:
    """Delete expired keys whose run is not live. Return how many there were."""
    return len(await tx.rows("forget_keys", limit=limit))


async def drop_old_days(tx: Tx, keep: timedelta) -> list[str]:
    """Drop the partitions of days that have passed their retention time. Return those that could be dropped without
    blocking anyone."""
    dropped: list[str] = []
    in_use: set[str] = set()
    for row in await tx.rows("old_partitions", keep=keep):
        if row["parent"] in in_use:
            continue  # a reader of the table reads all its days, so each further try would only block writers
        if (await tx.rows("drop_partition", parent=row["parent"], part=row["part"]))[0]["dropped"]:
            dropped.append(str(row["part"]))
        else:
            in_use.add(row["parent"])
    return dropped


async def forget_strays(tx: Tx, keep: timedelta, *, limit: int) -> int:
    """Delete finished runs past their retention time that are in no day's partition. Return how many there were."""
    return len(await tx.rows("forget_strays", keep=keep, limit=limit))


async def forget_brief_runs(tx: Tx, *, limit: int) -> int:
    """Delete runs that are not to be kept. Return how many there were."""
    return len(await tx.rows("forget_brief_runs", after=BRIEF, limit=limit))


async def forget_brief_queues(tx: Tx, *, limit: int) -> int:
    """Delete the finished runs of queues that keep none. Return how many there were."""
    queues = [row["name"] for row in await tx.rows("brief_queues")]
    last: UUID | None = UUID(int=0)
    gone = 0
    while queues and last is not None:
        (row,) = await tx.rows("forget_brief_queues", queues=queues, last=last, after=BRIEF, limit=limit)
        last, gone = row["last"], gone + row["gone"]
    return gone
