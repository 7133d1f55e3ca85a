"""First steps: the coroutines in line are begun one after the other, in one task.

A coroutine that ends without waiting for anything costs neither a task nor a turn of the event loop. The first that
has to wait keeps the task to itself, and another task goes on with the line.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine, Generator, Iterable
from contextvars import Context, copy_context
from typing import Any, Generic, Protocol, TypeVar

Q = TypeVar("Q")
Item = TypeVar("Item", contravariant=True)
R = TypeVar("R")


class Owner(Protocol[Item, R]):
    """The part whose coroutines are begun."""

    def has_room(self) -> bool:
        """True if there is room for one more item that has to wait."""
        ...

    def coroutine_of(self, item: Item, /) -> Coroutine[Any, Any, R] | None:
        """Make the coroutine of an item; None if it is not to be begun any more."""
        ...

    def waits(self, item: Item, /, task: asyncio.Task[None]) -> None:
        """Note that the item's coroutine has to wait, and keeps this task."""
        ...

    def ended(self, item: Item, /, result: R | None, error: BaseException | None) -> None:
        """Take the result or error of an item's coroutine, in its first step or later."""
        ...

    def paused(self, last: Item | None, /, seconds: float) -> None:
        """Note the end of a stretch of first steps. `last` is the item it ended with, or None if that item has to
        wait."""
        ...


class FirstSteps(Generic[Q, R]):
    """Takes items through their first step, one after the other."""

    def __init__(self, owner: Owner[Q, R], *, stretch: float, most: int | None = None, turns: int = 1) -> None:
        """After `stretch` seconds of first steps, or `most` items, the event loop runs for so many `turns` before the
        next stretch."""
        self._owner = owner
        self._longest, self._most = stretch, most
        self._turns = turns
        self._tasks: set[asyncio.Task[None]] = set()
        self.line: deque[Q] = deque()
        """Items that are not begun yet."""
        self.busy = False
        """True while a task takes the line through its first steps."""

    def add(self, items: Iterable[Q]) -> None:
        self.line.extend(items)
        if not self.busy:
            self.go_on()

    def go_on(self) -> None:
        """Begin a task for the line, unless there is one or no room."""
        if self.line and not self.busy and self._owner.has_room():
            self.busy = True
            loop = asyncio.get_running_loop()
            if loop.get_task_factory() is None:
                self._begin_task()
            else:  # an eager task would run inside this one, the next inside that one, and so on
                loop.call_soon(self._begin_task)

    def _begin_task(self) -> None:
        task = asyncio.create_task(self._run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        """Take the line through its first steps, and then the first item that has to wait to its end."""
        me = asyncio.current_task()
        assert me is not None
        kept: tuple[Q, Rest[R]] | None = None
        try:
            kept = await self._step(me)
        finally:
            self.busy = False  # also if the item that kept this task has cancelled it
            self.go_on()
            self._owner.paused(None, 0.0)
        if kept is None:
            return
        item, rest = kept
        try:
            result = await rest
        except BaseException as error:
            self._owner.ended(item, None, error)
        else:
            self._owner.ended(item, result, None)

    async def _step(self, me: asyncio.Task[Any]) -> tuple[Q, Rest[R]] | None:
        """Begin items until one has to wait: that item, and the rest of its coroutine."""
        while self.line and self._owner.has_room():
            kept, is_cancelled = self._stretch(me)
            if kept is not None or is_cancelled:
                return kept
            if self.line:
                for _ in range(self._turns):
                    await asyncio.sleep(0)
        return None

    def _stretch(self, me: asyncio.Task[Any]) -> tuple[tuple[Q, Rest[R]] | None, bool]:
        """Begin items until one has to wait, or the stretch is over, without a turn of the event loop. Return that
        item, and True if an item has cancelled the task that it ran in."""
        owner, line, clock = self._owner, self.line, asyncio.get_running_loop().time
        count, began, over = 0, clock(), False
        while line and not over:
            item, context = line.popleft(), copy_context()
            try:
                if (coroutine := owner.coroutine_of(item)) is None:
                    continue
                awaited = context.run(coroutine.send, None)
            except StopIteration as stop:
                owner.ended(item, stop.value, None)
            except BaseException as error:
                owner.ended(item, None, error)
            else:
                owner.waits(item, me)
                return (item, Rest(coroutine, context, awaited)), False
            if me.cancelling() or getattr(me, "_must_cancel", False):
                return None, True  # even if it took that back: the cancellation would hit the next item in line
            count += 1
            seconds = clock() - began
            over = seconds > self._longest or count == self._most
            if over or not line:
                owner.paused(item, seconds)
        return None, False


class Rest(Generic[R]):
    """The rest of a coroutine that has taken its first step by hand.

    The task in which that step was taken awaits it: what the coroutine waits for, the task waits for. Every step
    runs in the coroutine's own context, so that other coroutines of the same task see nothing that it sets.
    """

    __slots__ = ("_awaited", "_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, R], context: Context, awaited: Any) -> None:
        """`awaited` is what the first step yielded: a future, or None for a bare turn of the event loop."""
        self._coroutine = coroutine
        self._context = context
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, R]:
        coroutine, run, awaited = self._coroutine, self._context.run, self._awaited
        del self._awaited
        try:
            while True:
                try:
                    sent = yield awaited
                except GeneratorExit:
                    run(coroutine.close)
                    raise
                except BaseException as error:
                    awaited = run(coroutine.throw, error)
                else:
                    awaited = run(coroutine.send, sent)
        except StopIteration as stop:
            result: R = stop.value
            return result
