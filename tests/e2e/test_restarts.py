"""Postgres goes away under load, politely or not, and comes back: nobody needs a restart, nothing is lost."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest
from e2e_processes import Notes, eventually, hiring
from own_server import OwnServer, own_server

from stepwell import App, Run


@pytest.fixture(scope="module")
def own(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    """Beside the session's own: `server` says where root's clusters live."""
    with own_server(tmp_path_factory.mktemp("own") / "server") as own:
        yield own


class Load:
    """Clients that start runs and wait for them, on and on."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._over = False
        self.accepted: list[Run[int]] = []
        self.done: list[float] = []

    async def run(self) -> None:
        while not self._over:
            run: Run[int] = await self._app.start("e2e_app.quick", len(self.accepted))
            self.accepted.append(run)
            await run.result(timeout=30)
            self.done.append(time.monotonic())

    def end(self) -> None:
        self._over = True

    async def goes_on(self, count: int = 20) -> None:
        there = len(self.done)
        await eventually(lambda: len(self.done) >= there + count)

    def first_after(self, moment: float) -> float:
        return next(each for each in self.done if each > moment) - moment


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["fast shutdown", "kill -9"])
async def test_a_restart_of_postgres_under_load_loses_nothing(
    own: OwnServer, place: Path, notes: Notes, how: signal.Signals
) -> None:
    async with App(own.dsn) as app, hiring(own.dsn, place, lease="10s") as hire:
        workers = [await hire(), await hire()]
        load = Load(app)
        held = await app.start("e2e_app.until", "gate")
        clients = [asyncio.create_task(load.run()) for _ in range(8)]
        await load.goes_on()
        took = []
        for _ in range(2):
            back = await own.restart(how)
            await load.goes_on()
            took.append(round(load.first_after(back), 2))
        load.end()
        (place / "gate").touch()
        await asyncio.gather(*clients)
        await held.result(timeout=10)
        print(f"\n{len(load.accepted)} runs, {how.name}: the first was done {took} s after the server was back")
        assert max(took) < 3
        assert {worker.code for worker in workers} == {None}
        connection = await asyncpg.connect(own.dsn)
        rows = await connection.fetch("select id, state from stepwell.all_runs where id >= $1", held.id)
        await connection.close()
        assert sorted(row["id"] for row in rows) == sorted(run.id for run in [held, *load.accepted])
        assert {row["state"] for row in rows} == {"completed"}
        assert [each.attempt for each in await held.attempts()] == [1]
