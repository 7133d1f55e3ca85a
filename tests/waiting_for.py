"""Waiting without sleeping: for a fact told by telemetry, or for a condition of the database."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from stepwell import App, Task


@contextmanager
def hearing(app: App, name: str) -> Iterator[asyncio.Event]:
    """An event that is set when the fact is told."""
    heard = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listener(told: str, _facts: dict[str, Any]) -> None:
        if told == name:
            loop.call_soon_threadsafe(heard.set)

    end = app.telemetry.listen(listener)
    try:
        yield heard
    finally:
        end()


async def until(condition: Callable[[], Awaitable[Any]], *, within: float = 30.0) -> Any:
    """The first true answer of the condition."""
    async with asyncio.timeout(within):
        while True:
            if answer := await condition():
                return answer
            await asyncio.sleep(0.01)


async def all_ears(app: App, task: Task[[Any], Any]) -> None:
    """Until the app listens, and its worker has looked for what came before: now it finds by words alone."""

    async def hears() -> bool:
        return app._opening.wakes.hears

    await until(hears)
    await (await task.start("what came before")).result(timeout=30)
