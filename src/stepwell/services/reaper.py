"""`reaper`: claims whose worker holds no lease end as Failed(worker_lost), and the retry policy on the row
decides what follows. It looks at leases and claims only: at no start-up, no name, no event that may be missed."""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from uuid import UUID

from stepwell.dispatch.base import Wakes, tell_all
from stepwell.engine import runs, settle, workers
from stepwell.model.outcome import Failed
from stepwell.model.run import Error, Reason
from stepwell.services.service import Service
from stepwell.store.pool import Database
from stepwell.telemetry import Telemetry, log

BATCH = 500
LOOK = 5.0
"""Seconds between looks, at the most: a claim may belong to a worker that has no row."""
TOLD = 1000
NOBODY = 1.0
"""The same while nobody holds a lease: the worker that leads is about to, and others may, and lose it."""

LOST = Failed(Error("WorkerLost", "the worker that ran this attempt stopped renewing its lease", Reason.WORKER_LOST))


class Reaper(Service):
    name = "reaper"

    def __init__(self, database: Database, wakes: Wakes, telemetry: Telemetry, *, calm: timedelta = runs.CALM) -> None:
        super().__init__()
        self._database = database
        self._wakes = wakes
        self._telemetry = telemetry
        self._calm = calm
        self._told: deque[UUID] = deque(maxlen=TOLD)
        """Lost workers whose loss was told."""

    async def run_once(self) -> float:
        reaped, next_end = await self.reap()
        if reaped == BATCH:
            return 0.0
        return NOBODY if next_end is None else min(next_end.total_seconds() + 0.01, LOOK)

    async def reap(self) -> tuple[int, timedelta | None]:
        """Settle lost claims, each locked from the look to the write: one that is settled meanwhile stays so. How many
        there were, and how long it was then until the next lease ends."""
        async with self._database.transaction() as tx:
            lost = await runs.lock_lost_claims(tx, limit=BATCH, calm=self._calm)
            # By the clock of the same transaction: no lease ends between the two looks, unseen by both.
            next_end = await workers.next_lease_end(tx)
            settled = await settle.apply(tx, settle.plan([(claim, LOST) for claim in lost]))
            holders = {claim.holder for claim in lost if claim.holder is not None}.difference(self._told)
            gone = await workers.seen(tx, list(holders)) if holders else []
        after = settled.after
        after.wakes |= {claim.queue for claim in lost if claim.limited}
        after.finished = [*after.finished, *settled.finished]
        tell_all(self._wakes, after)
        if lost:
            log.warning("reaped %d claims of lost workers", len(lost))
            self._told.extend(holders)
            self._telemetry.tell(
                "reaper.reaped", claims=lost, workers=gone, settlements=[(claim, LOST) for claim in lost],
                lost={claim.id for claim in lost} - settled.moved, moves=settled.moves,
            )  # fmt: skip
        if after.gone:
            self._telemetry.tell("runs.cancelled", runs=after.gone)
        return len(lost), next_end
