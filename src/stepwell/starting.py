"""Starts that arrive together commit together, each answered only after its commit.

The first to come leaves at once, so that a lone caller waits for nobody; who comes while others are on their
way leaves with everyone else who did.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from stepwell.model.errors import Unavailable
from stepwell.model.run import Start

FLIGHTS = 2
"""Groups on their way at the same time: one is written while the disk takes the other."""
GROUP = 500

Waiter = tuple[Start, asyncio.Future[None]]


class Starting:
    def __init__(self, send: Callable[[Sequence[Start]], Awaitable[object]]) -> None:
        """`send` accepts plain starts, all or none, and returns after their commit."""
        self._send = send
        self._gathered: deque[Waiter] = deque()
        self._flights: set[object] = set()

    async def start(self, start: Start) -> None:
        """Accept a plain start."""
        if len(self._flights) < FLIGHTS and not self._gathered:
            flight = object()
            self._flights.add(flight)
            try:
                await self._send([start])
            finally:
                self._landed(flight)
            return
        waiter = start, asyncio.get_running_loop().create_future()
        self._gathered.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if waiter in self._gathered:
                self._gathered.remove(waiter)
            raise

    def _landed(self, flight: object) -> None:
        self._flights.discard(flight)
        if self._gathered and len(self._flights) < FLIGHTS:
            group = [self._gathered.popleft() for _ in range(min(GROUP, len(self._gathered)))]
            task = asyncio.create_task(self._fly(group), name="stepwell.starting")
            self._flights.add(task)
            task.add_done_callback(self._landed)

    async def _fly(self, group: Sequence[Waiter]) -> None:
        try:
            await self._send([start for start, _ in group])
        except Exception as error:
            if len(group) == 1 or isinstance(error, Unavailable):
                _answer(group, error)
                return
            # One of them is refused, and nobody pays for another's: each by itself.
            for each in group:
                await self._fly([each])
        except BaseException as error:
            _answer(group, error)
            raise
        else:
            _answer(group, None)


def _answer(group: Sequence[Waiter], error: BaseException | None) -> None:
    for _, future in group:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        elif isinstance(error, asyncio.CancelledError):
            future.cancel()
        else:
            future.set_exception(error)
