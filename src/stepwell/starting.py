"""Starts that arrive together commit together, each answered only after its commit.

The first to come leaves at once, so that a lone caller waits for nobody; who comes while others are on their
way leaves with everyone else who did.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from stepwell.model.errors import Unavailable
from stepwell.model.start import Start

FLIGHTS = 2
"""Groups on their way at the same time: one is written while the disk takes the other."""
GROUP = 500

Waiter = tuple[Start, asyncio.Future[None], float]
"""A start, who waits for it, and since when."""


class Starting:
    def __init__(self, send: Callable[[Sequence[Start]], Awaitable[object]], *, patience: float) -> None:
        """`send` accepts plain starts, all or none, and returns after their commit. While the database is away
        nobody waits for others longer than `patience`."""
        self._send = send
        self._patience = patience
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
        loop = asyncio.get_running_loop()
        waiter = start, loop.create_future(), loop.time()
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
            await self._send([start for start, _, _ in group])
        except Unavailable as error:
            _answer(group, error)
            self._answer_impatient(error)
        except Exception as error:
            if len(group) == 1:
                _answer(group, error)
                return
            # One of them is refused, and nobody pays for another's: each by itself.
            for each in group:
                await self._fly([each])
        else:
            _answer(group, None)
        finally:
            for _, future, _ in group:
                future.cancel()  # has no effect on those that are answered

    def _answer_impatient(self, error: Unavailable) -> None:
        late = asyncio.get_running_loop().time() - self._patience
        while self._gathered and self._gathered[0][2] < late:
            _answer([self._gathered.popleft()], error)


def _answer(group: Sequence[Waiter], error: Exception | None) -> None:
    for _, future, _ in group:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
