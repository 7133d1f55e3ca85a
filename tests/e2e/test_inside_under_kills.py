"""What bodies leave behind outlives their workers, and no worker that lost its claim spoils it."""

from __future__ import annotations

import asyncio
import logging
import signal
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest
from e2e_processes import Hire, Notes, eventually
from proxy import Proxy

from stepwell import App, current

Sql: TypeAlias = "asyncpg.Connection[Any]"
log = logging.getLogger("shop.inside")
log.setLevel(logging.INFO)


async def test_a_checkpoint_survives_the_kill_of_its_worker(hire: Hire, client: App, notes: Notes, place: Path) -> None:
    first = await hire(app="inside_app:app")
    run = await client.start("inside_app.carries_on", "gate")
    await notes.began(run)
    await eventually(run.logs)
    first.signal(signal.SIGKILL)
    await first.exit_code()
    second = await hire(app="inside_app:app")
    await eventually(lambda: len(notes.of(run)) == 2)
    second.signal(signal.SIGKILL)
    third = await hire(app="inside_app:app")
    (place / "gate").touch()
    assert await run.result(timeout=20) == [first.pid, second.pid, third.pid]
    attempts = await run.attempts()
    assert [each.pid for each in attempts] == [first.pid, second.pid, third.pid]
    assert [line.message for line in attempts[0].logs] == ["attempt 1"]
    assert [line.message for line in await eventually(lambda: run.logs(attempt=3))] == ["attempt 3"]


async def test_a_worker_that_was_frozen_past_its_lease_cannot_save(
    hire: Hire, client: App, notes: Notes, sql: Sql, place: Path
) -> None:
    zombie = await hire(app="inside_app:app")
    run = await client.start("inside_app.saves_late", "gate")
    await notes.began(run)
    zombie.signal(signal.SIGSTOP)
    successor = await hire(app="inside_app:app")
    await eventually(lambda: len(notes.of(run)) == 2)
    successor.signal(signal.SIGSTOP)
    (place / "gate").touch()
    zombie.signal(signal.SIGCONT)
    await eventually(lambda: notes.of(run, "refused"))
    assert await sql.fetchval("select state::int from stepwell.checkpoints") == 2
    successor.signal(signal.SIGCONT)
    assert await run.result(timeout=20) == 2
    assert [note.attempt for note in notes.of(run, "refused")] == [1]
    assert [note.attempt for note in notes.of(run, "saved")] == [2]


def note_statements(name: str) -> bool:
    return name in ("note_steps", "note_lines")


async def test_a_body_ends_in_time_while_nothing_that_it_says_arrives(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.store.pool.ANSWER", 10.0)
    app = App(proxy.dsn, lease=5)

    @app.task
    async def work() -> None:
        for row in range(100):
            current.progress("rows", done=row)
            log.info("row %d", row)
            await asyncio.sleep(0)

    async with app, app.worker():
        proxy.freeze(note_statements)
        run = await work.start()
        await run.result(timeout=8)
        proxy.heal()
        (seen,) = await eventually(run.progress)
        assert seen.done == 99
        await eventually(run.logs)
    async with app:
        assert [each.message for each in await run.logs()] == [f"row {row}" for row in range(100)]


@pytest.mark.parametrize("statement", ["note_steps", "note_lines", "save_checkpoint", "load_checkpoint"])
async def test_a_lost_answer_changes_nothing(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    monkeypatch.setattr("stepwell.store.pool.ANSWER", 2.0)
    app = App(proxy.dsn, lease=5)

    @app.task
    async def work() -> int:
        current.progress("rows", done=7)
        log.info("once")
        await current.checkpoint.save(7)
        return await current.checkpoint.load(int, default=0)

    async with app, app.worker():
        lost = proxy.swallow(statement)
        run = await work.start()
        assert await run.result(timeout=20) == 7
        async with asyncio.timeout(20):
            await lost.done.wait()
        assert [each.done for each in await eventually(run.progress)] == [7]
        assert [each.message for each in await eventually(run.logs)] == ["once"]
