"""`reaper`: the service that settles the claims of lost workers. A claim whose worker holds no lease ends as
Failed(worker_lost), and the retry policy on the row decides what follows. The reaper reads leases and claims only; it
does not depend on start-ups, names or events that may be missed."""

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
"""Maximum seconds between polls: a claim may belong to a worker that has no row."""
MOST_REPORTED = 1000
"""Number of lost workers that are remembered as reported."""
LOOK_WITHOUT_LEASES = 1.0
"""Seconds between polls while no worker holds a lease: the leader's worker is about to take one, and so may others,
which may then lose it."""

LOST = Failed(Error("WorkerLost", "the worker that ran this attempt stopped renewing its lease", Reason.WORKER_LOST))


class Reaper(Service):
    """Settles the claims of workers that have lost their lease."""

    name = "reaper"

    def __init__(self, database: Database, wakes: Wakes, telemetry: Telemetry, *, calm: timedelta = runs.CALM) -> None:
        super().__init__()
        self._database = database
        self._wakes = wakes
        self._telemetry = telemetry
        self._calm = calm
        self._reported: deque[UUID] = deque(maxlen=MOST_REPORTED)
        """Lost workers whose loss was reported."""

    async def run_once(self) -> float:
        reaped, next_end = await self.reap()
        if reaped == BATCH:
            return 0.0
        return LOOK_WITHOUT_LEASES if next_end is None else min(next_end.total_seconds() + 0.01, LOOK)

    async def reap(self) -> tuple[int, timedelta | None]:
        """Settle lost claims. Each one is locked from the read to the write, so a claim that its worker settles
        meanwhile stays settled. Return how many claims were lost, and the time until the next lease ends."""
        async with self._database.transaction() as tx:
            lost = await runs.lock_lost_claims(tx, limit=BATCH, calm=self._calm)
            # Read by the clock of the same transaction: otherwise a lease could end between the two reads and be missed
            # by both.
            next_end = await workers.next_lease_end(tx)
            settled = await settle.apply(tx, settle.plan([(claim, LOST) for claim in lost]))
            holders = {claim.holder for claim in lost if claim.holder is not None}.difference(self._reported)
            gone = await workers.seen(tx, list(holders)) if holders else []
        after = settled.after
        after.wakes |= {claim.queue for claim in lost if claim.limited}
        after.finished = [*after.finished, *settled.finished]
        tell_all(self._wakes, after)
        if lost:
            log.warning("reaped %d claims of workers whose lease ended", len(lost))
            self._reported.extend(holders)
            self._telemetry.tell(
                "reaper.reaped", claims=lost, workers=gone, settlements=[(claim, LOST) for claim in lost],
                lost={claim.id for claim in lost} - settled.moved, moves=settled.moves,
            )  # fmt: skip
        if after.gone:
            self._telemetry.tell("runs.cancelled", runs=after.gone)
        return len(lost), next_end
