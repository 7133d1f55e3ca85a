"""The worker's lease, renewed from a thread, a loop and a connection of its own.

A body that blocks the worker's event loop can therefore not lose it. What can lose it is the database
being out of reach for as long as the lease lasts: from then on others may run what this worker holds, so
it is told to stop, by its own clock, counted from when the last good renewal was *sent*.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from stepwell.model.errors import Unavailable
from stepwell.telemetry import log
from stepwell.worker.link import Link, Renew

_SHARE = 4
"""Renewals per lease: three may fail in a row."""


class Lease:
    def __init__(self, link: Link, length: timedelta, *, lost: Callable[[], None], back: Callable[[], None]) -> None:
        """`lost` and `back` are called on the loop that `hold` is awaited on."""
        self._link = link
        self._length = length.total_seconds()
        self._lost = lost
        self._back = back
        self._first = threading.Event()
        self._stop: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self._held_until = 0.0
        self._is_lost = False

    async def hold(self) -> None:
        """Take the lease; returns once it is held, however long that takes."""
        home = asyncio.get_running_loop()
        held = asyncio.Event()
        self._thread = threading.Thread(
            target=lambda: asyncio.run(self._keep(home, held)), name="stepwell.lease", daemon=True
        )
        self._thread.start()
        await held.wait()

    async def release(self) -> None:
        """Stop renewing. The lease then runs out by itself, unless the worker leaves."""
        if self._thread is not None and self._stop is not None:
            self._stop()
            await asyncio.to_thread(self._thread.join, 2)

    async def _keep(self, home: asyncio.AbstractEventLoop, held: asyncio.Event) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop = lambda: _tell(loop, stopped.set)
        pause = self._length / _SHARE
        while not stopped.is_set():
            try:
                async with self._link.lease() as renew:
                    while not stopped.is_set():
                        await self._renew(renew)
                        _tell(home, held.set)
                        self._found(home)
                        await _wait(stopped, pause)
            except (Unavailable, TimeoutError, OSError) as error:
                self._missed(home, error)
                await _wait(stopped, min(pause / 4, 1.0))

    async def _renew(self, renew: Renew) -> None:
        sent = time.monotonic()
        async with asyncio.timeout(max(self._length / _SHARE, 0.5)):
            await renew()
        self._held_until = sent + self._length

    def _missed(self, home: asyncio.AbstractEventLoop, error: Exception) -> None:
        log.warning("the lease could not be renewed: %s", error)
        if not self._is_lost and self._held_until and time.monotonic() >= self._held_until:
            self._is_lost = True
            _tell(home, self._lost)

    def _found(self, home: asyncio.AbstractEventLoop) -> None:
        if self._is_lost:
            self._is_lost = False
            _tell(home, self._back)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        pass  # that loop is closed: nobody is left to be told
