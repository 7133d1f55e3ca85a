"""Group commit: questions that are asked at the same time travel in one statement.

The class owns gathering and flights: which questions travel together, and how many groups are on their way. Its owner
decides how a group is written, and what a failure means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

FLIGHTS = 2
"""Groups on their way at the same time: the database works on one while the disk flushes the other."""
GROUP, LOAD = 500, 8 * 1024 * 1024
"""Limits of one group: questions, and their bytes."""
FEW = 3
PATIENCE = 0.01
"""Seconds for which a group waits for what is on its way, when it is FEW times smaller than that."""

Later: TypeAlias = "A | asyncio.Task[A | BaseException]"
"""An answer, or the task that will return it."""
Told: TypeAlias = Callable[["A | BaseException"], None]
"""Callback that receives an answer. It raises nothing."""


class GroupCommit(Generic[Q, A]):
    """Gathers questions into groups, commits each group, and hands the answers back one by one."""

    def __init__(
        self,
        commit: Callable[[Sequence[Q]], Awaitable[Sequence[Later[A] | BaseException]]],
        *,
        flights: int = FLIGHTS,
        pause: Callable[[], float] = lambda: 0.0,
        weigh: Callable[[Q], int] | None = None,
    ) -> None:
        """`commit` answers each question of a group, in their order; if it raises, that error answers all of them.
        `pause` returns how many seconds the first question of a group waits for others. `weigh` returns the bytes of a
        question."""
        self._commit = commit
        self._most_flights = flights
        self._pause = pause
        self._weigh = weigh
        self._is_closed = False
        self._gathered: deque[tuple[Q, Told[A]]] = deque()
        self._flights: dict[object, int] = {}
        """Groups on their way, and the number of questions of each."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._in_air = 0
        self._waiting: asyncio.TimerHandle | None = None
        self._called = False

    def __len__(self) -> int:
        """Number of questions that were asked and are not answered."""
        return len(self._gathered) + self._in_air

    # -- asking

    def ask(self, question: Q, told: Told[A]) -> None:
        """Ask a question, together with the others of this iteration of the event loop."""
        if self._is_closed:
            told(asyncio.CancelledError())
            return
        self._gathered.append((question, told))
        if not self._called and len(self._flights) < self._most_flights:
            self._leave_soon()

    def ask_apart(self, asking: Coroutine[Any, Any, A | BaseException], told: Told[A]) -> None:
        """Run a question that cannot travel with others."""
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
        """Ask as `answer` does. A question that is alone leaves at once, in the caller's own task."""
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
        """Answer the oldest questions with an error, as long as `which` is true for them. Only questions that have not
        left."""
        while self._gathered and which(self._gathered[0][0]):
            _, told = self._gathered.popleft()
            told(error)

    async def landed(self) -> None:
        """Wait until no group is on its way."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def close(self) -> None:
        """Cancel all questions, and all that will be asked."""
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
        """Send a group in the next iteration of the event loop, or after the pause.

        Not at once: questions that are ready at the same moment travel together, and callers that were just answered
        may be about to ask again.
        """
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
                # Wait for the callers whose groups land soon, and who ask again. The timer ends the wait if those
                # groups are held up.
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
