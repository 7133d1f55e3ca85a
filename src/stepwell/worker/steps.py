"""The rest of a coroutine that has taken its first step by hand."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, Generic, TypeVar

R = TypeVar("R")


class Rest(Generic[R]):
    """Awaited by the task in which that step was taken: what the coroutine waits for, the task waits for.

    Every step runs in the coroutine's own context, so that nothing it sets is seen by others of the same task.
    """

    __slots__ = ("_awaited", "_context", "_coroutine")

    def __init__(self, coroutine: Coroutine[Any, Any, R], context: Context, awaited: Any) -> None:
        """`awaited` is what the first step gave: a future, or nothing for a bare turn of the event loop."""
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
