"""Retries while the database is away for a moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from stepwell.model.errors import Unavailable

T = TypeVar("T")

PATIENCE = 15.0
"""Seconds for which a verb retries while the database is away, before it raises Unavailable."""


async def patiently(ask: Callable[[bool], Awaitable[T]]) -> T:
    """Call `ask` until it returns, and back off in between. Its argument tells whether this is a retry: the earlier try
    may have committed."""
    end, pause, again = None, 0.05, False
    while True:
        try:
            return await ask(again)
        except Unavailable:
            # The time counts from the first failure, which may itself have been a long wait on a dead connection.
            end = end or time.monotonic() + PATIENCE
            if time.monotonic() + pause > end:
                raise
            again = True
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)
