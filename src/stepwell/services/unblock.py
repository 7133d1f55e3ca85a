"""`unblock`: workflows that wait for other code are woken when this process has other code.

Every process with a worker runs it for itself, since each has its own versions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from stepwell.dispatch.base import Channel, Wakes
from stepwell.engine import workflows
from stepwell.engine.workers import Identity
from stepwell.model.pins import claim_name
from stepwell.services.service import Service
from stepwell.store.pool import Database

LOOK = 60.0
"""Seconds between looks: a workflow may come to wait while older code still runs beside ours."""


class Unblock(Service):
    name = "unblock"

    def __init__(
        self, database: Database, wakes: Wakes, who: Identity, *,
        ready: Callable[[], Awaitable[object]], found: Callable[[], None],
    ) -> None:  # fmt: skip
        """`ready` waits until the worker has its row, which tells its age. `found` is called if there is something in
        the worker's own queues: announced, it would be claimed as soon by a worker with the old code."""
        super().__init__()
        self._database = database
        self._wakes = wakes
        self._who = who
        self._ready = ready
        self._found = found

    async def run_once(self) -> float:
        await self._ready()
        if self._who.versions:
            await self._unblock()
        return LOOK

    async def _unblock(self) -> None:
        """waiting -> pending: wake workflows that stopped at other code than this worker has."""
        versions, queues = self._who.versions, self._who.queues
        pinned = {claim_name(name, version): version for name, version in versions.items()}
        woken = await workflows.unblock(self._database, {**versions, **pinned}, self._who.id)
        ours = woken if queues is None else woken.intersection(queues)
        self._wakes.announce(Channel.PENDING, woken - ours)
        if ours:
            self._found()
