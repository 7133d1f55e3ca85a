"""The clock that tests move: it is the app's own, and nothing is left ahead when it is restored."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import App, InvalidSetting, Retry, Run, State
from stepwell.testing import Clock
from tests.waiting_for import until

pytestmark = pytest.mark.timeout(60)

HOUR = timedelta(hours=1)
TIMES = """
select c.table_name::text as name, string_agg(format('max(%I)', c.column_name), ', ') as columns
  from information_schema.columns c
  join pg_class t on t.oid = format('stepwell.%I', c.table_name)::regclass
 where c.table_schema = 'stepwell' and c.data_type = 'timestamp with time zone'
   and t.relkind in ('r', 'p') and not t.relispartition
   and c.table_name not in ('finished_runs', 'kept_runs', 'attempts', 'progress', 'run_logs', 'migrations')
 group by 1
"""


@pytest.fixture
async def clock(dsn: str) -> Clock:
    return Clock(dsn)


async def due_in(run: Run[Any]) -> timedelta:
    due = (await run.info()).due_at
    assert due is not None
    return due - datetime.now(UTC)


async def is_in(run: Run[Any], state: State) -> bool:
    return (await run.info()).state is state


async def ahead(dsn: str, by: timedelta) -> set[str]:
    """Tables of what is live with a time that is so far ahead of the real clock."""
    connection = await asyncpg.connect(dsn)
    try:
        found = set()
        for row in await connection.fetch(TIMES):
            last = await connection.fetchrow(f"select {row['columns']} from stepwell.{row['name']}")
            if any(each is not None and each > datetime.now(UTC) + by for each in last or ()):
                found.add(row["name"])
        return found
    finally:
        await connection.close()


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("STEPWELL_SCHEMA", "elsewhere")
    return "elsewhere"


async def test_the_clock_is_of_the_schema_that_an_app_would_use(dsn: str, app: App, elsewhere: str) -> None:
    async with App(dsn) as theirs:
        runs = [await each.definition("t").options(delay="3d").start() for each in (theirs, app)]
        await Clock(dsn).skip("2d")
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval(f"select {elsewhere}.now() - stepwell.now()") == timedelta(days=2)
        await Clock(dsn, schema="stepwell").skip("1d")  # what the call says goes before
        assert await connection.fetchval("select stepwell.now() - now()") == timedelta(days=1)
        await connection.close()
        await Clock(dsn).restore()
        assert HOUR * 23 < await due_in(runs[0]) < HOUR * 24
        assert await due_in(runs[1]) > HOUR * 71
    with pytest.raises(InvalidSetting, match="schema"):
        Clock(dsn, schema="Not A Schema")


async def test_what_is_left_of_each_wait_is_as_it_was_when_the_clock_is_restored(app: App, clock: Clock) -> None:
    before = await app.definition("t").options(delay="10d").start()
    await clock.skip("4d")
    meanwhile = await app.definition("t").options(delay="2d").start()
    await clock.restore()
    assert HOUR * 143 < await due_in(before) <= HOUR * 144
    assert HOUR * 47 < await due_in(meanwhile) <= HOUR * 48


async def test_nothing_that_is_live_is_left_ahead(app: App, clock: Clock, dsn: str) -> None:
    @app.task(retry=Retry(attempts=5, delay="1m"))
    async def fails() -> None:
        raise ValueError

    @app.workflow(timeout="2h")
    async def waits() -> None:
        await asyncio.sleep(3600)

    await clock.skip("12d")
    await app.queue("slow").pause()
    async with app.worker():
        retried, sleeping = await fails.start(), await waits.start()
        await until(lambda: is_in(retried, State.SCHEDULED))
        await until(lambda: is_in(sleeping, State.WAITING))
        await app.definition("t").options(queue="slow", key="k", expires="1h", deadline="1h").start()
        assert {"runs", "keys", "queues", "workers", "leaders"} <= await ahead(dsn, 24 * HOUR)
        await clock.restore()
        assert await ahead(dsn, 31 * 24 * HOUR) == set()
        assert await ahead(dsn, 2 * HOUR) <= {"keys"}, "keys last for thirty days"
    assert await due_in(retried) < timedelta(minutes=2)
    assert await due_in(sleeping) <= HOUR


async def test_a_workflow_sleeps_on_for_what_was_left(app: App, clock: Clock) -> None:
    """By its history: no worker remembers it."""

    @app.workflow
    async def naps() -> int:
        await asyncio.sleep(24 * 3600)
        await asyncio.sleep(24 * 3600)
        return 2

    async with app.worker():
        run = await naps.start()
        await until(lambda: is_in(run, State.WAITING))
    await clock.skip("12h")
    await clock.restore()
    await clock.skip("13h")
    async with app.worker():
        await until(lambda: has_fired(run, 1))
        await until(lambda: is_in(run, State.WAITING))
    await clock.restore()
    assert 22 * HOUR < await due_in(run) <= 24 * HOUR
    await clock.skip("25h")
    async with app.worker():
        assert await run.result(timeout=20) == 2


async def has_fired(run: Run[Any], count: int) -> bool:
    return [event.type for event in await run.history()].count("TimerFired") == count


async def test_a_workflow_in_a_workers_memory_goes_on_by_the_clock_that_was_restored(app: App, clock: Clock) -> None:
    @app.workflow
    async def naps() -> int:
        await asyncio.sleep(24 * 3600)
        await asyncio.sleep(24 * 3600)
        return 2

    async with app.worker():
        run = await naps.start()
        await until(lambda: is_in(run, State.WAITING))
        await clock.skip("12d")
        await until(lambda: has_fired(run, 1))
        await until(lambda: is_in(run, State.WAITING))
        await clock.restore()
        await clock.skip("25h")
        assert await run.result(timeout=20) == 2


async def test_what_was_skipped_several_times_is_restored_at_once(app: App, clock: Clock, dsn: str) -> None:
    run = await app.definition("t").options(delay="10d").start()
    for _ in range(3):
        await Clock(dsn).skip("1d")
    await asyncio.gather(clock.restore(), Clock(dsn).restore(), clock.restore())
    await clock.restore()  # and again, for nothing
    assert HOUR * 167 < await due_in(run) <= HOUR * 168


async def test_the_end_of_the_block_restores_the_clock(app: App, dsn: str) -> None:
    run = await app.definition("t").options(delay="10d").start()
    with pytest.raises(ValueError, match="no"):
        async with Clock(dsn) as clock:
            await clock.skip("4d")
            raise ValueError("no")
    assert await due_in(run) <= HOUR * 144
    connection = await asyncpg.connect(dsn)
    assert await connection.fetchval("select stepwell.now() = now()")
    await connection.close()


async def test_the_clock_is_restored_beside_a_worker_that_works(app: App, clock: Clock, dsn: str) -> None:
    @app.task
    async def work(n: int) -> int:
        return n

    async with app.worker():
        for _ in range(3):
            runs = await work.start_many([(n,) for n in range(300)])
            await clock.skip("2d")
            await clock.restore()
            assert [await run.result(timeout=30) for run in runs] == list(range(300))
        assert (await app.workers())[0].state == "live"
        assert (await app.workers())[0].lease_left < timedelta(minutes=1)
    assert await ahead(dsn, HOUR) == set()
