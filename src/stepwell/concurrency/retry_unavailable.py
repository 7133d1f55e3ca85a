"""To outlast a database that is away for a moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stepwell.model.errors import Unavailable

T = TypeVar("T")

PATIENCE = 15.0
"""Seconds for which a verb outlasts a database that is away, before it raises Unavailable."""


async def patiently(ask: Callable[[bool], Awaitable[T]]) -> T:
    """Ask until there is an answer. `ask` is told when it asks again: what it asked before may have happened."""
    end, pause, again = None, 0.05, False
    while True:
        try:
            return await ask(again)
        except Unavailable:
            # From the first failure on: it may itself have been a long wait, on a line that was dead.
            end = end or time.monotonic() + PATIENCE
            if time.monotonic() + pause > end:
                raise
            again = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)
