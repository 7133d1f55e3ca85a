"""A worker's lease: one row, renewed for as long as the worker lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from stepwell.model.ids import WorkerId
from stepwell.store.pool import Tx

KEEP_WORKERS = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a worker is. The id is made anew by every process: a name may come back, an id does not."""

    id: WorkerId
    name: str
    host: str
    pid: int
    version: str
    queues: Sequence[str] | None
    slots: int


async def renew(tx: Tx, who: Identity, lease: timedelta) -> None:
    await tx.rows(
        "renew_lease",
        id=who.id,
        name=who.name,
        host=who.host,
        pid=who.pid,
        version=who.version,
        queues=who.queues,
        slots=who.slots,
        lease=lease,
    )


async def leave(tx: Tx, worker: WorkerId) -> None:
    await tx.rows("leave", id=worker)


async def next_lease_end(tx: Tx) -> timedelta | None:
    """How long until the first of the leases ends."""
    seconds = (await tx.rows("next_lease_end"))[0]["seconds"]
    return None if seconds is None else timedelta(seconds=seconds)


async def forget(tx: Tx) -> None:
    await tx.rows("forget_workers", keep=KEEP_WORKERS)
