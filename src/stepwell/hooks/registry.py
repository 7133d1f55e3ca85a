"""The hooks of an app, and the pump for each event loop on which it is open."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from difflib import get_close_matches
from typing import Any

from stepwell.hooks.events import events_of
from stepwell.hooks.pump import Hook, Pump
from stepwell.model.duration import Duration, duration
from stepwell.model.errors import InvalidSetting, WrongUse
from stepwell.model.hooks import EVENTS
from stepwell.telemetry import Telemetry

DRAIN = 5.0
"""Seconds for which waiting events are still delivered when a worker stops, or an app closes."""
EXAMPLE = '@app.on("run.failed")'


class Hooks:
    """Registers hooks, and delivers events to them."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._by_event: dict[str, list[Hook]] = {}
        self._pumps: dict[asyncio.AbstractEventLoop, Pump] = {}
        self.around: Callable[[Any, Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]] | None = None
        """Wrapper that workers run around the body of each attempt of a task."""

    def add(self, names: tuple[object, ...], fn: Callable[[Any], Any], limit: Duration) -> None:
        """Call `fn` with each event of these names. Raise WrongUse or InvalidSetting for bad arguments."""
        seconds = duration(limit, setting="timeout").total_seconds()
        if seconds <= 0:
            raise InvalidSetting("timeout", limit, "must be longer than zero")
        _check_function(fn)
        hook = Hook(fn, seconds, _is_async(fn))
        if not self._by_event:
            self._telemetry.listen(self._hear)
            self._telemetry.time_bodies()
        for name in dict.fromkeys(checked_names(names)):
            self._by_event.setdefault(name, []).append(hook)

    def open(self) -> None:
        """Open a pump for this event loop."""
        self._pumps[asyncio.get_running_loop()] = Pump(self._by_event)

    async def drain(self) -> None:
        """Let the hooks of this event loop receive the events that wait."""
        pump = self._pumps.get(asyncio.get_running_loop())
        if pump is not None:
            await pump.drain(DRAIN)

    async def close(self) -> None:
        """Close the pump of this event loop."""
        pump = self._pumps.get(asyncio.get_running_loop())
        if pump is not None:
            await pump.close(DRAIN)
            del self._pumps[asyncio.get_running_loop()]

    def _hear(self, name: str, facts: dict[str, Any]) -> None:
        """Queue the events of a fact: a telemetry listener. Facts on an event loop without an open app are dropped."""
        pump = self._pumps.get(asyncio.get_running_loop())
        if pump is not None:
            for event in events_of(name, facts, self._by_event):
                pump.put(event)


def checked_names(names: tuple[object, ...]) -> list[str]:
    """Check the names of events."""
    if not names:
        raise WrongUse(f"on() takes the names of events: {EXAMPLE}. The events are {', '.join(EVENTS)}")
    return [_checked_name(name) for name in names]


def _checked_name(name: object) -> str:
    if callable(name):
        raise WrongUse(f"on() needs the names of events before it decorates a function: {EXAMPLE}")
    if isinstance(name, str) and name in EVENTS:
        return name
    near = get_close_matches(name, EVENTS, n=1, cutoff=0.5) if isinstance(name, str) else []
    hint = f"there is no such event. Did you mean {near[0]!r}? " if near else "there is no such event. "
    raise InvalidSetting("on", name, f"{hint}The events are {', '.join(EVENTS)}")


def _check_function(fn: Any) -> None:
    if not callable(fn):
        raise WrongUse(f"{EXAMPLE} decorates a function that takes an event, not {fn!r}")
    name = getattr(fn, "__qualname__", repr(fn))
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise WrongUse(f"{name} is a generator: a hook must be a plain async def or def")
    try:
        inspect.signature(fn).bind(object())
    except TypeError:
        raise WrongUse(
            f"{name} cannot be called with one event as its only argument: a hook takes nothing else"
        ) from None
    except ValueError:
        pass  # a function written in C has no signature


def _is_async(fn: Any) -> bool:
    while hasattr(fn, "func"):  # functools.partial
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004
