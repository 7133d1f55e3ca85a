"""Bodies that other processes can import: module-level, as executor="process" needs them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

from stepwell import App, Snooze, current

let_go = threading.Event()


async def waits() -> None:
    await asyncio.Event().wait()


def blocks() -> None:
    let_go.wait(30)


def spins() -> None:
    while True:
        pass


def dies() -> None:
    os._exit(7)


def adds(a: int, b: int) -> int:
    return a + b


def tells() -> tuple[str, int, str | None, dict[str, str]]:
    return str(current.run_id), current.attempt, current.key, dict(current.tags)


def naps(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


class Nap(Snooze):
    """Says nothing of how long."""

    def __init__(self) -> None:
        pass


def snoozes() -> None:
    raise Nap


def define(app: App) -> dict[str, Any]:
    let_go.clear()
    return {
        "async": app.task(waits),
        "thread": app.task(blocks),
        "process": app.task(executor="process")(spins),
        "dies": app.task(executor="process")(dies),
        "naps": app.task(executor="process")(naps),
        "snoozes": app.task(executor="process")(snoozes),
        "tells": app.task(executor="process")(tells),
        "adds": app.task(executor="process")(adds),
    }
