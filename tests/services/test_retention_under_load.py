"""Days are dropped while workers drain: nobody waits long for it, it gives up where it must, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import App
from stepwell.engine import retention
from stepwell.store.pool import Database
from tests.waiting_for import until

pytestmark = pytest.mark.timeout(60)

MONTH = timedelta(days=30)
DAYS, ROWS, FOREVER = 3, 5_000, 100
RUNS = 20_000
TRIES = 3
"""Times that a day cannot be dropped, since somebody reads."""

OLD_DAYS = f"""
select stepwell.make_partition('finished_runs', current_date - 40 - day) from generate_series(1, {DAYS}) day;
insert into stepwell.finished_runs (
    id, kind, name, queue, priority, state, input, retry, attempt, failures, created_at, finished_at, keep
)
select gen_random_uuid(), 'task', 'old', 'old', 50, 'cancelled', '{{}}', '{{}}', 0, 0, at, at,
       case when n <= {FOREVER} then 'forever' end
  from generate_series(1, {DAYS}) day, generate_series(1, {ROWS}) n,
       lateral (select (current_date - 40 - day)::timestamp at time zone 'UTC' + interval '1 hour') a (at);
"""
WAITS = """
select max(extract(epoch from clock_timestamp() - a.query_start))::float8
  from pg_stat_activity a
 where a.datname = current_database() and a.wait_event_type = 'Lock' and a.query !~ 'drop_partition'
"""
PATIENCE = """
select extract(epoch from substr(setting, 14)::interval)::float8
  from pg_proc p, unnest(p.proconfig) setting
 where p.oid = 'stepwell.drop_partition'::regproc and setting like 'lock_timeout=%'
"""
FINISHED = "select count(*) from stepwell.finished_runs where name = 'tick'"


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[App]:
    """One whose own service drops no days: the test does."""
    async with App(dsn, lease=5, keep=None) as app:
        yield app


class Watch:
    """How long anyone but the drop has waited for a lock, at most."""

    def __init__(self) -> None:
        self.longest = 0.0

    @asynccontextmanager
    async def on(self, dsn: str) -> AsyncIterator[None]:
        connection = await asyncpg.connect(dsn)
        looking = asyncio.create_task(self._look(connection))
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.wait([looking])
            connection.terminate()

    async def _look(self, connection: asyncpg.Connection[Any]) -> None:
        while True:
            self.longest = max(self.longest, await connection.fetchval(WAITS) or 0.0)
            await asyncio.sleep(0.003)


async def test_days_are_dropped_while_two_workers_drain_at_full_load(app: App, database: Database, dsn: str) -> None:
    @app.task(name="tick")
    async def tick(n: int) -> None: ...

    sql, watch = await asyncpg.connect(dsn), Watch()
    await sql.execute(OLD_DAYS)
    await tick.start_many([(n,) for n in range(RUNS)])
    async with app.worker(), app.worker(), watch.on(dsn):
        await until(lambda: sql.fetchval(FINISHED))
        async with sql.transaction():
            before = await sql.fetchval(FINISHED)  # from here on it reads, until its transaction ends
            for _ in range(TRIES):
                assert await retention.drop_old_days(database, MONTH) == [], (
                    "it has to wait for who reads, and does not"
                )
            assert await sql.fetchval(FINISHED) > before, "what it waited for, nobody else did"
        dropped: set[str] = set()
        while len(dropped) < DAYS:
            dropped |= set(await retention.drop_old_days(database, MONTH))
        left = await sql.fetchval("select count(*) from stepwell.runs")
        assert left > 0, "the workers were busy to the end"
        await until(lambda: sql.fetchval("select not exists (select from stepwell.runs)"), within=30)
    # A drop may wait for two locks, that of the parent and that of the day; who comes meanwhile waits behind it.
    assert 0 < watch.longest < 2 * await sql.fetchval(PATIENCE) + 0.2
    assert await sql.fetchval(f"{FINISHED} and state = 'completed' and attempt = 1") == RUNS
    assert await sql.fetchval("select count(*) from stepwell.kept_runs") == DAYS * FOREVER
    assert await sql.fetchval("select count(*) from stepwell.all_runs where name = 'old'") == DAYS * FOREVER
    await sql.close()
