"""Everything that works directly works through a pooler with two sessions, which an app, two workers and their
services share."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest

from stepwell import App, Call, KeyConflict, Retry, RunCancelled, RunFailed, Snooze, current
from stepwell.dispatch.base import Channel
from stepwell.dispatch.postgres import PostgresWakes
from stepwell.engine import runs
from stepwell.model.errors import Unavailable
from stepwell.model.ids import new_worker_id
from stepwell.services.leader import Leadership
from stepwell.services.partitions import Partitions
from stepwell.store import migrate
from stepwell.store.pool import Database
from tests.e2e.e2e_processes import Notes, hiring
from tests.factory import a_start
from tests.pooler.bouncer import SIZE, Bouncer, bouncing
from tests.pooler.bringing import Program
from tests.shelf import on_server, sibling
from tests.waiting_for import until

Sql: TypeAlias = "asyncpg.Connection[Any]"


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Sql]:
    """Beside the pooler, to look."""
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def database(pooled: str) -> AsyncIterator[Database]:
    database = Database(pooled, "stepwell")
    await database.open()
    yield database
    await database.close()


async def through(sql: Sql) -> list[Any]:
    """The sessions that the pooler holds here."""
    asked = (
        "select state, wait_event from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    )
    return await sql.fetch(asked + " and backend_type = 'client backend'")


async def states(sql: Sql) -> dict[str, int]:
    rows = await sql.fetch("select state, count(*) as runs from stepwell.all_runs group by 1")
    return {row["state"]: row["runs"] for row in rows}


# -- the life of a run


async def test_a_run_is_started_done_and_awaited(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app.worker():
        found = await asyncio.gather(*(run_of(double, n) for n in range(50)))
        assert found == [2 * n for n in range(50)]


async def run_of(task: Any, *args: Any) -> Any:
    return await (await task.start(*args)).result(20)


async def test_what_fails_is_tried_again_and_what_snoozes_comes_back(app: App) -> None:
    @app.task(retry=Retry(attempts=3, delay=0.05))
    async def flaky(failures: int) -> int:
        if current.attempt <= failures:
            raise ValueError("not yet")
        return current.attempt

    @app.task
    async def sleepy() -> int:
        if current.attempt < 3:
            raise Snooze(0.05)
        return current.attempt

    async with app.worker():
        assert await run_of(flaky, 2) == 3
        assert await run_of(sleepy) == 3
        with pytest.raises(RunFailed):
            await run_of(flaky, 5)


async def test_a_cancelled_run_ends_wherever_it_is(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def waits() -> None:
        begun.set()
        await asyncio.Event().wait()

    early, late = await waits.start(), await waits.options(delay="1h").start()
    await early.cancel()
    await late.cancel()
    async with app.worker():
        running = await waits.start()
        await asyncio.wait_for(begun.wait(), 10)
        await running.cancel()
        for run in (early, late, running):
            with pytest.raises(RunCancelled):
                await run.result(10)


async def test_a_delayed_run_is_due_in_time(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who cannot hear looks often."""
    monkeypatch.setattr("stepwell.services.due.LOOK", 60.0)

    @app.task
    async def soon() -> None: ...

    async with app.worker():
        run = await soon.options(delay=0.2).start()
        await run.result(30)
        info = await run.info()
        assert info.started_at is not None
        assert (info.started_at - info.created_at).total_seconds() >= 0.2


async def test_a_key_is_one_run(app: App) -> None:
    @app.task
    async def pay(amount: int) -> int:
        return amount

    first, again = [await pay.options(key="order-7").start(3) for _ in range(2)]
    assert first.id == again.id
    with pytest.raises(KeyConflict):
        await pay.options(key="order-7").start(4)
    assert await app.run("order-7").info()


@pytest.mark.parametrize("many", [3, 600, 5000])
async def test_many_are_started_at_once_all_or_none(app: App, sql: Sql, many: int) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    runs = await double.start_many([(n,) for n in range(many)])
    async with app.worker():
        assert await asyncio.gather(*(run.result(40) for run in runs)) == [2 * n for n in range(many)]
    with pytest.raises(KeyConflict):
        await double.options(key="k").start_many([Call((1,)), Call((2,))])
    assert await states(sql) == {"completed": many}


async def test_a_start_in_a_transaction_of_the_callers_own(app: App, pooled: str, sql: Sql) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    connection = await asyncpg.connect(pooled, statement_cache_size=0)
    try:
        async with connection.transaction():
            await double.options(tx=connection).start(1)
            await double.options(tx=connection).start_many([(n,) for n in range(600)])
            assert await states(sql) == {}
    finally:
        await connection.close()
    assert await states(sql) == {"pending": 601}


async def test_limits_hold_for_two_workers(app: App, pooled: str) -> None:
    running, most = 0, 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1

    other = App(pooled, lease=5)
    task = app.task(queue="mail", name="work")(work)
    other.task(queue="mail", name="work")(work)
    await app.queue("mail").set(concurrency=2)
    runs = await task.start_many([()] * 20)
    async with other, app.worker(slots=10), other.worker(slots=10):
        for run in runs:
            await run.result(20)
    assert most == 2


# -- leases, leaders, services


async def test_a_lease_is_renewed_for_as_long_as_the_body_takes(pooled: str) -> None:
    async with App(pooled, lease=2) as app:

        @app.task
        async def long() -> int:
            await asyncio.sleep(5)
            return current.attempt

        async with app.worker():
            run = await long.start()
            assert await run.result(20) == 1
            assert (await run.info()).failures == 0


async def test_what_a_lost_worker_held_is_done_by_another(app: App, pooled: str, sql: Sql) -> None:
    begun = asyncio.Event()

    async def work() -> int:
        begun.set()
        if current.attempt == 1:
            await asyncio.Event().wait()
        return current.attempt

    other = App(pooled, lease=5)
    task = app.task(name="work", retry=Retry(attempts=3, delay=0))(work)
    other.task(name="work")(work)
    async with other, other.worker(slots=1) as lost:
        run = await task.start()
        await asyncio.wait_for(begun.wait(), 10)
        await lost._lease.release()  # silent from here on
        await sql.execute("update stepwell.workers set lease_until = stepwell.now()")
        async with app.worker(slots=1):
            assert await run.result(30) >= 2
    assert (await run.attempts())[0].error.reason == "worker_lost"  # type: ignore[union-attr]


async def test_one_leads_and_another_follows_it(database: Database) -> None:
    hold = timedelta(seconds=1)
    first, second = (Leadership(database, worker=new_worker_id(), services=["due"], hold=hold) for _ in range(2))
    await asyncio.gather(first.renew(), second.renew())
    assert sorted([*first.terms.values(), *second.terms.values()]) == [1]

    async def follows() -> bool:
        await second.renew()
        return second.terms == {"due": 2} or first.terms == {}

    await first.resign()
    assert await until(follows)


async def test_partitions_are_made(database: Database, sql: Sql) -> None:
    await asyncio.gather(*(Partitions(database, keep=None).run_once() for _ in range(4)))
    assert (
        await sql.fetchval("select count(*) from pg_inherits where inhparent = 'stepwell.finished_runs'::regclass") > 1
    )


# -- the schema


@pytest.fixture
async def blank(server: str, transaction: Bouncer) -> AsyncIterator[str]:
    """An empty database, through the pooler."""
    name = f"blank_{new_worker_id().hex}"
    await on_server(server, f"create database {name}")
    yield transaction(sibling(server, name))
    await on_server(server, f"drop database {name} with (force)")


async def test_ten_at_once_migrate_once(blank: str) -> None:
    applied = await asyncio.gather(*(migrate.migrate(Database(blank, "stepwell")) for _ in range(10)))
    assert sorted(map(len, applied)) == [0] * 9 + [len(migrate.migrations("stepwell"))]
    async with App(blank, migrate=False) as app:
        assert (await app.runs()).items == []


# -- two sessions for everybody


async def test_nobody_listens_and_everybody_knows_it_at_once(database: Database, sql: Sql) -> None:
    wakes = PostgresWakes(database)
    told: list[object] = []
    wakes.subscribe(Channel.PENDING, told.append)
    await sql.add_listener("stepwell_pending", lambda *said: told.append(said[-1]))
    wakes.announce(Channel.PENDING, ["mail"])

    async def is_told() -> bool:
        return told == ["mail"]

    assert await until(is_told), "who can listen is told all the same"
    assert not wakes.hears
    await wakes.close()
    connection = await database.connect()
    for _ in range(5):
        assert await connection.fetch("select pg_listening_channels()") == []
    await connection.close()


async def test_a_direct_waiter_hears_of_what_a_deaf_worker_finished(
    app: App, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only at its next look."""
    monkeypatch.setattr("stepwell.client.result_waiter.POLL", 60.0)

    @app.task(name="slow")
    async def slow() -> None:
        await asyncio.sleep(2)

    async with app.worker(), App(dsn) as direct:
        run = await direct.start("slow")
        await run.result(30)


async def test_two_sessions_serve_an_app_two_workers_and_all_who_wait(app: App, pooled: str, sql: Sql) -> None:
    async def work(n: int) -> int:
        return n

    other = App(pooled, lease=5)
    task = app.task(name="work")(work)
    other.task(name="work")(work)
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(await through(sql)))
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    async with other, app.worker(slots=20), other.worker(slots=20):
        found = await asyncio.gather(*(run_of(task, n) for n in range(200)))
    watching.cancel()
    assert sorted(found) == list(range(200))
    assert 0 < most <= SIZE


async def test_who_is_idle_holds_no_session(app: App, sql: Sql) -> None:
    @app.task
    async def nothing() -> None: ...

    async with app.worker():
        await run_of(nothing)
        stuck = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%'"
        seen = [await sql.fetchval(stuck) for _ in range(200)]
    assert seen.count(0) > 150, "in passing only"


async def test_a_statement_that_fails_leaves_the_session_to_others(database: Database, sql: Sql) -> None:
    start = a_start()
    await runs.start_one(database, start)
    for _ in range(20):
        with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError)):
            await database.rows("server_facts", old="not an interval")
        with pytest.raises(ZeroDivisionError):
            async with database.transaction() as tx:
                await tx.rows("work_facts")
                raise ZeroDivisionError
    assert (await database.rows("work_facts"))[0]["pending"] == 1
    assert not [row for row in await through(sql) if row["state"] == "idle in transaction"]


async def test_callers_who_go_away_in_the_middle_hold_nothing(database: Database, sql: Sql) -> None:
    async def asking() -> None:
        while True:
            await database.rows("work_facts")

    for _ in range(10):
        tasks = [asyncio.create_task(asking()) for _ in range(10)]
        await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert (await database.rows("work_facts"))[0]["pending"] == 0

    async def are_free() -> bool:
        return not [row for row in await through(sql) if row["state"] != "idle"]

    await until(are_free)


async def test_a_pooler_that_comes_back_finds_everybody_waiting(
    program: Program, server: str, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bouncing(program, server, mode="transaction") as bouncer:
        async with App(bouncer(dsn), lease=5) as app:

            @app.task
            async def double(n: int) -> int:
                return 2 * n

            async with app.worker():
                assert await run_of(double, 1) == 2
                bouncer.kill()
                with monkeypatch.context() as hasty, pytest.raises(Unavailable):
                    hasty.setattr("stepwell.concurrency.retry_unavailable.PATIENCE", 1.0)
                    await app.runs()
                starting = asyncio.create_task(run_of(double, 2))
                bouncer.start()
                assert await starting == 4


# -- in processes


async def test_two_processes_do_five_hundred_runs_although_one_is_killed(pooled: str, sql: Sql, tmp_path: Path) -> None:
    notes = Notes(tmp_path)
    async with App(pooled) as client, hiring(pooled, tmp_path, lease="2s") as hire:
        runs = await client.definition("e2e_app.sleepy").start_many([(0.05,)] * 500)
        victim, survivor = await asyncio.gather(hire("--slots", "10"), hire("--slots", "10"))
        await until(lambda: begun_by(notes, victim.pid), within=20)
        victim.signal(signal.SIGKILL)
        assert await asyncio.gather(*(run.result(45) for run in runs)) == [0.05] * 500
        assert survivor.code is None
    assert await states(sql) == {"completed": 500}
    ended = [note.run for note in notes.all("ended")]
    assert len(set(ended)) == 500
    twice = len(ended) - 500
    print(f"\n{twice} bodies ran to their end twice")
    assert twice <= 10, "what the killed one had done and not said"


async def begun_by(notes: Notes, pid: int) -> bool:
    return len([note for note in notes.all() if note.pid == pid]) > 40
