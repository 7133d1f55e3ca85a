"""Bodies that leave something behind, for worker processes that are killed or frozen."""

from __future__ import annotations

import logging
import os
import time

from e2e_app import note, opened, until_open

from stepwell import App, ClaimLost, Retry, current

app = App()
log = logging.getLogger("inside")


@app.task(retry=Retry(attempts=5, delay=0.05))
async def carries_on(gate: str) -> list[int]:
    """The processes that worked on it, in turn."""
    pids = await current.checkpoint.load(list[int], default=[])
    await current.checkpoint.save([*pids, os.getpid()])
    log.info("attempt %d", current.attempt)
    current.progress("attempts", done=current.attempt)
    note("began")
    await until_open(gate)
    return [*pids, os.getpid()]


@app.task(retry=Retry(attempts=5, delay=0.05))
def saves_late(gate: str) -> int:
    current.checkpoint.sync.save(current.attempt)
    note("began")
    while not opened(gate):
        time.sleep(0.02)
    try:
        current.checkpoint.sync.save(current.attempt * 100)
    except ClaimLost:
        note("refused")
        raise
    note("saved")
    return current.attempt
