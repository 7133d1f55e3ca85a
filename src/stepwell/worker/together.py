"""Questions that are asked together: whoever comes while others are on their way leaves with the next group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

FLIGHTS = 2
"""Groups on their way at the same time."""
GROUP = 500

Later: TypeAlias = "A | asyncio.Task[A | BaseException]"
"""An answer, or who will have it."""


class Together(Generic[Q, A]):
    def __init__(self, ask: Callable[[Sequence[Q]], Awaitable[Sequence[Later[A] | BaseException]]]) -> None:
        """`ask` answers each question of a group, in their order; what it raises is everyone's answer."""
        self._ask = ask
        self._gathered: deque[tuple[Q, asyncio.Future[A]]] = deque()
        self._flights: set[asyncio.Task[None]] = set()
        self._late: set[asyncio.Task[A | BaseException]] = set()
        self._called = False

    async def answer(self, question: Q) -> A:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[A] = loop.create_future()
        self._gathered.append((question, future))
        if not self._called and len(self._flights) < FLIGHTS:
            # Not at once: those who are ready at the same moment go together.
            self._called = True
            loop.call_soon(self._leave)
        return await future

    async def landed(self) -> None:
        """Wait until nothing is on its way."""
        while on_their_way := (*self._flights, *self._late):
            await asyncio.wait(on_their_way)

    def close(self) -> None:
        """Wait for no answer any longer."""
        self._gathered.clear()
        for task in (*self._flights, *self._late):
            task.cancel()

    def _leave(self) -> None:
        self._called = False
        while self._gathered and len(self._flights) < FLIGHTS:
            group = [self._gathered.popleft() for _ in range(min(GROUP, len(self._gathered)))]
            flight = asyncio.create_task(self._fly(group))
            self._flights.add(flight)
            flight.add_done_callback(self._landed)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        self._leave()

    async def _fly(self, group: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        answers: Sequence[Later[A] | BaseException]
        try:
            answers = await self._ask([question for question, _ in group])
        except BaseException as error:
            answers = [error] * len(group)
            if not isinstance(error, Exception):
                raise
        finally:
            for (_, future), answer in zip(group, answers, strict=True):
                if isinstance(answer, asyncio.Task):
                    self._wait_for(answer, future)
                else:
                    _give(future, answer)

    def _wait_for(self, late: asyncio.Task[A | BaseException], future: asyncio.Future[A]) -> None:
        self._late.add(late)

        def come(late: asyncio.Task[A | BaseException]) -> None:
            self._late.discard(late)
            _give(future, asyncio.CancelledError() if late.cancelled() else late.exception() or late.result())

        late.add_done_callback(come)


def _give(future: asyncio.Future[A], answer: A | BaseException) -> None:
    if future.done():
        return
    if isinstance(answer, asyncio.CancelledError):
        future.cancel()
    elif isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
