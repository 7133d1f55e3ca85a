"""Workers as processes, and what they wrote down. A process that outlives its test is killed with its group."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE = 30.0


async def eventually(condition: Callable[[], Any], *, within: float = PATIENCE) -> Any:
    """The first true answer of the condition, which may be awaitable."""
    async with asyncio.timeout(within):
        while True:
            answer = condition()
            if isinstance(answer, Awaitable):
                answer = await answer
            if answer:
                return answer
            await asyncio.sleep(0.01)


@dataclass(frozen=True)
class Note:
    run: str
    attempt: int
    pid: int
    what: str
    at: float


class Notes:
    """The file in which bodies write that they ran."""

    def __init__(self, place: Path) -> None:
        self._file = place / "ledger"

    def all(self, what: str = "began") -> list[Note]:
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        return [note for note in (Note(**json.loads(line)) for line in lines) if note.what == what]

    def of(self, run: Any, what: str = "began") -> list[Note]:
        return [note for note in self.all(what) if note.run == str(run.id)]

    async def began(self, *runs: Any, within: float = PATIENCE) -> list[Note]:
        """Once all of these have begun: the note of each one's last beginning."""
        ids = [str(run.id) for run in runs]

        def look() -> list[Note]:
            latest = {note.run: note for note in self.all()}
            return [latest[each] for each in ids] if latest.keys() >= set(ids) else []

        found: list[Note] = await eventually(look, within=within)
        return found


class WorkerProcess:
    """`stepwell worker`, in a session of its own, its output gathered line by line."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._reading = asyncio.create_task(self._read())
        self._said = asyncio.Event()
        self.lines: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.returncode

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            self.lines.append(line.decode().rstrip())
            self._said.set()

    async def says(self, pattern: str, *, within: float = PATIENCE) -> re.Match[str]:
        """The first line with this in it, said or still to come."""
        seen = 0
        try:
            async with asyncio.timeout(within):
                while True:
                    self._said.clear()
                    for line in self.lines[seen:]:
                        if match := re.search(pattern, line):
                            return match
                    seen = len(self.lines)
                    await self._said.wait()
        except TimeoutError:
            raise AssertionError(f"{pattern!r} was never said:\n" + "\n".join(self.lines[-50:])) from None

    async def ready(self) -> WorkerProcess:
        await self.says("ready: worker")
        return self

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def exit_code(self, *, within: float = PATIENCE) -> int:
        async with asyncio.timeout(within):
            return await self._process.wait()

    async def clean_up(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


Hire = Callable[..., Awaitable[WorkerProcess]]


@asynccontextmanager
async def hiring(dsn: str, place: Path, *, lease: str = "2s") -> AsyncIterator[Hire]:
    """A way to start workers, all of which end with the block."""
    hired: list[WorkerProcess] = []

    async def hire(*options: str, app: str = "e2e_app:app", ready: bool = True, **env: str) -> WorkerProcess:
        given = {"STEPWELL_DSN": dsn, "STEPWELL_LEASE": lease, "E2E_PLACE": str(place), **env}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stepwell", "worker", app, "--grace", "0s", *options),
            cwd=HERE, env={**os.environ, **given}, stdin=asyncio.subprocess.DEVNULL, start_new_session=True,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        hired.append(WorkerProcess(process))
        return await hired[-1].ready() if ready else hired[-1]

    try:
        yield hire
    finally:
        for worker in hired:
            await worker.clean_up()
            print(f"\nthe last words of worker {worker.pid}:", *worker.lines[-50:], sep="\n  ")
