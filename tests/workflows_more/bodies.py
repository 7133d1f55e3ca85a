"""Bodies of steps that another process can import: at the top level of a module, as executor="process" needs them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from stepwell import App


def note(place: str, what: str) -> int:
    """Note it with the process that it happened in; how often it has happened now."""
    with Path(place).open("a") as file:
        file.write(json.dumps([what, os.getpid()]) + "\n")
    return len(pids(place, what))


def pids(place: str, what: str) -> list[int]:
    """Where it happened, one entry for each time."""
    lines = Path(place).read_text().splitlines() if Path(place).exists() else []
    return [pid for said, pid in map(json.loads, lines) if said == what]


def where(place: str) -> tuple[int, bool]:
    note(place, "where")
    return os.getpid(), threading.current_thread() is threading.main_thread()


def third_time(place: str) -> int:
    if (times := note(place, "third_time")) < 3:
        raise ConnectionError(f"not at {times}")
    return times


def refuses(place: str) -> None:
    note(place, "refuses")
    raise ValueError("no")


def hangs_at_first(place: str) -> int:
    if (times := note(place, "hangs_at_first")) < 2:
        threading.Event().wait(30)
    return times


def dies_at_first(place: str) -> int:
    if (times := note(place, "dies_at_first")) < 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return times


def waits(place: str, gate: str) -> int:
    """Until the named pipe is opened for writing."""
    note(place, "waits")
    with Path(gate).open() as opened:
        opened.read()
    return os.getpid()


def work(app: App, executor: Any) -> Any:
    """A workflow of two steps, the same in whatever process it is defined."""
    first = app.step(executor=executor)(where)
    second = app.step(executor=executor)(waits)

    @app.workflow(name="work")
    async def work(place: str, gate: str) -> int:
        await first(place)
        return await second(place, gate)

    return work


async def main(dsn: str, executor: str) -> None:
    """A worker, to be killed."""
    app = App(dsn, lease=2)
    work(app, executor)
    async with app.worker():
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
