"""The worker's lease, renewed from a thread that has an event loop and a connection of its own.

A body that blocks the worker's event loop can therefore not lose the lease. It is lost when the database is out of
reach for as long as the lease lasts. From then on other workers may run what this one holds, so its attempts are ended.
The time is measured by this machine's clock, from when the last good renewal was *sent*.

The same connection writes a sample of the worker's vitals, after a renewal and never in its way. If a sample fails,
samples pause for a minute. If one gets no answer, the connection is closed, but the lease is kept.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta

from stepwell.model.errors import Unavailable
from stepwell.model.worker import Unrecorded
from stepwell.telemetry import log
from stepwell.worker.link import Hold, Link
from stepwell.worker.loop_watchdog import LoopWatchdog
from stepwell.worker.vitals import Meter

_SHARE = 4
"""Renewals per lease: three may fail in a row."""
_OURS = 7 / 8
"""The part of a lease in which attempts may run. The rest is for giving them back before others take them."""
_RENEW, _CONNECT = 0.5, 5.0
"""Seconds that each may take, however short the lease."""
_LEAVE = 5.0
"""Seconds for giving up the lease."""
SAMPLE, _NO_SAMPLE = 5.0, 60.0
"""Seconds between samples; the second after a failure."""

Load = Callable[[], tuple[int, int, Unrecorded | None]]
"""Returns the number of claims held, the number of claims so far, and the outcomes that cannot be recorded. Called from
the lease's thread."""


def nothing() -> tuple[int, int, None]:
    return 0, 0, None


class Lease:
    """Takes the lease, renews it, and reports its loss and return."""

    def __init__(
        self,
        link: Link,
        length: timedelta,
        *,
        lost: Callable[[], None],
        back: Callable[[], None],
        load: Load = nothing,
    ) -> None:
        """`lost` and `back` are called on the loop on which `hold` is awaited."""
        self._link = link
        self._length = length.total_seconds()
        self._lost = lost
        self._back = back
        self._load = load
        self._meter = Meter()
        self._sample_at = 0.0
        self._home: asyncio.AbstractEventLoop | None = None
        self._watchdog: LoopWatchdog | None = None
        self._decided = asyncio.Event()
        """Set when the lease is first held, or when it never will be."""
        self._over: asyncio.Future[None] | None = None
        self._stop: Callable[[], None] = lambda: None
        self._thread: threading.Thread | None = None
        self._loss: asyncio.TimerHandle | None = None
        self._is_lost = False
        self._is_given_up = False
        self._is_released = False
        self._has_left = False

    async def hold(self) -> None:
        """Take the lease; returns once it is held, however long that takes."""
        if self._is_given_up:
            return
        self._home = asyncio.get_running_loop()
        self._over = self._home.create_future()
        self._watchdog = LoopWatchdog(self._tell)
        self._thread = threading.Thread(target=self._live, name="stepwell.lease", daemon=True)
        self._thread.start()
        await self._decided.wait()
        if self._over.done():
            await self._over

    async def fails(self) -> None:
        """Raise the error that ended the lease's thread; never return."""
        if self._over is not None:
            await asyncio.shield(self._over)
        await asyncio.Event().wait()

    def give_up(self) -> None:
        """Wait no longer for a lease that is not held yet."""
        self._is_given_up = True
        if not self._decided.is_set():
            self._end(None)

    async def release(self) -> None:
        """Stop renewing, and give the lease up. If that fails it runs out by itself."""
        self._is_released = True
        if self._thread is not None:
            self._stop()
            await asyncio.to_thread(self._thread.join, _LEAVE)
        if not self._has_left:
            # The thread had no channel at this moment, or has failed.
            try:
                async with asyncio.timeout(_LEAVE), self._link.lease() as hold:
                    await hold.leave()
            except (Unavailable, TimeoutError, OSError) as error:
                log.warning("the worker could not give up its lease, which will run out by itself: %s", error)

    def _live(self) -> None:
        """Run the lease's thread. Report its end to the worker's loop, since a worker without a lease must not go
        on."""
        try:
            asyncio.run(self._keep())
        except BaseException as error:
            self._tell(self._end, error)
        else:
            self._tell(self._end, None)

    def _end(self, error: BaseException | None) -> None:
        if self._over is None or self._over.done():
            return
        if error is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(error)
        self._decided.set()

    async def _keep(self) -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._stop = lambda: _call(loop, stopped.set)
        if self._is_released:
            return  # `release` came before the thread had begun
        pause = self._length / _SHARE
        while not stopped.is_set():
            try:
                async with AsyncExitStack() as connected:
                    async with asyncio.timeout(max(pause, _CONNECT)):
                        hold = await connected.enter_async_context(self._link.lease())
                    while not stopped.is_set():
                        await self._renew(hold)
                        if not await self._sample(hold):
                            break
                        await _wait(stopped, min(pause, SAMPLE))
                    if stopped.is_set():
                        async with asyncio.timeout(_LEAVE):
                            await hold.leave()
                        self._has_left = True
            except (Unavailable, TimeoutError, OSError) as error:
                log.warning("cannot renew the lease, will try again: %s", error or type(error).__name__)
                await _wait(stopped, min(pause / 4, 1.0))

    async def _renew(self, hold: Hold) -> None:
        sent = time.monotonic()
        async with asyncio.timeout(max(self._length / _SHARE, _RENEW)):
            await hold.renew()
        if self._loss is not None:
            self._loss.cancel()
        # A timer notices the loss in time, even while the next renewal waits for its answer.
        left = sent + self._length * _OURS - time.monotonic()
        self._loss = asyncio.get_running_loop().call_later(left, self._lose)
        self._tell(self._decided.set)
        if self._watchdog is not None:
            self._watchdog.feel()
        if self._is_lost:
            self._is_lost = False
            self._tell(self._back)

    async def _sample(self, hold: Hold) -> bool:
        """Write a sample if it is time. Return False if the connection must be replaced."""
        now = time.monotonic()
        if now < self._sample_at:
            return True
        self._sample_at = now + SAMPLE
        try:
            running, claimed, unrecorded = self._load()
            async with asyncio.timeout(_RENEW):
                await hold.sample(self._meter.read(running=running, claimed=claimed, unrecorded=unrecorded))
        except Exception as error:
            self._sample_at = now + _NO_SAMPLE
            log.info("cannot write a sample, pausing samples for %g s: %s", _NO_SAMPLE, error or type(error).__name__)
            return not isinstance(error, Unavailable | TimeoutError)
        return True

    def _lose(self) -> None:
        self._is_lost = True
        self._tell(self._lost)

    def _tell(self, what: Callable[..., None], *values: object) -> None:
        if self._home is not None:
            _call(self._home, what, *values)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _call(loop: asyncio.AbstractEventLoop, what: Callable[..., None], *values: object) -> None:
    try:
        loop.call_soon_threadsafe(what, *values)
    except RuntimeError:
        pass  # that loop is closed
