"""What is undone when a workflow fails or is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from stepwell.replay.code import ContinueAsNew, Evicted, continues
from stepwell.replay.loop import GONE, Driver

_undoing: ContextVar[bool] = ContextVar("undoing", default=False)
"""Set while a compensation is run, for it and for the tasks that it makes."""


def undoing() -> bool:
    """Whether the code that asks is part of a compensation."""
    return _undoing.get()


@contextmanager
def _marked() -> Iterator[None]:
    _undoing.set(True)
    try:
        yield
    finally:
        _undoing.set(False)  # not reset: code that is evicted here is closed in another context


class Rollback:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._compensations: list[Callable[[], Awaitable[Any]]] = []
        self.under_way = False
        self.undone = False
        """There was something to undo, and all of it was undone."""

    def add(self, compensate: Callable[[], Awaitable[Any]]) -> None:
        self._compensations.append(compensate)

    def clear(self) -> None:
        self._compensations.clear()
        self._driver = GONE

    async def around(self, body: Coroutine[Any, Any, bytes]) -> bytes:
        """The body; and if it fails, what it had done is undone."""
        try:
            return await body
        except (ContinueAsNew, Evicted, GeneratorExit):
            raise
        except BaseException as error:
            if self._driver.evicting:
                raise
            if onward := continues(error):
                raise onward from None
            failures = await self._undo()
            if failures and isinstance(error, asyncio.CancelledError):
                # Not simply cancelled: somebody has to look after what is left.
                failures[0].add_note("raised by a rollback, after the workflow was cancelled")
                raise _with_notes(failures[0], failures[1:]) from None
            raise _with_notes(error, failures)  # noqa: B904  # most often the very same

    async def _undo(self) -> list[Exception]:
        """The last first. One that cannot be undone does not keep the others from it, nor does a second request to
        cancel; what went wrong."""
        self.under_way = True
        failures: list[Exception] = []
        had_any = bool(self._compensations)
        while self._compensations:
            compensate = self._compensations.pop()
            _forget_cancels()
            try:
                with _marked():
                    await compensate()
            except Exception as failure:
                failures.append(failure)
            except asyncio.CancelledError:
                failures.append(RuntimeError("a rollback cancelled itself"))
        self.undone = had_any and not failures
        return failures


def _forget_cancels() -> None:
    """The request was heard: groups and timeouts, which count them, begin anew. Some Pythons lose count themselves."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _with_notes(error: BaseException, failures: list[Exception]) -> BaseException:
    for failure in failures:
        error.add_note(f"and a rollback failed: {type(failure).__name__}: {failure}")
    return error
