"""Clocks of the module `time` that return the workflow's time while its code runs in this thread.

    time, time_ns                                     the time of the last event, as workflow.now() returns it
    monotonic, perf_counter, monotonic_ns, …_ns       seconds since the workflow began, as its loop's time()
    sleep                                             refused: it would block the worker's event loop

Libraries read the clocks as attributes of the module. These attributes are replaced only while some thread runs
workflow code. Other threads, our own code, asyncio, imports, logs and traces still get the real time.

datetime.now() cannot be replaced globally, because `datetime` is a type that other code compares and checks against.
The modules in `_BY_DATES` only ask it for the time, so there the name `datetime` is bound to a replacement.
"""

from __future__ import annotations

import datetime as dates
import os
import sys
import time
from collections.abc import Callable
from functools import update_wrapper
from threading import Lock, get_ident
from types import FrameType
from typing import Any

from stepwell.model.errors import NotDurable
from stepwell.replay import calls, guard
from stepwell.replay.forbidden import INSTEAD
from stepwell.replay.frames import place_of

_BY_DATES = ("backoff._async", "backoff._sync")
"""Modules that read the time by datetime.datetime.now()."""

MANY = 1_000_000
"""The most reads of the time after one event. Code that reads it more often is polling for a time that never comes."""


class StandIn:
    """A clock function of the module `time`, and its replacement."""

    def __init__(self, name: str, read: Callable[[Any], float]) -> None:
        self.name = name
        self.real: Callable[..., Any] = getattr(time, name)
        self._read = read
        self.stand_in = self._make()

    def _make(self) -> Callable[..., Any]:
        def ask(*given: Any) -> Any:
            loop = guard.inside.get(get_ident())
            if loop is None:
                return self.real(*given)
            user = guard.asked_by()
            return self.real(*given) if user is None else self._asked(loop, user)

        # Each replacement needs its own code object: the strict guard identifies functions by it.
        ask.__code__ = ask.__code__.replace(co_name=self.name)
        calls.stands_in(ask, f"time.{self.name}")
        return update_wrapper(ask, self.real)

    def _asked(self, loop: Any, user: FrameType) -> float:
        _count(loop, user, f"time.{self.name}()")
        return self._read(loop)


class Sleep(StandIn):
    """The replacement of time.sleep, which refuses."""

    def __init__(self) -> None:
        super().__init__("sleep", float)

    def _asked(self, loop: Any, user: FrameType) -> float:
        raise NotDurable("time.sleep()", place_of(user), f"Write {INSTEAD['time.sleep']}.")


class _Dates:
    """A replacement of the module `datetime`, whose now() returns the workflow's time to workflow code."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dates, name)

    @property
    def datetime(self) -> Any:
        return _Datetime()


class _Datetime:
    def __call__(self, *given: Any, **named: Any) -> Any:
        return dates.datetime(*given, **named)

    def __getattr__(self, name: str) -> Any:
        return getattr(dates.datetime, name)

    def now(self, tz: dates.tzinfo | None = None) -> dates.datetime:
        loop = guard.inside.get(get_ident())
        user = None if loop is None else guard.asked_by()
        if user is None:
            return dates.datetime.now(tz)
        _count(loop, user, "datetime.now()")
        return dates.datetime.fromtimestamp(_world_ns(loop) / 1e9, tz)


def _count(loop: Any, user: FrameType, clock: str) -> None:
    loop.looks += 1
    if loop.looks > MANY:
        remedy = "The workflow's clock stands still between two events: wait with await asyncio.sleep(…)."
        raise NotDurable(f"a loop that waits for {clock}", place_of(user), remedy)


def _nanoseconds(loop: Any) -> int:
    seconds: float = loop.time()
    return round(seconds * 1e9)


def _world_ns(loop: Any) -> int:
    began: int = loop.began_ns
    return began + _nanoseconds(loop)


CLOCKS = (
    StandIn("time", lambda loop: _world_ns(loop) / 1e9),
    StandIn("time_ns", _world_ns),
    StandIn("monotonic", lambda loop: loop.time()),
    StandIn("monotonic_ns", _nanoseconds),
    StandIn("perf_counter", lambda loop: loop.time()),
    StandIn("perf_counter_ns", _nanoseconds),
    Sleep(),
)

_names = vars(time)
_lock = Lock()
_loops = 0
"""The number of threads that run workflow code now."""


def stand_still() -> None:
    """Replace the clocks until the matching call of `go_on`. Calls nest."""
    global _loops
    with _lock:
        _loops += 1
        if _loops > 1:
            return
        for clock in CLOCKS:
            clock.real = _names[clock.name]
            _names[clock.name] = clock.stand_in
        for name in _BY_DATES:
            module = sys.modules.get(name)
            if module is not None and getattr(module, "datetime", None) is dates:
                # It stays: outside of workflow code it returns the real time.
                module.datetime = _Dates()  # type: ignore[attr-defined]  # a module has any attribute


def go_on() -> None:
    """Restore the clocks after the last thread has left workflow code."""
    global _loops
    with _lock:
        _loops -= 1
        if _loops:
            return
        for clock in CLOCKS:
            if _names[clock.name] is clock.stand_in:  # otherwise other code has replaced the clock meanwhile
                _names[clock.name] = clock.real


def _after_fork() -> None:
    """Reset the state in a forked child: no other thread exists there."""
    global _lock, _loops
    _lock, _loops = Lock(), 1
    go_on()


os.register_at_fork(after_in_child=_after_fork)
