"""Workers: the lease of each one, which is a row that it renews while it lives, and samples of its load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import msgspec

from stepwell.model.ids import WorkerId
from stepwell.model.worker import Sample, Vitals, WorkerInfo
from stepwell.store.pool import Row, Tx

KEEP_WORKERS = timedelta(days=30)
KEEP_SAMPLES = timedelta(days=3)
GONE = timedelta(days=1)
"""Time for which a worker that is gone is still listed."""
LATELY, MOST_SAMPLES = timedelta(minutes=1), 12
MOST_WORKERS = 1000


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a worker. The id is made anew by every process: a name may come back, an id does not."""

    id: WorkerId
    name: str
    host: str
    pid: int
    version: str
    queues: Sequence[str] | None
    slots: int
    names: Sequence[str] | None = None
    """The definitions that it knows."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions of its workflows, by name."""


async def renew(tx: Tx, who: Identity, lease: timedelta) -> None:
    """Take or renew the lease of a worker."""
    await tx.rows(
        "renew_lease",
        id=who.id,
        name=who.name,
        host=who.host,
        pid=who.pid,
        version=who.version,
        queues=who.queues,
        names=who.names,
        slots=who.slots,
        versions=msgspec.json.encode(who.versions),
        lease=lease,
    )


async def sample(tx: Tx, worker: WorkerId, vitals: Vitals) -> None:
    """Record the load of a worker."""
    await tx.rows(
        "sample_worker",
        id=worker,
        cpu=vitals.cpu,
        memory=vitals.memory,
        running=vitals.running,
        claimed=vitals.claimed,
        unrecorded=0 if vitals.unrecorded is None else vitals.unrecorded.outcomes,
        seconds=0.0 if vitals.unrecorded is None else vitals.unrecorded.seconds,
        why=None if vitals.unrecorded is None else vitals.unrecorded.why,
    )


async def seen(tx: Tx, ids: Sequence[UUID] | None = None) -> list[WorkerInfo]:
    """Return live workers first, then those that have been gone for at most a day; or the workers with these ids."""
    found = await tx.rows("workers_seen", ids=None if ids is None else list(ids), gone=GONE, limit=MOST_WORKERS)
    live = [row["id"] for row in found if row["state"] == "live"]
    samples: dict[UUID, list[Sample]] = {}
    for row in await tx.rows("samples_of", ids=live, since=LATELY, each=MOST_SAMPLES) if live else []:
        taken = Sample(row["at"], row["cpu"], row["memory"], row["running"], row["claimed"])
        samples.setdefault(row["worker_id"], []).append(taken)
    return [_info(row, samples.get(row["id"], [])) for row in found]


def _info(row: Row, samples: list[Sample]) -> WorkerInfo:
    return WorkerInfo(
        id=row["id"],
        name=row["name"],
        host=row["host"],
        pid=row["pid"],
        version=row["version"],
        queues=row["queues"],
        names=row["names"],
        slots=row["slots"],
        running=row["running"],
        state=row["state"],
        started_at=row["started_at"],
        lease_until=row["lease_until"],
        stopped_at=row["stopped_at"],
        lease_left=row["lease_left"],
        samples=samples,
        versions=None if row["versions"] is None else msgspec.json.decode(row["versions"]),
    )


async def leave(tx: Tx, worker: WorkerId) -> None:
    """End the lease of a worker that has stopped."""
    await tx.rows("leave", id=worker)


async def next_lease_end(tx: Tx) -> timedelta | None:
    """Return the time until the first lease ends."""
    seconds = (await tx.rows("next_lease_end"))[0]["seconds"]
    return None if seconds is None else timedelta(seconds=seconds)


async def forget(tx: Tx) -> None:
    """Delete workers that have been gone for long and that no run refers to."""
    await tx.rows("forget_workers", keep=KEEP_WORKERS)


async def forget_samples(tx: Tx, *, limit: int) -> int:
    """Delete old samples. Return how many went: about `limit`, or fewer if there were no more."""
    return len(await tx.rows("forget_samples", keep=KEEP_SAMPLES, limit=limit))
