"""A watchdog for the worker's event loop, run from the thread of the lease.

Code that never returns to the loop stops everything in the process but the lease. No other worker would take over its
runs, and nothing would say why.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from threading import get_ident
from types import FrameType

from stepwell.replay.frames import Whose, place_of, whose
from stepwell.telemetry import log

STILL = 10.0
"""Seconds without an answer of the loop after which an error is logged."""


class LoopWatchdog:
    """Asks the loop now and then to answer. Made on the loop's own thread."""

    def __init__(self, ask: Callable[[Callable[[], None]], None]) -> None:
        """`ask` calls a function on the loop, soon, from any thread."""
        self._ask = ask
        self._thread = get_ident()
        self._asked_at: float | None = None
        """Time at which the loop was asked, if it has not answered."""
        self._told = False

    def feel(self) -> None:
        """Log an error if the loop stands still, and a warning when it goes on. Called from another thread, now and
        then."""
        asked = self._asked_at
        if asked is None:
            self._asked_at = time.monotonic()
            self._ask(self._goes)
        elif (still := time.monotonic() - asked) > STILL and not self._told:
            self._told = True
            log.error(
                "the event loop of this worker has stood still for %.0f s, at %s: nothing else happens in this process "
                "until that ends. Long computations belong into a task or step that is a plain def",
                still, self._line(),
            )  # fmt: skip

    def _goes(self) -> None:
        asked, self._asked_at = self._asked_at, None
        if self._told and asked is not None:
            self._told = False
            log.warning("the event loop of this worker goes on, after %.0f s", time.monotonic() - asked)

    def _line(self) -> str:
        """Find the innermost line of the user's code, else the innermost line."""
        innermost = frame = sys._current_frames().get(self._thread)
        while frame is not None:
            if whose(frame.f_code.co_filename) is Whose.USERS:
                return place_of(frame)
            frame = frame.f_back
        return _told(innermost)


def _told(frame: FrameType | None) -> str:
    return "an unknown line" if frame is None else place_of(frame)
