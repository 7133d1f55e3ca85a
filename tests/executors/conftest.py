from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from stepwell.executors.process import ProcessExecutor
from stepwell.executors.thread import ThreadExecutor


@pytest.fixture
async def threads() -> AsyncIterator[ThreadExecutor]:
    executor = ThreadExecutor(2)
    yield executor
    await executor.close()


@pytest.fixture
async def processes() -> AsyncIterator[ProcessExecutor]:
    executor = ProcessExecutor(2)
    yield executor
    await executor.close()


@pytest.fixture
def fifo(tmp_path: Path) -> Callable[[str], Path]:
    def make(name: str) -> Path:
        os.mkfifo(tmp_path / name)
        return tmp_path / name

    return make


class Watched:
    """A process that we wait for without being its parent."""

    def __init__(self, pid: int) -> None:
        self._fd = os.pidfd_open(pid)

    async def gone(self) -> bool:
        ready = await asyncio.to_thread(select.select, [self._fd], [], [], 10)
        return bool(ready[0])


@pytest.fixture
def watch() -> type[Watched]:
    return Watched
