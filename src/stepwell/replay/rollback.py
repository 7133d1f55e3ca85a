"""Compensations that run when a workflow fails or is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from stepwell.replay.code import ContinueAsNew, Evicted, continues
from stepwell.replay.loop import GONE, Driver

_undoing: ContextVar[bool] = ContextVar("undoing", default=False)
"""True while a compensation runs, in its context and those of the tasks that it creates."""


def undoing() -> bool:
    """Tell whether the calling code is part of a compensation."""
    return _undoing.get()


@contextmanager
def _marked() -> Iterator[None]:
    _undoing.set(True)
    try:
        yield
    finally:
        _undoing.set(False)  # not reset(token): evicted code is closed in another context


class Rollback:
    """The compensations of one workflow."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._compensations: list[Callable[[], Awaitable[Any]]] = []
        self.under_way = False
        self.undone = False
        """True if there were compensations and all of them succeeded."""

    def add(self, compensate: Callable[[], Awaitable[Any]]) -> None:
        self._compensations.append(compensate)

    def clear(self) -> None:
        self._compensations.clear()
        self._driver = GONE

    async def around(self, body: Coroutine[Any, Any, bytes]) -> bytes:
        """Run the body. If it fails, run the compensations."""
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
                # Fail instead of being cancelled: a person has to look after what was not undone.
                failures[0].add_note("raised by a rollback, after the workflow was cancelled")
                raise _with_notes(failures[0], failures[1:]) from None
            raise _with_notes(error, failures)  # noqa: B904  # the same error, with notes

    async def _undo(self) -> list[Exception]:
        """Run the compensations, the last one first, and return their failures.

        Neither a failed compensation nor a second cancellation request stops the others.
        """
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
    """Reset the count of cancellation requests, which are handled by now: groups and timeouts check this count. Some
    versions of Python lose count themselves."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _with_notes(error: BaseException, failures: list[Exception]) -> BaseException:
    for failure in failures:
        error.add_note(f"and a rollback failed: {type(failure).__name__}: {failure}")
    return error
