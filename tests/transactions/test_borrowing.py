"""What we may do with a connection that is not ours: speak on it, and nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any, TypeAlias

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import pytest
import sqlalchemy
from django.db import connection, transaction
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from stepwell import App, Call, InvalidSetting, Task, WrongUse
from stepwell.store.borrowed.base import spoken, written
from stepwell.store.statements import load
from tests.transactions.drivers import DRIVERS, Driver, opened, plain

Sql: TypeAlias = "asyncpg.Connection[Any]"
Echo: TypeAlias = "Task[[Any], Any]"


# -- what is taken


async def test_what_is_no_connection_is_refused_where_it_is_given(app: App, dsn: str, echo: Echo) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=0)
    engine = sqlalchemy.create_engine("postgresql+psycopg://")
    with psycopg.connect(dsn) as conn:
        wrong: list[Any] = [
            "postgresql://user:secret@host/db", 7, object(), pool, engine, sessionmaker(engine), conn.cursor(),
            create_async_engine("postgresql+asyncpg://"), conn.transaction(),
        ]  # fmt: skip
        for each in wrong:
            for give in (
                lambda: echo.options(tx=each),  # noqa: B023 - called here
                lambda: app.definition("echo").options(tx=each),  # noqa: B023
                lambda: app.within(each),  # noqa: B023
            ):
                with pytest.raises(InvalidSetting, match="connection") as refused:
                    give()
                assert "secret" not in str(refused.value)
    await pool.close()


async def test_a_connection_that_is_lost_is_refused_with_a_word_about_it(echo: Echo, dsn: str) -> None:
    conn = await asyncpg.connect(dsn)
    await conn.execute("begin")
    conn.terminate()
    with pytest.raises(WrongUse, match="closed or lost"):
        await echo.options(tx=conn).start("a")


async def test_a_handle_refuses_to_cancel_in_what_is_no_connection(echo: Echo) -> None:
    run = await echo.start("a")
    with pytest.raises(InvalidSetting, match="tx"):
        await run.cancel(tx="no")
    with pytest.raises(InvalidSetting, match="tx"):
        await asyncio.to_thread(lambda: run.sync.cancel(tx=7))


async def test_many_are_started_in_one_transaction_and_not_each_in_its_own(dsn: str, echo: Echo) -> None:
    connection = await asyncpg.connect(dsn)
    with pytest.raises(InvalidSetting, match="start_many"):
        await echo.start_many([Call(("a",), options={"tx": connection})])
    await connection.close()


async def test_a_class_of_the_users_own_is_known_by_what_it_is_made_of(dsn: str, echo: Echo, sql: Sql) -> None:
    class Traced(psycopg.AsyncConnection[Any]):
        pass

    async with await Traced.connect(dsn) as conn:
        await echo.options(tx=conn).start("a")
    assert await sql.fetchval("select count(*) from stepwell.runs") == 1


async def test_a_scoped_session_is_a_session(dsn: str, echo: Echo, sql: Sql) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    session = scoped_session(sessionmaker(engine))
    echo.options(tx=session).sync.start("a")
    session.commit()
    session.remove()
    engine.dispose()
    assert await sql.fetchval("select count(*) from stepwell.runs") == 1


def test_another_kind_of_database_is_refused(app: App, echo: Echo) -> None:
    with sqlalchemy.create_engine("sqlite://").connect() as conn, pytest.raises(InvalidSetting, match="Postgres"):
        echo.options(tx=conn).sync.start("a")


# -- no transaction


async def test_where_there_is_no_transaction_there_is_nothing_to_be_part_of(dsn: str, echo: Echo, sql: Sql) -> None:
    plain_asyncpg = await asyncpg.connect(dsn)
    awaiting = await psycopg.AsyncConnection.connect(dsn, autocommit=True)
    blocking = psycopg.connect(dsn, autocommit=True)
    old = psycopg2.connect(plain(dsn))
    old.autocommit = True
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(dsn), isolation_level="AUTOCOMMIT"
    )
    alchemy = engine.connect()
    for tx in (plain_asyncpg, awaiting, blocking, old, alchemy):
        with pytest.raises(WrongUse, match="no transaction"):
            await echo.options(tx=tx).start("a")
        with pytest.raises(WrongUse, match="no transaction"):
            await echo.options(tx=tx).start_many([("a",)])
    assert await sql.fetchval("select count(*) from stepwell.runs") == 0
    with blocking.transaction():
        await echo.options(tx=blocking).start("a")
    async with awaiting.transaction():
        await echo.options(tx=awaiting).start("a")
    assert await sql.fetchval("select count(*) from stepwell.runs") == 2
    for each in (blocking, old, alchemy):
        each.close()
    engine.dispose()
    await awaiting.close()
    await plain_asyncpg.close()


async def test_a_connection_that_was_not_awaited_is_told_of_it(echo: Echo) -> None:
    conn = create_async_engine("postgresql+asyncpg://").connect()
    with pytest.raises(WrongUse, match="not open yet"):
        await echo.options(tx=conn).start("a")


async def test_django_outside_of_atomic_is_told_of_it(dsn: str, echo: Echo) -> None:
    async with opened("Django", dsn) as driver:
        with pytest.raises(WrongUse, match=r"transaction\.atomic"):
            await driver.start(echo, "a")


# -- blocking and not


@pytest.mark.parametrize("name", ["psycopg", "psycopg2", "SQLAlchemy", "SQLAlchemy's session"])
async def test_a_blocking_connection_can_be_used_where_its_owner_uses_it(
    dsn: str, echo: Echo, sql: Sql, name: str
) -> None:
    """On the event loop too: it blocks as long as any other statement on it."""
    async with opened(name, dsn) as driver:
        awaited = await echo.options(tx=driver.tx).start("a")
        called = echo.options(tx=driver.tx).sync.start("b")
        many = await echo.options(tx=driver.tx).start_many([("c",), ("d",)])
        await awaited.cancel(tx=driver.tx)
        await driver.commit()
        assert await sql.fetchval("select count(*) from stepwell.runs") == 3
        assert {called.id, *(run.id for run in many)} == {
            row["id"] for row in await sql.fetch("select id from stepwell.runs")
        }


@pytest.mark.parametrize("name", [name for name, kind in DRIVERS.items() if "sync" in name or "asyncpg" in name])
async def test_a_connection_of_an_event_loop_is_no_use_to_blocking_code(dsn: str, echo: Echo, name: str) -> None:
    async with opened(name, dsn) as driver:
        await driver.begin()
        with pytest.raises(WrongUse, match="await the verb itself"):
            await asyncio.to_thread(lambda: echo.options(tx=driver.tx).sync.start("a"))
        with pytest.raises(WrongUse, match="await the verb itself"):
            await asyncio.to_thread(lambda: echo.options(tx=driver.tx).sync.start_many([("a",)]))
        await driver.roll_back()


async def test_django_on_an_event_loop_is_told_how_to_leave_it(dsn: str, echo: Echo) -> None:
    with pytest.raises(WrongUse, match="sync_to_async"):
        await echo.options(tx=connection).start("a")


async def test_a_session_of_an_async_one_can_be_used_within_run_sync(dsn: str, echo: Echo, sql: Sql) -> None:
    async with opened("SQLAlchemy's session, async", dsn) as driver:
        await driver.tx.run_sync(lambda session: echo.options(tx=session).sync.start("a"))
        await driver.commit()
    assert await sql.fetchval("select count(*) from stepwell.runs") == 1


async def test_the_app_need_not_be_open_for_it(dsn: str, sql: Sql) -> None:
    app = App(dsn)

    @app.task
    def add(a: int, b: int) -> int:
        return a + b

    def request() -> None:
        with psycopg.connect(dsn) as conn:
            add.options(tx=conn).sync.start(1, 2)

    await asyncio.to_thread(request)
    assert await sql.fetchval("select count(*) from stepwell.runs") == 1


# -- nothing is left behind


async def test_the_connection_is_left_as_it_was(driver: Driver, echo: Echo, dsn: str) -> None:
    """Its transaction, its settings, its prepared statements' names and what its rows look like."""
    asked = "select string_agg(name || setting, ',' order by name) as it from pg_settings where source = 'session'"
    await driver.begin()
    await driver.execute(f"create temp table before as {asked}")
    await driver.start(echo, "a", key="k")
    await driver.start_many(echo, [("b",), ("c",)])
    await driver.execute(f"create temp table after as {asked}")
    await driver.execute(
        "do $$ begin if (select it from before) is distinct from (select it from after) then "
        "raise exception 'settings were left behind'; end if; end $$"
    )
    await driver.execute("select 'still in the transaction'")
    await driver.commit()


async def test_what_the_user_set_up_for_values_and_rows_is_not_in_our_way(dsn: str, echo: Echo, sql: Sql) -> None:
    theirs = await asyncpg.connect(dsn)
    await theirs.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
    await theirs.set_type_codec("uuid", schema="pg_catalog", encoder=str, decoder=str)
    async with theirs.transaction():
        for _ in range(2):
            await echo.options(tx=theirs, key="k").start({"a": 1})
        assert await theirs.fetchval("""select '{"a": 1}'::jsonb""") == {"a": 1}
    await theirs.close()
    with psycopg.connect(dsn, row_factory=dict_row) as named:
        for _ in range(2):
            echo.options(tx=named, key="k2").sync.start({"a": 1})
        assert named.execute("select 1 as n").fetchone() == {"n": 1}
    old = psycopg2.connect(plain(dsn), cursor_factory=psycopg2.extras.RealDictCursor)
    for _ in range(2):
        echo.options(tx=old, key="k3").sync.start({"a": 1})
    old.commit()
    old.close()
    inputs = [row["input"] for row in await sql.fetch("select input::text from stepwell.runs")]
    assert [json.loads(each) for each in inputs] == [{"what": {"a": 1}}] * 3


ODD = {
    "DateStyle": "German, DMY", "IntervalStyle": "sql_standard", "bytea_output": "escape", "TimeZone": "Asia/Kathmandu",
    "standard_conforming_strings": "on", "search_path": "pg_temp", "enable_indexscan": "off",
    "extra_float_digits": "-5",
}  # fmt: skip


async def test_a_session_that_is_set_to_anything_makes_no_difference(dsn: str, echo: Echo, sql: Sql) -> None:
    with psycopg.connect(dsn) as conn:
        for name, value in ODD.items():
            conn.execute("select set_config(%s, %s, false)", (name, value))
        odd = echo.options(tx=conn, key="k", delay=0.25, expires="36h").sync.start([1.1, "a"])
        assert echo.options(tx=conn, key="k").sync.start([1.1, "a"]).id == odd.id
    row = await sql.fetchrow("select expires_at - created_at as a, due_at - created_at as b, input from stepwell.runs")
    assert row is not None
    assert (row["a"].total_seconds(), row["b"].total_seconds()) == (36 * 3600, 0.25)
    assert json.loads(row["input"]) == {"what": [1.1, "a"]}


async def test_a_failure_in_the_transaction_is_the_users_and_is_not_repeated(dsn: str, echo: Echo) -> None:
    conn = await asyncpg.connect(dsn)
    transaction = conn.transaction()
    await transaction.start()
    with pytest.raises(asyncpg.DivisionByZeroError):
        await conn.execute("select 1/0")
    async with asyncio.timeout(10):
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            await echo.options(tx=conn).start("a")
    await transaction.rollback()
    await conn.close()
    with psycopg.connect(dsn) as broken:
        with pytest.raises(psycopg.errors.DivisionByZero):
            broken.execute("select 1/0")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            echo.options(tx=broken).sync.start("a")
        broken.rollback()


async def test_two_that_want_one_key_wait_for_each_other_and_not_for_the_portal(dsn: str, echo: Echo) -> None:
    """The first holds the key in an open transaction, and must still be able to go on."""
    async with opened("psycopg", dsn) as first, opened("psycopg", dsn) as second:
        one = await first.start(echo, "a", key="k")
        waiting = asyncio.create_task(second.start(echo, "a", key="k"))
        await first.start(echo, "b", key="other")
        assert not waiting.done()
        await first.commit()
        assert await waiting == one
        await second.commit()


async def test_a_child_started_in_a_transaction_knows_its_parent(app: App, dsn: str, echo: Echo) -> None:
    @app.task
    def parent() -> None:
        with psycopg.connect(dsn) as conn:
            echo.options(tx=conn).sync.start("child")

    async with app.worker():
        run = await parent.start()
        await run.result(timeout=10)
        (child,) = (await app.runs(name="echo")).items
        assert child.parent_id == run.id


SPOKEN = [
    "start_run", "start_runs", "debounce_run", "keys_held", "unique_runs", "runs_alike", "run_by_id",
    "run_id_by_key", "undo_starts", "tell_with_commit", "end_runs", "end_unclaimed_runs", "end_histories",
    "tell_parents", "start_handlers", "arrive", "children_of", "kinds_of",
]  # fmt: skip


@pytest.mark.parametrize("name", SPOKEN)
def test_a_statement_has_nothing_in_it_that_a_driver_takes_for_a_parameter_of_its_own(name: str) -> None:
    statement = load("stepwell")[name]
    places = {f"p{number}" for number in range(1, len(statement.params) + 1)}
    assert set(sqlalchemy.text(spoken(statement.sql, ":p{}").sql).compile().params) == places
    assert "%" not in spoken(statement.sql, "%(p{})s").sql.replace("%(p", "").replace("%%", "")


def test_values_are_written_as_postgres_reads_them() -> None:
    assert written([None, "NULL", 'a"b\\c', ""], "text") == r'{NULL,"NULL","a\"b\\c",""}'
    assert written(b"\x00\xff", "bytea") == r"\x00ff"
    assert written([b'{"a": "\\\\"}'], "jsonb") == r'{"{\"a\": \"\\\\\"}"}'
    assert written(True, "boolean") == "true"
    assert written([], "uuid") == "{}"


async def test_ten_thousand_are_started_in_one_transaction(dsn: str, echo: Echo, sql: Sql) -> None:
    conn = await asyncpg.connect(dsn)
    async with conn.transaction():
        runs = await echo.options(tx=conn).start_many([(n,) for n in range(10_000)])
    assert len({run.id for run in runs}) == await sql.fetchval("select count(*) from stepwell.runs") == 10_000
    await conn.close()


async def test_an_atomic_block_that_is_left_by_an_error_takes_the_run_along(dsn: str, echo: Echo, sql: Sql) -> None:
    async with opened("Django", dsn) as driver:

        def view() -> None:
            with transaction.atomic():
                echo.options(tx=connection).sync.start("kept")
                try:
                    with transaction.atomic():
                        echo.options(tx=connection).sync.start("dropped")
                        raise ValueError
                except ValueError:
                    pass

        await driver.there(view)  # type: ignore[attr-defined]
    assert [row["w"] for row in await sql.fetch("select input ->> 'what' as w from stepwell.runs")] == ["kept"]


async def test_a_session_that_was_not_begun_begins_with_the_start(dsn: str, echo: Echo, sql: Sql) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
    with Session(engine) as session, session.begin():
        echo.options(tx=session).sync.start("a")
    with Session(engine) as session:
        echo.options(tx=session).sync.start("dropped with the session")
    engine.dispose()
    assert await sql.fetchval("select count(*) from stepwell.runs") == 1
