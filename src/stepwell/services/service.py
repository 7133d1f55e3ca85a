"""A service is a body, `run_once`, and one loop that repeats it."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta

from stepwell.concurrency.background import in_time
from stepwell.model.errors import Unavailable
from stepwell.model.ids import WorkerId
from stepwell.services.leader import Leadership
from stepwell.store.pool import Database
from stepwell.telemetry import Telemetry, log

CHEAP = 0.5
"""A pass that takes at most this many seconds may be followed by the next one at once."""
EFFORT = 3
"""After a longer pass, the service rests this many times as long. Beside a transaction that was held open while
millions of runs ended, a poll walks over all of their dead rows; it must not keep the database busy only for that."""


class Service(ABC):
    """A periodic task. Several workers may run it at once: having only one leader saves work, but correctness does not
    need it."""

    name: str

    def __init__(self) -> None:
        self.sooner = asyncio.Event()
        """Set when there is something to do before the time that `run_once` returned."""

    @abstractmethod
    async def run_once(self) -> float:
        """Do what is due. Return the seconds until the next pass."""

    def listening(self) -> AbstractContextManager[None]:
        """Return a context in which the service subscribes to notifications. The loop that repeats the service enters
        it."""
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
        """Run the services until cancelled."""
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
        """Repeat the service while this worker leads it, and back off after errors."""
        pause = 0.2
        while True:
            if service not in self._own:
                await self._leadership.leads(service.name)
            began, rest = time.monotonic(), 0.0
            try:
                wait = await service.run_once()
                pause, rest = 0.2, rest_after(time.monotonic() - began, wait, most=self._most_rest)
            except Unavailable as error:
                log.warning(
                    "service %s: the database is unavailable, trying again in %g s: %s", service.name, pause, error
                )
                wait, pause = pause, min(pause * 2, 2.0)
            except Exception:
                # Each transaction of the pass was committed or rolled back as a whole, so the next pass finds what is
                # left.
                log.exception("service %s failed, trying again in %g s", service.name, pause)
                wait, pause = pause, min(pause * 2, 60.0)
            self._telemetry.tell("service.ran", service=service.name)
            await asyncio.sleep(rest)
            await in_time(max(0.0, wait - rest), service.sooner.wait())


def rest_after(took: float, wait: float, *, most: float) -> float:
    """Return the seconds for which a service does nothing, whatever is due, after a pass that took `took` seconds and
    wants `wait` until the next.

    The rest is at most `most`: a long pass may mean that the process was suspended, and not that the query was slow.
    """
    return min(EFFORT * took, most) if wait > 0 and took > CHEAP else 0.0
