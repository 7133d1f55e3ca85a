"""Wakes a turn when its next timer fires."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime

from stepwell.executors.base import nobody

_DAY = 86_400.0


class Waking:
    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._at: datetime | None = None
        self._handle: asyncio.TimerHandle | None = None

    def at(self, due: datetime | None, now: Callable[[], datetime]) -> None:
        """Then, and at no other time before."""
        if due == self._at:
            return
        self.cancel()
        self._at = due
        if due is not None:
            left = max(0.0, (due - now()).total_seconds())
            self._handle = asyncio.get_running_loop().call_later(min(left, _DAY), self._comes)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def close(self) -> None:
        """And let go of who would be woken."""
        self.cancel()
        self._wake = nobody

    def _comes(self) -> None:
        self._at = None
        self._wake()
