"""An app whose bodies count, at their first line, how many of them there are at this moment on this machine.

Each holds a lock on a file of its own for as long as it lives. The kernel lets go of it with the process, so those
who were killed do not count.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
from collections import Counter
from pathlib import Path

from stepwell import App, Retry, current

app = App()
place = Path(os.environ["E2E_PLACE"])
patient = Retry(attempts=1000, delay=0.01, max_delay=0.05)


@app.task(queue="narrow", retry=patient)
async def counted(n: int) -> int:
    await _hold("narrow", "all")
    return n


@app.task(queue="tenants", retry=patient, limit_by=lambda tenant, n: tenant, per_key=2)
async def counted_by(tenant: str, n: int) -> int:
    await _hold("tenants", tenant)
    return n


async def _hold(queue: str, key: str) -> None:
    folder = place / queue
    folder.mkdir(exist_ok=True)
    file = folder / f"{key}.{current.run_id}.{current.attempt}"
    own = os.open(file, os.O_CREAT | os.O_RDWR)
    fcntl.flock(own, fcntl.LOCK_EX)
    try:
        _note(queue, _live(folder))
        await asyncio.sleep(0.03)
    finally:
        file.unlink(missing_ok=True)
        os.close(own)


def _note(queue: str, live: dict[str, int]) -> None:
    with open(place / "gauge", "a") as gauge:
        gauge.write(json.dumps([queue, live]) + "\n")


def _live(folder: Path) -> dict[str, int]:
    """How many hold theirs, by key."""
    live: Counter[str] = Counter()
    for file in folder.iterdir():
        try:
            look = os.open(file, os.O_RDWR)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(look, fcntl.LOCK_SH | fcntl.LOCK_NB)  # others who look do not count
        except BlockingIOError:
            live[file.name.split(".")[0]] += 1
        else:
            file.unlink(missing_ok=True)
        finally:
            os.close(look)
    return live
