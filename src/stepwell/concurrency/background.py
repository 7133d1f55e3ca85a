"""Background tasks for the time of a block. None of them may end unnoticed: if one ends, the block ends too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def in_background(*parts: Coroutine[Any, Any, None], may_end: bool = False) -> AsyncIterator[None]:
    """Run `parts` until the block ends, then cancel them. Raise the error of a part from the block.

    A part that returns is an error as well, unless they `may_end`.
    """
    block = asyncio.current_task()
    assert block is not None  # an async context manager is always entered by a task
    failed: list[BaseException] = []
    inside = True

    def ended(part: asyncio.Task[None]) -> None:
        error = None if part.cancelled() else part.exception()
        if error is None and inside and not may_end:
            error = RuntimeError(f"{part.get_coro()} returned, although it was to run until it is cancelled")
        if error is not None and not failed:
            failed.append(error)
            if inside:
                block.cancel()

    tasks = [asyncio.create_task(part) for part in parts]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        yield
    except asyncio.CancelledError:
        if not failed or block.uncancel() > 0:
            raise
    finally:
        inside = False
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failed:
        raise failed[0]


async def in_time(seconds: float | None, waiting: Awaitable[Any]) -> bool:
    """Wait for at most so many seconds. Return False if the time ran out."""
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        return False
    return True
