"""Queues: their limits, and whether they are paused. Each claim reads these settings from the table."""

from __future__ import annotations

from collections.abc import Collection

from stepwell.model.queue import COUNTED, Limits, QueueInfo
from stepwell.model.rate import Rate
from stepwell.store.pool import Row, Tx


async def set_limits(tx: Tx, name: str, limits: Limits, *, sets: Collection[str]) -> None:
    """Set the limits of a queue that `sets` names. Runs that are running there count at once.

    Call it in a transaction: until that ends, nothing is claimed from the queue. Call `count_in` after its commit.
    """
    rate = limits.rate
    await tx.rows(
        "set_queue",
        name=name,
        concurrency=limits.concurrency,
        rate=None if rate is None else rate.count,
        rate_period=None if rate is None else rate.period,
        per_key=limits.per_key,
        keep=limits.keep,
        sets=sorted(sets),
    )
    await count_in(tx, name)


async def count_in(tx: Tx, name: str) -> None:
    """Count the running runs of a queue that has just got a limit.

    Called once more after the commit: a claim may have been under way that did not see the limit.
    """
    await tx.rows("count_in", name=name)


async def pause(tx: Tx, name: str, *, by: str) -> None:
    """Pause a queue: nothing more is claimed from it. Runs that are running go on."""
    await tx.rows("pause_queue", name=name, by=by)


async def resume(tx: Tx, name: str) -> bool:
    """Resume a queue. Return True if it was paused."""
    return bool(await tx.rows("resume_queue", name=name))


async def seen(tx: Tx, name: str | None = None) -> list[QueueInfo]:
    """Return every queue that has settings or live runs, by name; or only the queue of that name, if it exists."""
    return [_info(row) for row in await tx.rows("queues_seen", name=name, most=COUNTED)]


def _info(row: Row) -> QueueInfo:
    rate = None if row["rate"] is None else Rate(row["rate"], row["rate_period"])
    return QueueInfo(
        name=row["name"],
        limits=Limits(row["concurrency"], rate, row["per_key"], row["keep"]),
        paused_at=row["paused_at"],
        paused_by=row["paused_by"],
        pending=row["pending"],
        running=row["running"],
        first_pending=row["first_pending"],
        workers=row["workers"],
    )
