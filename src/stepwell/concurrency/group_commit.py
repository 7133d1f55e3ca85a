"""Group commit: questions that are asked at the same time travel in one statement.

The class owns gathering and flights: which questions travel together, and how many groups are on their way. What a
group is asked, and what becomes of one that fails, is its owner's affair.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

FLIGHTS = 2
"""Groups on their way at the same time: one is written while the disk takes the other."""
GROUP, LOAD = 500, 8 * 1024 * 1024
"""Questions of one group, and their bytes."""
FEW = 3
PATIENCE = 0.01
"""A group that is so many times smaller than what is on its way waits for that, for so many seconds."""

Later: TypeAlias = "A | asyncio.Task[A | BaseException]"
"""An answer, or the task that will have it."""
Told: TypeAlias = Callable[["A | BaseException"], None]
"""Takes an answer. Raises nothing."""


class GroupCommit(Generic[Q, A]):
    def __init__(
        self,
        commit: Callable[[Sequence[Q]], Awaitable[Sequence[Later[A] | BaseException]]],
        *,
        flights: int = FLIGHTS,
        pause: Callable[[], float] = lambda: 0.0,
        weigh: Callable[[Q], int] | None = None,
    ) -> None:
        """`commit` answers each question of a group, in their order; what it raises is the answer to all of them.
        `pause` returns how many seconds the first of a group waits for others, `weigh` the bytes of a question."""
        self._commit = commit
        self._most_flights = flights
        self._pause = pause
        self._weigh = weigh
        self._is_closed = False
        self._gathered: deque[tuple[Q, Told[A]]] = deque()
        self._flights: dict[object, int] = {}
        """The groups on their way, and how many questions each has."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._in_air = 0
        self._waiting: asyncio.TimerHandle | None = None
        self._called = False

    def __len__(self) -> int:
        """How many questions were asked and are not answered."""
        return len(self._gathered) + self._in_air

    # -- asking

    def ask(self, question: Q, told: Told[A]) -> None:
        """Ask, with the others that are asked in this turn of the event loop."""
        if self._is_closed:
            told(asyncio.CancelledError())
            return
        self._gathered.append((question, told))
        if not self._called and len(self._flights) < self._most_flights:
            self._leave_soon()

    def ask_apart(self, asking: Coroutine[Any, Any, A | BaseException], told: Told[A]) -> None:
        """Ask what cannot go with others."""
        self._answer_later(asyncio.create_task(asking), told)

    async def answer(self, question: Q) -> A:
        """Ask, and wait for the answer. A caller that is cancelled before its group leaves has asked nothing."""
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        entry: tuple[Q, Told[A]] = question, lambda answer: _give(future, answer)
        self.ask(*entry)
        try:
            return await future
        except asyncio.CancelledError:
            self._gathered = deque(each for each in self._gathered if each[0] is not question)
            raise

    async def answer_at_once(self, question: Q) -> A:
        """Ask as `answer` does; a question that is alone leaves in the caller's own task, and waits for no others."""
        if self._gathered or len(self._flights) >= self._most_flights:
            return await self.answer(question)
        flight = object()
        self._take_off(flight, 1)
        try:
            (answer,) = await self._commit([question])
        finally:
            self._landed(flight)
        if isinstance(answer, asyncio.Task):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def give_up(self, which: Callable[[Q], bool], error: BaseException) -> None:
        """Answer the first questions, as long as they are such, by an error: those that have not left."""
        while self._gathered and which(self._gathered[0][0]):
            _, told = self._gathered.popleft()
            told(error)

    async def landed(self) -> None:
        """Wait until nothing is on its way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Cancel all that was asked, and all that will be."""
        self._is_closed = True
        gathered, self._gathered = self._gathered, deque()
        for _, told in gathered:
            told(asyncio.CancelledError())
        if self._waiting is not None:
            self._waiting.cancel()
        for task in self._tasks:
            task.cancel()

    # -- flights

    def _leave_soon(self) -> None:
        """Not at once: those that are ready at the same moment go together, and those that were just answered may be
        about to ask again."""
        self._called = True
        loop = asyncio.get_running_loop()
        if pause := self._pause():
            loop.call_later(pause, self._leave)
        else:
            loop.call_soon(self._leave)

    def _leave(self, *, at_once: bool = False) -> None:
        self._called = False
        while self._gathered and len(self._flights) < self._most_flights:
            if len(self._gathered) < self._in_air // FEW and not at_once:
                # With those that land soon, and ask again. But what is on its way may be held up.
                if self._waiting is None:
                    self._waiting = asyncio.get_running_loop().call_later(PATIENCE, self._leave_at_once)
                return
            group = self._next_group()
            flight = asyncio.create_task(self._fly(group))
            self._take_off(flight, len(group))
            self._hold(flight)
            flight.add_done_callback(self._landed)

    def _next_group(self) -> list[tuple[Q, Told[A]]]:
        if self._weigh is None:
            return [self._gathered.popleft() for _ in range(min(GROUP, len(self._gathered)))]
        group: list[tuple[Q, Told[A]]] = []
        load = 0
        while self._gathered and len(group) < GROUP and load < LOAD:
            group.append(self._gathered.popleft())
            load += self._weigh(group[-1][0])
        return group

    def _leave_at_once(self) -> None:
        self._waiting = None
        self._leave(at_once=True)

    def _take_off(self, flight: object, count: int) -> None:
        self._flights[flight] = count
        self._in_air += count

    def _landed(self, flight: object) -> None:
        self._in_air -= self._flights.pop(flight)
        if self._gathered and not self._called:
            self._leave_soon()

    async def _fly(self, group: Sequence[tuple[Q, Told[A]]]) -> None:
        answers: Sequence[Later[A] | BaseException] = ()
        try:
            answers = await self._commit([question for question, _ in group])
        except BaseException as error:
            answers = [error] * len(group)
            if not isinstance(error, Exception):
                raise
        finally:
            for (_, told), answer in zip(group, answers, strict=True):
                if isinstance(answer, asyncio.Task):
                    self._answer_later(answer, told)
                else:
                    told(answer)

    def _answer_later(self, late: asyncio.Task[A | BaseException], told: Told[A]) -> None:
        def come(late: asyncio.Task[A | BaseException]) -> None:
            told(asyncio.CancelledError() if late.cancelled() else late.exception() or late.result())

        self._hold(late)
        late.add_done_callback(come)

    def _hold(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _give(future: asyncio.Future[A], answer: A | BaseException) -> None:
    if future.done():
        return
    if isinstance(answer, asyncio.CancelledError):
        future.cancel()
    elif isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)
