"""A service: a body, `run_once`, and the one loop that repeats it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

from stepwell.beside import within
from stepwell.model.errors import Unavailable
from stepwell.model.ids import WorkerId
from stepwell.services.leader import Leadership
from stepwell.store.pool import Database
from stepwell.telemetry import Telemetry, log


class Service(ABC):
    """Safe to run everywhere at once: that only one does saves work, not correctness."""

    name: str

    def __init__(self) -> None:
        self.sooner = asyncio.Event()
        """Set when there is something to do before the time that was said."""

    @abstractmethod
    async def run_once(self) -> float:
        """Do what there is to do; how many seconds until there may be more."""

    def listening(self) -> AbstractContextManager[None]:
        """Entered by who repeats it, to hear what there is to hear meanwhile."""
        return nullcontext()


class Services:
    """Runs the services that this worker leads."""

    def __init__(
        self,
        database: Database,
        telemetry: Telemetry,
        services: Sequence[Service],
        *,
        worker: WorkerId,
        lease: timedelta,
    ) -> None:
        self._telemetry = telemetry
        self._services = services
        self._leadership = Leadership(
            database, worker=worker, services=[service.name for service in services], hold=lease / 3
        )

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._leadership.run())
                for service in self._services:
                    parts.create_task(self._repeat(service))
        finally:
            await self._leadership.resign()

    async def _repeat(self, service: Service) -> None:
        with service.listening():
            await self._for_ever(service)

    async def _for_ever(self, service: Service) -> None:
        pause = 0.2
        while True:
            await self._leadership.leads(service.name)
            try:
                wait = await service.run_once()
                pause = 0.2
            except Unavailable as error:
                log.warning("%s waits for the database: %s", service.name, error)
                wait, pause = pause, min(pause * 2, 2.0)
            except Exception:
                # Nothing was changed, or all of it: the next pass looks again.
                log.exception("%s failed", service.name)
                wait, pause = pause, min(pause * 2, 60.0)
            self._telemetry.tell("service.ran", service=service.name)
            await within(wait, service.sooner.wait())
