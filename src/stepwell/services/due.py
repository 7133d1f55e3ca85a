"""`due`: whatever waits for time. Delayed starts, back-offs and snoozes become pending; what was not
started in time expires."""

from __future__ import annotations

from stepwell.dispatch.base import Channel, Dispatch
from stepwell.engine import runs
from stepwell.store.pool import Database

BATCH = 1000
LOOK = 1.0
"""Seconds between looks: a run started since the last one may be due sooner than any seen then."""


class Due:
    name = "due"

    def __init__(self, database: Database, dispatch: Dispatch) -> None:
        self._database = database
        self._dispatch = dispatch

    async def run_once(self) -> float:
        wait = await runs.next_due(self._database)
        if wait is not None and wait.total_seconds() > 0:
            return min(wait.total_seconds(), LOOK)
        if wait is None:
            return LOOK
        queues = await runs.due(self._database, limit=BATCH)
        self._dispatch.announce(Channel.PENDING, queues)
        expired = await runs.expire(self._database, limit=BATCH)
        self._dispatch.announce(Channel.FINISHED, [run_id.hex for run_id in expired])
        return 0.0 if queues or expired else 0.1
