"""An embedded server of the test's own, to be shut down and killed. Its keeper starts it again each time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

from stepwell.store import embedded, keeper


class OwnServer:
    def __init__(self, dsn: str, home: Path) -> None:
        self.dsn = dsn
        self._data = keeper.EmbeddedServer.read(home).data

    @property
    def pid(self) -> int | None:
        return keeper.living_postmaster(self._data)

    async def restart(self, how: signal.Signals) -> float:
        """End the server, and wait until its successor takes connections; the moment at which it did."""
        old = self.pid
        assert old is not None
        os.kill(old, how)
        while True:
            if self.pid not in (old, None):
                try:
                    connection = await asyncpg.connect(self.dsn, timeout=2)
                except (OSError, asyncpg.PostgresError, TimeoutError):
                    pass
                else:
                    connection.terminate()
                    return time.monotonic()
            await asyncio.sleep(0.02)


@contextmanager
def own_server(home: Path) -> Iterator[OwnServer]:
    hold = embedded.ensure(home, linger=0.5)
    try:
        yield OwnServer(hold.dsn, home.resolve())
    finally:
        hold.release()
