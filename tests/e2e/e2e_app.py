"""The app that worker processes of these tests run. Every body writes down, in a file, that it ran.

A file and not a table: what counts executions must not fall with the database whose fall is tested.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from pathlib import Path

from stepwell import App, Fatal, Retry, Snooze, current
from stepwell.services import reaper

reaper.LOOK = float(os.environ.get("E2E_REAPER_LOOKS", reaper.LOOK))
app = App()
place = Path(os.environ["E2E_PLACE"])
soon = Retry(attempts=5, delay=0.05)
patient = Retry(attempts=1000, delay=0.05, max_delay=1)


def note(what: str, **facts: object) -> None:
    line = {"run": str(current.run_id), "attempt": current.attempt, "pid": os.getpid(), "what": what, "at": time.time()}
    file = os.open(place / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps(line | facts).encode() + b"\n")
    os.close(file)


def note_pid(file: str) -> None:
    Path(file).write_text(str(os.getpid()))


def opened(gate: str) -> bool:
    return (place / gate).exists()


async def until_open(gate: str) -> None:
    while not opened(gate):  # noqa: ASYNC110 - a test opens it from another process
        await asyncio.sleep(0.02)


@app.task
async def quick(n: int) -> int:
    note("began")
    return n


@app.task(retry=patient)
async def sleepy(seconds: float) -> float:
    note("began")
    await asyncio.sleep(seconds)
    note("ended")
    return seconds


@app.task
async def until(gate: str) -> int:
    """Ends when the gate is there; gives the process that ended it."""
    note("began")
    try:
        await until_open(gate)
    except asyncio.CancelledError:
        note("cancelled")
        raise
    note("ended")
    return os.getpid()


@app.task
def until_in_thread(gate: str) -> int:
    note("began")
    while not opened(gate):
        if current.cancelled:
            note("cancelled")
            return 0
        time.sleep(0.02)
    note("ended")
    return os.getpid()


async def until_in_process(gate: str, ledger: str) -> None:
    """In a child `current` is not there: it writes its own pid."""
    note_pid(ledger)
    await until_open(gate)


app.task(executor="process", retry=soon)(until_in_process)


@app.task
async def block(seconds: float) -> int:
    note("began")
    time.sleep(seconds)
    note("ended")
    return os.getpid()


@app.task(retry=Retry(attempts=3, delay=0.05))
async def poison() -> None:
    note("began")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task(retry=soon)
async def flaky(failures: int) -> int:
    note("began")
    if current.attempt <= failures:
        raise ValueError("not yet")
    return current.attempt


@app.task
async def fatal() -> None:
    note("began")
    raise Fatal("never")


@app.task(retry=patient)
async def snoozing(times: int) -> int:
    note("began")
    if current.attempt <= times:
        raise Snooze(0.05)
    return current.attempt


@app.task(retry=patient)
def in_thread(seconds: float) -> float:
    note("began")
    time.sleep(seconds)
    return seconds


def in_process(n: int) -> int:
    return sum(random.Random(n).randrange(10) for _ in range(1000)) * 0 + n


app.task(executor="process", retry=patient)(in_process)
