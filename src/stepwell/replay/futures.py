"""Futures, tasks and handles of the event loop for workflow code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class DurableFuture(asyncio.Future[T]):
    """A future with the same hash in every replay."""

    __slots__ = ("seq",)

    def __init__(self, *, loop: Any) -> None:
        self.seq: int = loop.next_seq()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.seq


class DurableTask(asyncio.Task[T]):
    """A task with the same hash and the same name in every replay."""

    def __init__(
        self, coro: Coroutine[Any, Any, T], *, loop: Any, name: object, context: Context | None, eager: bool = False
    ) -> None:
        self.seq: int = loop.next_seq()
        self.maker = loop.current_task()
        self.context = copy_context() if context is None else context
        self._named: str | int = loop.name_task(name)
        more: dict[str, Any] = {"eager_start": True} if eager else {}
        super().__init__(coro, loop=loop, name="task", context=self.context, **more)

    def get_name(self) -> str:
        """Return the durable name. asyncio's default counts the tasks of the process, and so differs in each replay."""
        return name_of_task(self._named)

    def set_name(self, value: object) -> None:
        self._named = str(value)

    def __hash__(self) -> int:
        return self.seq


def name_of_task(named: str | int) -> str:
    """Return the given name, or the default name that asyncio forms from a number."""
    return named if isinstance(named, str) else f"Task-{named}"


class Soon(asyncio.Handle):
    """A handle that is cheaper to create: every event needs several."""

    __slots__ = ()

    def __init__(self, callback: Callable[..., Any], args: Any, loop: Any, context: Context | None) -> None:
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = copy_context() if context is None else context
        self._cancelled = False
        self._repr = self._source_traceback = None


class DurableTimer(asyncio.TimerHandle):
    """A timer, and the command that schedules it."""

    __slots__ = ("command",)

    def __init__(self, when: float, callback: Callable[..., Any], args: Any, loop: Any, context: Any = None) -> None:
        super().__init__(when, callback, args, loop, context)
        self.command: Any = None


class EndsItself:
    """A task without a coroutine."""

    __slots__ = ()

    def end(self) -> None:
        """End the task without notifying the issuer."""
        raise NotImplementedError


class MakesItsTask:
    """A coroutine with a task class of its own."""

    __slots__ = ()

    def make_task(self, loop: Any, name: object, context: Context | None, *, eager: bool) -> Any:
        raise NotImplementedError
