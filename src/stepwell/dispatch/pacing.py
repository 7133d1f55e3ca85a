"""When an announcement may leave at once, and when it gathers with others.

The first few of a burst leave at once, and the rest together. Who waits for an answer before saying more, as one who
starts a run, waits for its result and starts the next, is no burst, however quick the answers are.
"""

from __future__ import annotations

import asyncio

GATHER = 0.005
"""Seconds between two announcements of a burst."""
BURST = 20
"""Announcements that may leave at once; one more becomes so every GATHER seconds, and for each that is answered."""


class Pacing:
    def __init__(self) -> None:
        self._paced = 0.0
        """Up to when announcements have left, were they GATHER seconds apart."""

    def may_leave_at_once(self) -> bool:
        """It counts as one that left; but what gathers in a burst is not held against what comes long after."""
        now = asyncio.get_running_loop().time()
        self._paced = min(max(self._paced, now - BURST * GATHER), now) + GATHER
        return self._paced <= now

    def answered(self) -> None:
        self._paced -= GATHER
