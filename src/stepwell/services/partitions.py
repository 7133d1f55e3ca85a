"""`partitions`: the days ahead have theirs before their first row, and what is out of date is forgotten."""

from __future__ import annotations

from stepwell.engine import retention, workers
from stepwell.services.service import Service
from stepwell.store.pool import Database

LOOK = 3600.0
BATCH = 1000


class Partitions(Service):
    name = "partitions"

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def run_once(self) -> float:
        while await retention.forget_keys(self._database, limit=BATCH) == BATCH:
            pass
        await retention.forget_repeated_starts(self._database)
        await workers.forget(self._database)
        # Last: a role that owns no tables may not, and is told so; the rest is done all the same.
        await retention.make_partitions(self._database)
        return LOOK
