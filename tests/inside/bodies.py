"""Bodies that child processes can import, and an app on which tests can define them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell import App, Retry, Snooze, current

log = logging.getLogger("shop.inside")
log.setLevel(logging.INFO)


@dataclass
class Place:
    row: int
    seen: list[str]


def counts_on(upto: int) -> int:
    """One row more in every attempt, from where the last one was."""
    place = current.checkpoint.sync.load(Place, default=Place(0, []))
    place = Place(place.row + 1, [*place.seen, f"attempt {current.attempt}"])
    current.checkpoint.sync.save(place)
    if place.row < upto:
        raise ValueError("not there yet")
    return place.row


async def counts_on_async(upto: int) -> int:
    row = await current.checkpoint.load(int, default=0) + 1
    await current.checkpoint.save(row)
    if row < upto:
        raise ValueError("not there yet")
    return row


def dies_after_saving() -> int:
    if current.attempt == 1:
        current.checkpoint.sync.save({"row": 7})
        os.kill(os.getpid(), signal.SIGKILL)
    return int(current.checkpoint.sync.load(dict)["row"])


def saves_too_late(gate: str) -> str:
    current.progress("begun", done=1)
    while not Path(gate).exists():
        time.sleep(0.01)
    try:
        current.checkpoint.sync.save(1)
    except Exception as error:
        Path(gate).write_text(type(error).__name__)
    return "ended"


def tells(gate: str) -> None:
    current.progress("rows", 1, 4)
    current.progress("rows", done=3, total=4, detail={"file": "b.csv"})
    while not Path(gate).exists():
        time.sleep(0.01)


def logs(lines: int) -> None:
    for line in range(lines):
        log.info("line %d", line)


def logs_and_dies() -> None:
    log.error("this is the end")
    os.kill(os.getpid(), signal.SIGSEGV)


def talks_from_everywhere(threads: int, lines: int) -> int:
    def talk(number: int) -> None:
        for line in range(lines):
            log.info("%d/%d", number, line)
            current.progress(f"thread {number}", done=line + 1, total=lines)
            if line % 10 == 0:
                current.checkpoint.sync.save({"thread": number, "text": "x" * 10_000})

    workers = [threading.Thread(target=copy_context().run, args=(talk, number)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return current.checkpoint.sync.save(None)


def logs_behind_its_back() -> None:
    """A thread that outlives the call and goes on talking, of which nobody must hear."""
    here = copy_context()

    def go_on() -> None:
        for _ in range(50):
            here.run(log.info, "still here")
            here.run(current.progress, "ghost", done=1)
            time.sleep(0.01)

    threading.Thread(target=go_on, daemon=True).start()


def hangs() -> None:
    time.sleep(60)


def beats(times: int) -> int:
    for _ in range(times):
        time.sleep(0.1)
        current.heartbeat()
    return times


def burns(seconds: float, megabytes: int) -> int:
    memory = bytearray(megabytes * 1024 * 1024)
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return len(memory)


def raises() -> None:
    raise ValueError("no")


def snoozes_once() -> str:
    if current.attempt == 1:
        raise Snooze(0.01)
    return "awake"


def exits() -> None:
    os._exit(7)


def is_killed(name: str) -> None:
    os.kill(os.getpid(), getattr(signal, name))
    time.sleep(10)


async def waits() -> None:
    await asyncio.Event().wait()


def define(app: App, fn: Any, **options: Any) -> Any:
    """As a process task, unless said otherwise."""
    retry = Retry(attempts=5, delay=0)
    return app.task(**({"executor": "process", "retry": retry} | options))(fn)
