"""`due`: the service that handles times. Delayed starts, retries and snoozes become pending at their time; runs that
were not started in time expire, and runs that did not end by their deadline fail."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager

from stepwell.dispatch.base import Channel, Wakes, tell_all
from stepwell.engine import ends, runs
from stepwell.model.run import OVERDUE, EndedRun, Error
from stepwell.model.turn import Consequences
from stepwell.services.service import Service
from stepwell.store.pool import Database
from stepwell.telemetry import Telemetry

BATCH = 1000
LOOK = 5.0
LOOK_DEAF = 0.5
"""Seconds between polls. A run that was started since the last poll may be due sooner than any that the poll saw, and
the notification of it may be lost. `LOOK_DEAF` applies while notifications do not arrive."""


class Due(Service):
    """Moves runs whose time has come."""

    name = "due"

    def __init__(self, database: Database, wakes: Wakes, telemetry: Telemetry | None = None) -> None:
        super().__init__()
        self._telemetry = telemetry or Telemetry()
        self._database = database
        self._wakes = wakes
        self._next_look = 0.0

    @contextmanager
    def listening(self) -> Iterator[None]:
        deaf = self._wakes.subscribe(Channel.SCHEDULED, self._heard)
        try:
            yield
        finally:
            deaf()

    def _heard(self, waits: Sequence[str] | None) -> None:
        """Wake up early if one of the announced runs is due before the next poll."""
        wait = min(map(float, waits), default=0.0) if waits else 0.0
        if asyncio.get_running_loop().time() + wait < self._next_look:
            self.sooner.set()

    async def run_once(self) -> float:
        self.sooner.clear()
        self._next_look = math.inf  # during this pass, any announced run may be due sooner than those that it finds
        wait = await self._run_once()
        self._next_look = asyncio.get_running_loop().time() + wait
        return wait

    async def _run_once(self) -> float:
        look = LOOK if self._wakes.hears else LOOK_DEAF
        wait = await runs.next_due(self._database)
        if wait is None or wait.total_seconds() > 0:
            return look if wait is None else min(wait.total_seconds(), look)
        queues = await runs.due(self._database, limit=BATCH)
        self._wakes.announce(Channel.PENDING, queues)
        ended = await self._end(ends.expire, None) + await self._end(ends.fail_overdue, OVERDUE)
        return 0.0 if queues or ended else 0.1

    async def _end(self, end: Callable[..., Awaitable[list[EndedRun]]], error: Error | None) -> int:
        """End runs whose time is over, with all that follows from their end. Without an `error` they expire."""
        after = Consequences()
        async with self._database.transaction() as tx:
            ended = await end(tx, after, limit=BATCH)
        after.finished = [each.id for each in ended]
        tell_all(self._wakes, after)
        if ended:
            self._telemetry.tell("due.ended", runs=ended, error=error)
        if after.gone:
            self._telemetry.tell("runs.cancelled", runs=after.gone)
        return len(ended)
