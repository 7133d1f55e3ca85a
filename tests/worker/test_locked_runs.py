"""What a transaction of somebody else's holds locked, for however long, is waited for by those who want it alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import asyncpg
import pytest

from stepwell import App, Retry, Run, RunCancelled, RunFailed, State
from stepwell.store.sessions import SESSION
from tests.waiting_for import until

Sql: TypeAlias = "asyncpg.Connection[Any]"


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def user(dsn: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def all_running(runs: list[Run[Any]]) -> bool:
    return all([(await run.info()).state is State.RUNNING for run in runs])


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_a_long_transaction_that_cancels_a_run_does_not_keep_the_outcomes_of_others(
    app: App, user: Sql, ends: str
) -> None:
    gate = asyncio.Event()

    @app.task(retry=Retry(attempts=1))
    async def work(n: int) -> int:
        await gate.wait()
        if n >= 10:
            raise ValueError("no")
        return n

    async with app.worker():
        # Two of them: one is completed, the other fails. Both are blocked.
        runs = await work.start_many([(n,) for n in (0, 1, 2, 3, 10, 11)])
        await until(lambda: all_running(runs))
        open_ended = user.transaction()
        await open_ended.start()
        await runs[0].cancel(tx=user)
        await runs[4].cancel(tx=user)
        gate.set()
        # For as long as a lock is waited for, and not for as long as it is held.
        assert [await run.result(timeout=30) for run in runs[1:4]] == [1, 2, 3]
        with pytest.raises(RunFailed):
            await runs[5].result(timeout=30)
        async with asyncio.timeout(15):  # ten times for as long as a lock is waited for, that would be twenty
            for _ in range(10):
                later = [await work.start(12), await work.start(4)]
                with pytest.raises(RunFailed):
                    await later[0].result()
                assert await later[1].result() == 4
        assert {(await run.info()).state for run in (runs[0], runs[4])} == {State.RUNNING}
        if ends == "commit":
            await open_ended.commit()
            for run in (runs[0], runs[4]):
                with pytest.raises(RunCancelled):
                    await run.result(timeout=30)
        else:
            await open_ended.rollback()
            assert await runs[0].result(timeout=30) == 0
            with pytest.raises(RunFailed):
                await runs[4].result(timeout=30)


async def test_starts_that_wait_for_a_key_leave_connections_to_the_worker(
    dsn: str, user: Sql, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SESSION, "lock_timeout", "60s")  # they do not let go of theirs before
    app = App(dsn, lease=5)

    @app.task
    async def work(n: int) -> int:
        return n

    async def wait_for_the_key() -> bool:
        asked = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        return bool(await sql.fetchval(asked) >= 7)

    async with app, app.worker():
        async with user.transaction():
            await work.options(key="k", tx=user).start(1)
            waiting = [asyncio.create_task(work.options(key="k").start(1)) for _ in range(30)]
            await until(wait_for_the_key)
            run_id = await sql.fetchval("""select stepwell.start($1, '{"n": 5}')""", work.name)

            async def completed() -> bool:
                state = await sql.fetchval("select state from stepwell.all_runs where id = $1", run_id)
                return bool(state == "completed")

            await until(completed)
        assert len({run.id for run in await asyncio.gather(*waiting)}) == 1
