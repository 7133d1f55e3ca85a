"""A service: a body, `run_once`, and the one loop that repeats it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

from stepwell.concurrency.background import within
from stepwell.model.errors import Unavailable
from stepwell.model.ids import WorkerId
from stepwell.services.leader import Leadership
from stepwell.store.pool import Database
from stepwell.telemetry import Telemetry, log

CHEAP = 0.5
"""Seconds that a pass may take to find nothing more to do, and the next be as soon as anyone wishes."""
EFFORT = 3
"""After one that took longer, the next waits this many times as long. Beside a transaction that was held open while
millions of runs ended, a look walks over all of them: it must not keep the database busy for its own sake."""


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
    """The loops of all services: those that one process leads for all, and those of every process."""

    def __init__(
        self,
        database: Database,
        telemetry: Telemetry,
        services: Sequence[Service],
        *,
        own: Sequence[Service] = (),
        worker: WorkerId,
        lease: timedelta,
    ) -> None:
        """`services` run where this worker leads them, `own` in every process."""
        self._telemetry = telemetry
        self._services = services
        self._own = own
        self._most_rest = lease.total_seconds()
        self._leadership = Leadership(
            database, worker=worker, services=[service.name for service in services], hold=lease / 3
        )

    async def run(self) -> None:
        """Until cancelled."""
        try:
            async with asyncio.TaskGroup() as parts:
                parts.create_task(self._leadership.run())
                for service in (*self._services, *self._own):
                    parts.create_task(self._repeat(service))
        finally:
            await self._leadership.resign()

    async def _repeat(self, service: Service) -> None:
        with service.listening():
            await self._for_ever(service)

    async def _for_ever(self, service: Service) -> None:
        pause = 0.2
        while True:
            if service not in self._own:
                await self._leadership.leads(service.name)
            began, rest = time.monotonic(), 0.0
            try:
                wait = await service.run_once()
                pause, rest = 0.2, rest_after(time.monotonic() - began, wait, most=self._most_rest)
            except Unavailable as error:
                log.warning("%s waits for the database: %s", service.name, error)
                wait, pause = pause, min(pause * 2, 2.0)
            except Exception:
                # Nothing was changed, or all of it: the next pass looks again.
                log.exception("%s failed", service.name)
                wait, pause = pause, min(pause * 2, 60.0)
            self._telemetry.tell("service.ran", service=service.name)
            await asyncio.sleep(rest)
            await within(max(0.0, wait - rest), service.sooner.wait())


def rest_after(took: float, wait: float, *, most: float) -> float:
    """Seconds in which a service does nothing, whatever there may be, after a pass that wants `wait` until the next.

    No longer than `most`: it may have been the process that was stopped for so long, and not the look.
    """
    return min(EFFORT * took, most) if wait > 0 and took > CHEAP else 0.0
