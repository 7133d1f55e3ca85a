"""How a body tells the harness that it has begun: a number and the time, on a socket of the machine's own."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0
_mouth: socket.socket | None = None


def tell(number: int) -> None:
    """Say that the body of this probe has begun. The clock is the machine's, the same for every process."""
    global _mouth
    now = time.monotonic()
    if _mouth is None:
        _mouth = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        _mouth.connect(os.environ["BENCH_SOCKET"])
    _mouth.send(struct.pack("qd", number, now))


@contextmanager
def listening() -> Iterator[socket.socket]:
    path = Path(os.environ["BENCH_SOCKET"])
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear:
        ear.bind(str(path))
        ear.setblocking(False)
        yield ear
    path.unlink(missing_ok=True)


async def told(ear: socket.socket, number: int) -> float:
    """When the body of this number began."""
    heard, at = -1, 0.0
    while heard != number:
        heard, at = struct.unpack("qd", await asyncio.wait_for(_hear(ear), PATIENCE))
    return at


async def _hear(ear: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(ear, 16)
