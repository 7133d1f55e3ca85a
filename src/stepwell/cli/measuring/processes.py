"""Workers in processes of their own, as `stepwell worker` runs them: started, watched, and never left behind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from stepwell.cli.loading import Named
from stepwell.cli.supervisor import how, worker_command
from stepwell.model.errors import StepwellError
from stepwell.store.pool import Database

APP = "stepwell.cli.measuring.worker_app:app"
SLOTS = 100
COMING = 30.0
"""Seconds for the workers to be there."""
LEAVING = 3.0
"""Seconds until a worker that was told to end is killed: the schema is dropped anyway."""
TAIL = 2_000


@dataclass(eq=False)
class Unmeasured(StepwellError):
    """It could not be measured: {reason}"""

    reason: str


class Workers:
    """Processes that end with us: each holds the reading end of a pipe that only we can write to."""

    def __init__(self, log: IO[bytes]) -> None:
        self._log = log
        self._children: list[subprocess.Popen[bytes]] = []

    def start(self, queues: Sequence[str], *, env: dict[str, str], leash: int) -> None:
        command = worker_command(Named(APP, "", Path.cwd()), queues=queues, slots=SLOTS, grace=0.0, log_level="warning")
        # In a session of its own, so that Ctrl-C on the terminal comes to us alone.
        child = subprocess.Popen(
            [*command, "--leash", str(leash)],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=env,
            pass_fds=(leash,),
            start_new_session=True,
        )
        self._children.append(child)

    def check(self) -> None:
        for child in self._children:
            if (code := child.poll()) is not None:
                raise Unmeasured(f"a worker ended by itself ({how(code)}).\n{self.words()}")

    def words(self) -> str:
        """The end of what the workers wrote."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - TAIL))
        return self._log.read().decode(errors="replace").strip()

    def end(self) -> None:
        for child in self._children:
            child.terminate()
        deadline = time.monotonic() + LEAVING
        for child in self._children:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@asynccontextmanager
async def workers(database: Database, *queues: Sequence[str]) -> AsyncIterator[Workers]:
    """Start a worker for each list of queues, and wait until all are ready."""
    env = {**os.environ, "STEPWELL_DSN": database.dsn, "STEPWELL_SCHEMA": database.schema}
    leash, held = os.pipe()
    with tempfile.TemporaryFile() as log:
        hired = Workers(log)
        try:
            for each in queues:
                hired.start(each, env=env, leash=leash)
            await _ready(database, hired, len(queues))
            yield hired
        finally:
            await asyncio.to_thread(hired.end)
            os.close(leash)
            os.close(held)


async def _ready(database: Database, hired: Workers, count: int) -> None:
    deadline = time.monotonic() + COMING
    while (await database.rows("work_facts"))[0]["workers"] < count:
        hired.check()
        if time.monotonic() > deadline:
            raise Unmeasured(f"the workers were not there after {COMING:.0f} s.\n{hired.words()}")
        await asyncio.sleep(0.05)
