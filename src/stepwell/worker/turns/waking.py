"""Wakes a turn: soon after an event has come, and when its next timer fires."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime

from stepwell.executors.base import nobody

_DAY = 86_400.0


class Waking:
    """Calls `go_on` of a turn, at most once for each iteration of the event loop."""

    def __init__(self, go_on: Callable[[], None]) -> None:
        self._go_on = go_on
        self._is_called = False
        self._at: datetime | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.went_on_at = 0.0
        """Time at which the turn last went on; monotonic."""

    def soon(self) -> None:
        """Go on in the next iteration of the event loop, so that events of the same moment are told together."""
        if not self._is_called:
            self._is_called = True
            asyncio.get_running_loop().call_soon(self._call)

    def at(self, due: datetime | None, now: Callable[[], datetime]) -> None:
        """Go on at this time, in place of the time set before."""
        if due == self._at:
            return
        self._cancel()
        self._at = due
        if due is not None:
            left = max(0.0, (due - now()).total_seconds())
            self._timer = asyncio.get_running_loop().call_later(min(left, _DAY), self._fire)

    def went_on(self) -> None:
        """Note that the turn goes on now."""
        self._is_called, self.went_on_at = False, time.monotonic()

    def close(self) -> None:
        """Cancel the timer, and break the reference to the turn, so that no garbage collection is needed."""
        self._cancel()
        self._go_on = nobody

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _call(self) -> None:
        self._go_on()

    def _fire(self) -> None:
        self._at = None
        self.soon()
