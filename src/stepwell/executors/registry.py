"""The registry of an app's executors: the built-in three and the app's own, by name."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from difflib import get_close_matches
from threading import Lock
from typing import Any

from stepwell.executors.base import Executor
from stepwell.executors.inline import InlineExecutor
from stepwell.executors.process import ProcessExecutor
from stepwell.executors.thread import ThreadExecutor
from stepwell.model.errors import InvalidSetting

Refuses = Callable[[Callable[..., Any]], str | None]
"""Tells why an executor cannot run a function; None if it can."""
Make = Callable[[int], Executor]
"""Makes the executor of one worker, which has so many slots."""

BUILT_IN: Mapping[str, tuple[Refuses, Make]] = {
    "inline": (InlineExecutor.refuses, lambda slots: InlineExecutor()),
    "thread": (ThreadExecutor.refuses, ThreadExecutor),
    "process": (ProcessExecutor.refuses, lambda slots: ProcessExecutor(min(slots, os.cpu_count() or 1))),
}
_PARTS = ("refuses", "run", "stuck", "close")


class Executors:
    """All executors of one app. Each worker has its own of the built-in ones, and shares those of the app."""

    def __init__(self, given: Mapping[str, Executor] | None = None) -> None:
        self._given = {name: _checked(name, executor) for name, executor in _items(given)}
        self._users = 0
        self._lock = Lock()
        self._refusals: dict[str, Refuses] = {
            **{name: refuses for name, (refuses, _) in BUILT_IN.items()},
            **{name: executor.refuses for name, executor in self._given.items()},
        }

    def place_of(self, fn: Callable[..., Any], name: str | None) -> str:
        """Return the name of the executor for a function. Without a `name`, `async def` runs on the worker's loop and
        `def` in a thread."""
        if name is None:
            return "inline" if inspect.iscoroutinefunction(fn) else "thread"
        refuses = self._refusals.get(name) if isinstance(name, str) else None
        if refuses is None:
            raise InvalidSetting("executor", name, self._unknown(name))
        if (reason := refuses(fn)) is not None:
            raise InvalidSetting("executor", name, reason)
        return name

    @asynccontextmanager
    async def opened(self, slots: int) -> AsyncIterator[Mapping[str, Executor]]:
        """Give one worker its executors. The app's own are closed when the last worker has ended."""
        built_in = {name: make(slots) for name, (_, make) in BUILT_IN.items()}
        with self._lock:
            self._users += 1
        try:
            yield {**built_in, **self._given}
        finally:
            with self._lock:
                self._users -= 1
                is_last = not self._users
            for executor in (*built_in.values(), *(self._given.values() if is_last else ())):
                await executor.close()

    def _unknown(self, name: object) -> str:
        near = get_close_matches(name, self._refusals, n=1) if isinstance(name, str) else []
        meant = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(map(repr, sorted(self._refusals)))
        return f"no executor has this name.{meant} Known are {known}; register your own with App(executors={{…}})"


def _items(given: Any) -> list[tuple[Any, Any]]:
    if given is not None and not isinstance(given, Mapping):
        raise InvalidSetting("executors", given, "must be a mapping of names to executors")
    return list((given or {}).items())


def _checked(name: Any, executor: Any) -> Executor:
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InvalidSetting("executors", name, "the name of an executor must be some printable text")
    if name in BUILT_IN:
        raise InvalidSetting("executors", name, "a built-in executor has this name: choose another")
    lacks = [part for part in _PARTS if isinstance(executor, type) or not hasattr(executor, part)]
    if lacks:
        what = "it is a class: pass an object of it" if isinstance(executor, type) else f"it lacks {', '.join(lacks)}"
        raise InvalidSetting(f"executors[{name!r}]", executor, f"{what}. See stepwell.executors.Executor")
    checked: Executor = executor
    return checked
