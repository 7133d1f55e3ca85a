"""What is set for a queue stays so, though a first try of an earlier word arrives after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from proxy import Detained, Proxy

from stepwell import App
from stepwell.definitions.queue import Queue
from stepwell.model.queue import QueueInfo

SETTLED = 0.3
"""Seconds in which what was delivered could do its harm."""


async def pause(queue: Queue) -> None:
    await queue.pause()
    await queue.resume()


async def resume(queue: Queue) -> None:
    await queue.pause()
    await queue.resume()
    await queue.pause()


async def limit(queue: Queue) -> None:
    await queue.set(concurrency=1)
    await queue.set(concurrency=50)


CHANGES: dict[str, tuple[Callable[[Queue], Awaitable[None]], Callable[[QueueInfo], bool]]] = {
    "pause_queue": (pause, lambda info: info.paused_at is None),
    "resume_queue": (resume, lambda info: info.paused_at is not None),
    "set_queue": (limit, lambda info: info.limits.concurrency == 50),
}


@pytest.mark.parametrize("statement", CHANGES)
async def test_a_late_first_try_undoes_nothing(proxy: Proxy, statement: str) -> None:
    change, is_right = CHANGES[statement]
    app = App(proxy.dsn, lease=5)
    async with app:
        detained: Detained = proxy.detain(statement)
        await change(app.queue("q"))
        assert is_right(await app.queue("q").info())
        detained.deliver()
        await asyncio.sleep(SETTLED)
        assert is_right(await app.queue("q").info())
