"""`partitions`: the service that creates the partitions of the coming days, and deletes data past its retention
time."""

from __future__ import annotations

from datetime import timedelta

from stepwell.engine import checkpoints, retention, workers, workflows
from stepwell.services.service import Service
from stepwell.store.pool import Database
from stepwell.telemetry import log

LOOK, SOON = 3600.0, 60.0
"""Seconds between passes. `SOON` applies after a pass that could not create a partition because its table was in
use."""
BATCH = 1000
NOT_OWNER = (
    "this role does not own the tables, so it cannot create partitions for the coming days or drop expired ones. "
    "Let workers connect as the owner, or grant the owner's role to the workers' role"
)


class Partitions(Service):
    """Maintains the partitions, and deletes what has passed its retention time."""

    name = "partitions"

    def __init__(self, database: Database, *, keep: timedelta | None) -> None:
        """`keep` is the retention time of finished runs; None keeps them for ever."""
        super().__init__()
        self._database = database
        self._keep = keep

    async def run_once(self) -> float:
        while await retention.forget_keys(self._database, limit=BATCH) == BATCH:
            pass
        await retention.forget_repeated_starts(self._database)
        await checkpoints.forget(self._database, limit=BATCH)
        await workflows.forget_published(self._database, limit=BATCH)
        await workers.forget(self._database)
        while await workers.forget_samples(self._database, limit=BATCH) >= BATCH:
            pass
        while await retention.forget_brief_runs(self._database, limit=BATCH) == BATCH:
            pass
        await retention.forget_brief_queues(self._database, limit=10 * BATCH)
        if self._keep is not None:
            while await retention.forget_strays(self._database, self._keep, limit=BATCH) == BATCH:
                pass
        if await retention.may_change_tables(self._database):
            return LOOK if await self._change_tables() else SOON
        log.warning(NOT_OWNER)
        return LOOK

    async def _change_tables(self) -> bool:
        """Create and drop partitions. Return True if every missing partition was created."""
        are_made = await retention.make_partitions(self._database)
        if self._keep is not None and (dropped := await retention.drop_old_days(self._database, self._keep)):
            log.info("dropped the partitions %s: retention is %s days", ", ".join(dropped), self._keep.days)
        return are_made
