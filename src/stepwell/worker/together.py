"""Questions that are asked together: whoever comes while others are on their way leaves with the next group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

FLIGHTS = 2
"""Groups on their way at the same time."""
GROUP = 500
FEW = 3
PATIENCE = 0.01
"""A group that is so many times smaller than what is on its way waits for that, for so many seconds."""

Later: TypeAlias = "A | asyncio.Task[A | BaseException]"
"""An answer, or who will have it."""
Told: TypeAlias = Callable[["A | BaseException"], None]
"""Who is told an answer. Raises nothing."""


class Together(Generic[Q, A]):
    def __init__(
        self,
        ask: Callable[[Sequence[Q]], Awaitable[Sequence[Later[A] | BaseException]]],
        *,
        pause: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`ask` answers each question of a group, in their order; what it raises is everyone's answer. `pause` tells
        how many seconds the first of a group waits for others, beside those who are ready at the same time."""
        self._ask = ask
        self._pause = pause
        self._gathered: deque[tuple[Q, Told[A]]] = deque()
        self._flights: dict[asyncio.Task[None], int] = {}
        self._in_air = 0
        self._waiting: asyncio.TimerHandle | None = None
        self._late: set[asyncio.Task[A | BaseException]] = set()
        self._called = False

    def ask(self, question: Q, told: Told[A]) -> None:
        """The answer is told, unless it is given up before."""
        self._gathered.append((question, told))
        if not self._called and len(self._flights) < FLIGHTS:
            # Not at once: those who are ready at the same moment go together.
            self._leave_soon()

    def ask_apart(self, asking: Coroutine[Any, Any, A | BaseException], told: Told[A]) -> None:
        """A question that cannot go with others."""
        self._wait_for(asyncio.create_task(asking), told)

    async def answer(self, question: Q) -> A:
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self.ask(question, lambda answer: _give(future, answer))
        return await future

    async def landed(self) -> None:
        """Wait until nothing is on its way."""
        while on_their_way := (*self._flights, *self._late):
            await asyncio.wait(on_their_way)

    def close(self) -> None:
        """Wait for no answer any longer."""
        self._gathered.clear()
        if self._waiting is not None:
            self._waiting.cancel()
        for task in (*self._flights, *self._late):
            task.cancel()

    @property
    def many(self) -> int:
        """Questions that were asked and are not answered."""
        return len(self._gathered) + self._in_air

    def _leave_soon(self) -> None:
        self._called = True
        loop = asyncio.get_running_loop()
        if pause := self._pause():
            loop.call_later(pause, self._leave)
        else:
            loop.call_soon(self._leave)

    def _leave(self, *, at_once: bool = False) -> None:
        self._called = False
        while self._gathered and len(self._flights) < FLIGHTS:
            if len(self._gathered) < self._in_air // FEW and not at_once:
                # With those who land soon, and ask again. But what is on its way may be held up.
                if self._waiting is None:
                    self._waiting = asyncio.get_running_loop().call_later(PATIENCE, self._leave_at_once)
                return
            group = [self._gathered.popleft() for _ in range(min(GROUP, len(self._gathered)))]
            flight = asyncio.create_task(self._fly(group))
            self._flights[flight] = len(group)
            self._in_air += len(group)
            flight.add_done_callback(self._landed)

    def _leave_at_once(self) -> None:
        self._waiting = None
        self._leave(at_once=True)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._in_air -= self._flights.pop(flight)
        if self._gathered and not self._called:
            # Not at once: those who have just been answered may be about to ask again.
            self._leave_soon()

    async def _fly(self, group: Sequence[tuple[Q, Told[A]]]) -> None:
        answers: Sequence[Later[A] | BaseException]
        try:
            answers = await self._ask([question for question, _ in group])
        except BaseException as error:
            answers = [error] * len(group)
            if not isinstance(error, Exception):
                raise
        finally:
            for (_, told), answer in zip(group, answers, strict=True):
                if isinstance(answer, asyncio.Task):
                    self._wait_for(answer, told)
                else:
                    told(answer)

    def _wait_for(self, late: asyncio.Task[A | BaseException], told: Told[A]) -> None:
        self._late.add(late)

        def come(late: asyncio.Task[A | BaseException]) -> None:
            self._late.discard(late)
            told(asyncio.CancelledError() if late.cancelled() else late.exception() or late.result())

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
