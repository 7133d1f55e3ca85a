"""Two minutes of everything at once. At the end every accepted run has finished, once, and its record is whole."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from e2e_processes import Hire, Notes, WorkerProcess, eventually, hiring
from own_server import OwnServer, own_server

from stepwell import App, Retry, Run, RunFailed, Unavailable

LEASE = 2.0
SECONDS = float(os.environ.get("E2E_SOAK", "120"))
PATIENT = Retry(attempts=1000, delay=0.05, max_delay=1)


@pytest.fixture
def own(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    with own_server(tmp_path_factory.mktemp("soak") / "server") as own:
        yield own


class Faults:
    """Three workers that are never left alone, and a server that is not either."""

    def __init__(self, hire: Hire, own: OwnServer, noise: random.Random) -> None:
        self._hire, self._own, self._noise = hire, own, noise
        self._end = time.monotonic() + SECONDS
        self.workers: list[WorkerProcess] = []
        self.told: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def of_a_worker(self) -> None:
        worker = await self._hire("--slots", "20")
        self.workers.append(worker)
        while time.monotonic() < self._end:
            await asyncio.sleep(self._noise.uniform(0.5, 4))
            fault = self._noise.choice(["SIGKILL", "SIGTERM", "SIGSTOP", "SIGSTOP"])
            self.told[fault] += 1
            worker.signal(signal.Signals[fault])
            if fault == "SIGSTOP":
                await asyncio.sleep(self._noise.uniform(0.2, 2) * LEASE)
                worker.signal(signal.SIGCONT)
                continue
            code = await worker.exit_code(within=40)
            # One that is told before it can listen simply ends, and holds nothing.
            if fault == "SIGTERM" and code and worker.lines:
                self.wrong.append(f"SIGTERM ended with {code}: {worker.lines[-20:]}")
            worker = await self._hire("--slots", "20", ready=False)
            self.workers.append(worker)

    async def of_the_server(self) -> None:
        while time.monotonic() < self._end:
            await asyncio.sleep(self._noise.uniform(5, 15))
            how = self._noise.choice([signal.SIGINT, signal.SIGKILL])
            self.told[f"restart by {how.name}"] += 1
            await self._own.restart(how)


class Clients:
    def __init__(self, app: App, noise: random.Random) -> None:
        self._app, self._noise = app, noise
        self._end = time.monotonic() + SECONDS
        self.accepted: dict[Run[Any], tuple[str, Any]] = {}
        self.unknown = 0

    async def start(self) -> None:
        while time.monotonic() < self._end:
            await asyncio.sleep(self._noise.uniform(0, 0.2))
            name, value = self._noise.choice(
                [
                    ("quick", self._noise.randrange(1000)), ("sleepy", round(self._noise.uniform(0, 1), 3)),
                    ("flaky", self._noise.randrange(1, 4)), ("fatal", None), ("snoozing", self._noise.randrange(1, 3)),
                    ("in_thread", round(self._noise.uniform(0, 0.5), 3)), ("in_process", self._noise.randrange(1000)),
                ]
            )  # fmt: skip
            task = self._app.definition(f"e2e_app.{name}").options(retry=PATIENT)
            try:
                run = await (task.start() if value is None else task.start(value))
            except Unavailable:
                self.unknown += 1
            else:
                self.accepted[run] = name, value

    async def check(self, run: Run[Any]) -> None:
        name, value = self.accepted[run]
        if name == "fatal":
            with pytest.raises(RunFailed, match="gave_up"):
                await run.result(timeout=60)
            return
        result = await run.result(timeout=60)
        assert result > value if name in ("flaky", "snoozing") else result == value


async def check_the_records(own: OwnServer, clients: Clients, notes: Notes) -> Counter[str]:
    connection = await asyncpg.connect(own.dsn)
    try:
        assert await connection.fetchval("select count(*) from stepwell.runs") == 0
        rows = await connection.fetch("select id, state, attempt, failures from stepwell.finished_runs")
        attempts = await connection.fetch("select run_id, attempt, outcome from stepwell.all_attempts")
    finally:
        await connection.close()
    assert len({row["id"] for row in rows}) == len(rows)
    assert {run.id for run in clients.accepted} <= {row["id"] for row in rows}
    assert len(rows) <= len(clients.accepted) + clients.unknown
    of: dict[Any, list[tuple[int, str]]] = {}
    for each in attempts:
        of.setdefault(each["run_id"], []).append((each["attempt"], each["outcome"]))
    for row in rows:
        numbers = sorted(number for number, _ in of[row["id"]])
        assert numbers == list(range(1, row["attempt"] + 1)), f"{row} {of[row['id']]}"
        assert row["failures"] == sum(outcome == "failed" for _, outcome in of[row["id"]])
    bodies = Counter((note.run, note.attempt) for note in notes.all())
    assert not [each for each, count in bodies.items() if count > 1], "an attempt ran twice"
    return Counter(each["outcome"] for each in attempts)


async def nothing_is_left(app: App) -> bool:
    return not (await app.runs(state=["pending", "running", "scheduled"])).items


@pytest.mark.soak
@pytest.mark.timeout(SECONDS + 180)
async def test_two_minutes_of_everything_at_once_lose_and_double_nothing(
    own: OwnServer, place: Path, notes: Notes
) -> None:
    noise = random.Random(os.environ.get("E2E_SEED") or time.time_ns())
    async with App(own.dsn) as app, hiring(own.dsn, place, lease=f"{LEASE}s") as hire:
        faults, clients = Faults(hire, own, noise), Clients(app, noise)
        await asyncio.gather(
            *(faults.of_a_worker() for _ in range(3)), faults.of_the_server(), *(clients.start() for _ in range(4))
        )
        over = time.monotonic()
        await asyncio.gather(*(clients.check(run) for run in clients.accepted))
        took = time.monotonic() - over
        died = [
            worker.lines[-30:]
            for worker in faults.workers
            if worker.code not in (None, 0, -signal.SIGKILL, -signal.SIGTERM)
        ]
        # A run whose start raised may be there too, and must end like the others.
        await eventually(lambda: nothing_is_left(app))
    outcomes = await check_the_records(own, clients, notes)
    print(f"\n{len(clients.accepted)} accepted, {clients.unknown} unknown; faults {dict(faults.told)}")
    print(f"{len(faults.workers)} processes, attempts {dict(outcomes)}, all done {took:.1f} s after the last fault")
    assert not faults.wrong
    assert not died
