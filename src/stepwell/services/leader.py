"""Who runs the services, so that not everyone does.

A worker takes a service whose leader's time is up, and keeps it by renewing well before its own time is.
The term counts the changes of leader. Nothing rests on there being only one: a leader that slept past its
time does its last round beside the new one, and every service is written to bear that. So there is no
fence here, and the clock is the database's alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

from stepwell.engine import leaders
from stepwell.model.errors import Unavailable
from stepwell.model.ids import WorkerId
from stepwell.store.pool import Database
from stepwell.telemetry import log


class Leadership:
    def __init__(self, database: Database, *, worker: WorkerId, services: Sequence[str], hold: timedelta) -> None:
        self._database = database
        self._worker = worker
        self._hold = hold
        self._leads = {service: asyncio.Event() for service in services}
        self.terms: dict[str, int] = {}

    async def leads(self, service: str) -> None:
        """Wait until this worker leads the service."""
        await self._leads[service].wait()

    async def run(self) -> None:
        while True:
            try:
                await self.renew()
            except Unavailable as error:
                log.warning("leadership waits for the database: %s", error)
            except Exception:
                log.exception("leadership failed")
            await asyncio.sleep(self._hold.total_seconds() / 2)

    async def renew(self) -> None:
        self.terms = await leaders.lead(
            self._database, worker=self._worker, services=list(self._leads), hold=self._hold
        )
        for service, leading in self._leads.items():
            if service in self.terms:
                leading.set()
            else:
                leading.clear()

    async def resign(self) -> None:
        """Let others take over at once instead of waiting for our time to be up."""
        try:
            async with asyncio.timeout(2):
                await leaders.resign(self._database, self._worker)
        except (Unavailable, TimeoutError):
            pass
