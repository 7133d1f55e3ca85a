"""The sessions that are lent to bodies: whatever one does to its own, the next finds a clean one, and nobody waits
for ever."""

from __future__ import annotations

import asyncio
import gc
import json
from typing import Any, TypeAlias
from uuid import uuid4

import asyncpg
import pytest

from stepwell import App, NotFound, Retry, RunFailed, State, Task, current
from stepwell.engine import settle
from stepwell.model.outcome import Completed
from stepwell.store import lent
from stepwell.store.pool import Transaction
from tests.factory import claimed

Sql: TypeAlias = "asyncpg.Connection[Any]"
Echo: TypeAlias = "Task[[Any], Any]"
ONCE = Retry(attempts=1)


async def test_what_a_body_does_to_its_session_is_undone_for_the_next(app: App, sql: Sql) -> None:
    """Its role above all: the next body may work for somebody else."""
    tenant = f"tenant_{uuid4().hex[:8]}"
    await sql.execute(f"create role {tenant}")
    await sql.execute(f"grant usage on schema stepwell to {tenant}")
    await sql.execute(f"grant all on all tables in schema stepwell to {tenant}")

    @app.task
    async def first(how: str) -> None:
        async with current.tx() as db:
            match how:
                case "role":
                    await db.execute(f"set role {tenant}")
                case "authorization":
                    await db.execute(f"set session authorization {tenant}")
                case "leftovers":
                    await db.execute("create temp table leftover (n int)")
                    await db.execute("prepare statement as select 1")
                    await db.execute("set work_mem = '1MB'")
                case "codec":
                    await db.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)

    @app.task
    async def second() -> list[str]:
        async with current.tx() as db:
            return [
                await db.fetchval("select current_user || session_user"),
                await db.fetchval("select coalesce(to_regclass('leftover')::text, 'nothing')"),
                await db.fetchval("show work_mem"),
                repr(await db.fetchval("select '{}'::json")),
                repr([tuple(row) for row in await db.fetch("select name from pg_prepared_statements where from_sql")]),
            ]

    try:
        async with app.worker():
            before = await (await second.start()).result(timeout=10)
            for how in ("role", "authorization", "leftovers", "codec"):
                await (await first.start(how)).result(timeout=10)
                assert await (await second.start()).result(timeout=10) == before, how
    finally:
        await sql.execute(f"drop owned by {tenant}; drop role {tenant}")


async def test_bodies_that_wait_for_each_others_connections_end_with_a_word_about_it(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lent, "STANDSTILL", 0.5)

    @app.task(retry=ONCE)
    async def child() -> None:
        async with current.tx():
            pass

    @app.task(retry=ONCE)
    async def parent() -> None:
        async with current.tx():
            await (await child.start()).result()

    async with app.worker():
        runs = await parent.start_many([()] * lent.MOST)
        errors = await asyncio.gather(*(run.result(timeout=10) for run in runs), return_exceptions=True)
    assert any("none of the 10 that this worker lends was given back" in str(error) for error in errors)


async def test_who_waits_while_others_give_back_has_patience(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lent, "STANDSTILL", 0.3)
    monkeypatch.setattr(lent, "MOST", 1)

    @app.task(retry=ONCE)
    async def work() -> None:
        async with current.tx() as db:
            await db.execute("select pg_sleep(0.1)")

    async with app.worker():
        for run in await work.start_many([()] * 8):
            await run.result(timeout=10)


async def test_a_session_that_goes_silent_at_its_commit_is_ended_by_the_server(tx: Transaction) -> None:
    """Until then its run is locked: for everybody, and by nobody who could still end it."""
    claim = await claimed(tx)
    await settle.apply(tx, settle.plan([(claim, Completed(b"1"))]))
    (row,) = await tx.connection.fetch("select current_setting('idle_in_transaction_session_timeout') as timeout")
    assert row["timeout"] == "30s"


async def misuse(db: Any, how: str) -> None:
    match how:
        case "close":
            await db.close()
        case "terminate":
            db.terminate()
        case "terminate a little later":
            asyncio.get_running_loop().call_soon(db.terminate)
        case "savepoint":
            await db.execute("savepoint a")
            with pytest.raises(asyncpg.PostgresError):
                await db.execute("select 1 / 0")
            await db.execute("rollback to savepoint a")
        case _:
            await db.execute(how)


@pytest.mark.parametrize(
    "how", ["close", "terminate", "terminate a little later", "commit", "rollback", "savepoint", "begin"]
)
async def test_whatever_a_body_does_to_its_connection_its_run_ends_and_others_go_on(
    app: App, sql: Sql, how: str
) -> None:
    await sql.execute("create table wrote (n int)")

    @app.task(retry=ONCE)
    async def work(n: int, how: str | None) -> int:
        async with current.tx() as db:
            await db.execute("insert into wrote values ($1)", n)
            if how is not None:
                await misuse(db, how)
        return n

    async with app.worker():
        run = await work.start(1, how)
        try:
            completed = await run.result(timeout=10) == 1
        except RunFailed:
            completed = False
        wrote = await sql.fetchval("select count(*) from wrote")
        assert completed == (how in {"savepoint", "begin"})
        assert wrote == (completed or how == "commit")  # who commits itself was told not to
        for n in range(3):
            assert await (await work.start(n, None)).result(timeout=10) == n
    assert (await run.info()).state is (State.COMPLETED if completed else State.FAILED)


@pytest.mark.parametrize("how", ["terminate", "close", "the server ends it"])
async def test_a_lost_connection_of_a_body_leaves_no_error_that_nobody_hears_of(app: App, sql: Sql, how: str) -> None:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))

    @app.task(retry=ONCE)
    async def work() -> None:
        async with current.tx() as db:
            if how == "the server ends it":
                await sql.execute("select pg_terminate_backend($1, 5000)", db.get_server_pid())
            else:
                await misuse(db, how)

    async with app.worker():
        for _ in range(lent.MOST + 1):
            with pytest.raises(RunFailed):
                await (await work.start()).result(timeout=10)
    gc.collect()
    assert unheard == []


async def test_what_a_body_starts_and_rolls_back_to_a_savepoint_is_not_started(app: App, echo: Echo) -> None:
    @app.task
    async def work() -> None:
        async with current.tx() as db:
            await echo.options(tx=db, key="a").start(1)
            with pytest.raises(KeyError):
                async with db.transaction():
                    await echo.options(tx=db, key="b").start(2)
                    raise KeyError

    async with app.worker():
        await (await work.start()).result(timeout=10)
        assert await app.run(key="a").result(timeout=10) == 1
        with pytest.raises(NotFound):
            await app.run(key="b").info()
