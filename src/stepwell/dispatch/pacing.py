"""A token bucket for announcements: the first few of a burst leave at once, the rest gathers and leaves together.

A reply refunds its token. A caller that starts a run, waits for its result and starts the next is no burst, however
quick the replies are: without the refund each of its words would wait to be gathered.
"""

from __future__ import annotations

import asyncio

GATHER = 0.005
"""Seconds between two announcements of a burst."""
BURST = 20
"""Tokens of a full bucket: announcements that may leave at once. One more comes every GATHER seconds."""


class Pacing:
    def __init__(self) -> None:
        self._paced = 0.0
        """The time at which the bucket is full again, less BURST * GATHER seconds."""

    def may_leave_at_once(self) -> bool:
        """Take a token. An empty bucket stays empty, and owes nothing."""
        now = asyncio.get_running_loop().time()
        self._paced = min(max(self._paced, now - BURST * GATHER), now) + GATHER
        return self._paced <= now

    def answered(self) -> None:
        """Refund a token: a reply arrived."""
        self._paced -= GATHER
