"""When an announcement may leave at once, and when it gathers with others."""

from __future__ import annotations

import asyncio

GATHER = 0.002
"""Seconds between two announcements of a burst."""
BURST = 50
"""Announcements that may leave at once, so that who starts one run after another and waits for each is no burst for a
while; one more becomes so every GATHER seconds."""


class Pacing:
    def __init__(self) -> None:
        self._paced = 0.0
        """Up to when announcements have left, were they GATHER seconds apart."""

    def may_leave_at_once(self) -> bool:
        """If so it counts as one that left; what gathers in a burst is not held against what comes after."""
        now = asyncio.get_running_loop().time()
        paced = max(self._paced, now - BURST * GATHER) + GATHER
        if paced > now:
            return False
        self._paced = paced
        return True
