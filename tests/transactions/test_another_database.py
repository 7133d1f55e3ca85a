"""`tx=` on a connection of another database is refused: what is started there, nobody here would ever run."""

from __future__ import annotations

import asyncio
import gc
import uuid
from collections.abc import AsyncIterator
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest

from stepwell import App, Task, WrongUse
from stepwell.store.borrowed import borrow
from stepwell.store.namespace import Home
from stepwell.store.statements import load
from tests.conftest import as_role
from tests.shelf import Shelf, on_server, sibling
from tests.transactions.drivers import DRIVERS, Driver, opened

Echo: TypeAlias = "Task[[Any], Any]"


def name_of(dsn: str) -> str:
    return urlsplit(dsn).path.removeprefix("/")


@pytest.fixture
async def other(server: str, shelf: Shelf) -> AsyncIterator[str]:
    """The DSN of another database that has the schema, too."""
    name = await shelf.take()
    yield sibling(server, name)
    await shelf.give_back(name)


@pytest.fixture
async def bare(server: str) -> AsyncIterator[str]:
    """The DSN of a database that has no schema of ours."""
    name = f"bare_{uuid.uuid4().hex[:12]}"
    await on_server(server, f"create database {name}")
    yield sibling(server, name)
    await on_server(server, f"drop database {name} with (force)")


@pytest.fixture(params=DRIVERS)
async def stranger(request: pytest.FixtureRequest, other: str) -> AsyncIterator[Driver]:
    async with opened(request.param, other) as driver:
        yield driver


async def count(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval("select count(*) from stepwell.runs"))
    finally:
        await connection.close()


async def test_a_connection_of_another_database_is_refused_and_both_are_named(
    stranger: Driver, echo: Echo, dsn: str, other: str
) -> None:
    run = await echo.start("here")
    await stranger.begin()
    for verb in (stranger.start(echo, "there"), stranger.start_many(echo, [("there",)]), stranger.cancel(run)):
        with pytest.raises(WrongUse, match="another database") as refused:
            await verb
        assert f"it is on '{name_of(other)}'" in str(refused.value)
        assert f"this app uses '{name_of(dsn)}'" in str(refused.value)
    await stranger.execute("create table goes_on (n int)")  # the transaction is not spoiled
    await stranger.commit()
    assert (await count(other), await count(dsn)) == (0, 1)


@pytest.mark.parametrize("driver", ["Django", "psycopg2", "asyncpg"], indirect=True)
async def test_an_app_that_is_not_open_finds_out_which_database_is_its_own(
    driver: Driver, dsn: str, other: str
) -> None:
    ours, theirs = App(dsn), App(other)
    tasks = [each.task(name="echo")(_echo) for each in (ours, theirs)]
    await driver.begin()
    await driver.start(tasks[0], "here")
    with pytest.raises(WrongUse, match="another database"):
        await driver.start(tasks[1], "there")
    await driver.commit()
    assert (await count(other), await count(dsn)) == (0, 1)


async def _echo(what: Any) -> Any:
    return what


async def test_the_refusal_tells_no_password(server: str, dsn: str, other: str) -> None:
    role = f"plain_{uuid.uuid4().hex[:12]}"
    await on_server(server, f"create role {role} login superuser password 'x'")
    try:
        app = App(as_role(dsn, role).replace(":x@", ":hunter2@"))
        connection = await asyncpg.connect(other)
        async with connection.transaction():
            with pytest.raises(WrongUse) as refused:
                await app.task(name="echo")(_echo).options(tx=connection).start("there")
        await connection.close()
        assert "hunter2" not in str(refused.value)
    finally:
        await on_server(server, f"drop role {role}")


async def test_a_database_without_the_schema_is_refused_as_such(echo: Echo, bare: str) -> None:
    connection = await asyncpg.connect(bare)
    async with connection.transaction():
        with pytest.raises(WrongUse, match="which has no schema 'stepwell'"):
            await echo.options(tx=connection).start("there")
    await connection.close()


async def test_a_connection_is_asked_once_however_often_it_is_used(echo: Echo, dsn: str) -> None:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool:
        asked = []
        for number in range(3):
            async with pool.acquire() as connection, connection.transaction():
                connection.add_query_logger(log := lambda record: asked.append(record.query))
                await echo.options(tx=connection).start(number)
                connection.remove_query_logger(log)
        assert len([query for query in asked if "pg_control_system" in query]) == 2


async def test_a_role_that_may_ask_nothing_more_is_told_apart_by_the_mark(
    server: str, dsn: str, other: str, app: App, echo: Echo
) -> None:
    """Of two databases with the same name on servers whose identifiers it may not ask for."""
    home, connection = app._home, await asyncpg.connect(dsn)
    role = f"plain_{uuid.uuid4().hex[:12]}"
    await on_server(dsn, f"create role {role}", "grant usage on schema stepwell to public")
    await connection.execute("revoke execute on function pg_control_system() from public")
    try:
        async with connection.transaction():
            await connection.execute(f"set local role {role}")
            assert await _is_home(home, connection)
        await connection.execute("comment on table stepwell.migrations is 'namespace 7'")
        async with connection.transaction():
            await connection.execute(f"set local role {role}")
            home._known.clear()
            home._dsn = None  # or the change would be looked up
            assert not await _is_home(home, connection)
    finally:
        await connection.execute("grant execute on function pg_control_system() to public")
        await connection.close()
        await on_server(dsn, f"drop owned by {role}", f"drop role {role}")


async def _is_home(home: Home, connection: Any) -> bool:

    try:
        await home.require(borrow(connection, load("stepwell")))
    except WrongUse:
        return False
    return True


async def test_a_database_that_moved_since_the_app_was_opened_is_its_own_all_the_same(
    app: App, echo: Echo, dsn: str
) -> None:
    """As after a move to another server behind the same name: nobody has to restart the app."""
    connection = await asyncpg.connect(dsn)
    await connection.execute("comment on table stepwell.migrations is 'namespace 7'")
    async with connection.transaction():
        run = await echo.options(tx=connection).start("here")
    await connection.close()
    assert (await run.info()).input == {"what": "here"}


def test_an_app_that_cannot_be_asked_refuses_nothing_and_holds_nobody_up(dsn: str) -> None:
    app = App("postgresql://nobody@127.0.0.1:9/nowhere")
    task = app.task(name="echo")(_echo)
    with psycopg.connect(dsn) as connection:
        for number in range(2):
            task.options(tx=connection).sync.start(number)
    assert asyncio.run(count(dsn)) == 2


async def test_a_connection_is_not_kept_alive_by_being_known(app: App, echo: Echo, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        await echo.options(tx=connection).start("here")
    assert len(app._home._known) == 1
    await connection.close()
    del connection
    gc.collect()
    assert len(app._home._known) == 0
