"""Leader election for the services, so that only one worker runs each of them.

A worker takes over a service whose leader's hold has expired, and keeps it by renewing at half of the hold time. The
term counts the changes of leader. Correctness does not depend on a single leader: a leader that was suspended past its
hold finishes its last pass beside the new leader, and every service is written to tolerate that. So there is no fencing
here, and only the database's clock counts.
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
    """Leadership of services by this worker, renewed for as long as `run` runs."""

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
        """Renew leadership until cancelled. Errors are logged and retried: leadership only saves work."""
        while True:
            try:
                await self.renew()
            except Unavailable as error:
                log.warning(
                    "the database is unavailable; leadership of services will be renewed when it is back: %s", error
                )
            except Exception:
                log.exception("renewing the leadership of services failed; trying again")
            await asyncio.sleep(self._hold.total_seconds() / 2)

    async def renew(self) -> None:
        """Take or renew each service that is free, and update which services this worker leads."""
        self.terms = await leaders.lead(
            self._database, worker=self._worker, services=list(self._leads), hold=self._hold
        )
        for service, leading in self._leads.items():
            if service in self.terms:
                leading.set()
            else:
                leading.clear()

    async def resign(self) -> None:
        """Give up leadership, so that other workers need not wait for the hold to expire."""
        try:
            async with asyncio.timeout(2):
                await leaders.resign(self._database, self._worker)
        except (Unavailable, TimeoutError):
            pass
