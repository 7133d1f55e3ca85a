"""Leadership of services: which worker runs each service, and until when."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from stepwell.model.ids import WorkerId
from stepwell.store.pool import Tx


async def lead(tx: Tx, *, worker: WorkerId, services: Sequence[str], hold: timedelta) -> dict[str, int]:
    """Take or renew leadership. Return the services that this worker leads from now on, each with its term."""
    won = await tx.rows("lead", worker=worker, services=services, hold=hold)
    return {row["service"]: row["term"] for row in won}


async def resign(tx: Tx, worker: WorkerId) -> None:
    """End the leadership of every service that this worker leads."""
    await tx.rows("resign", worker=worker)
