"""Migrations: applied once, by however many at once; refused where they cannot be; and in any schema."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from stepwell import App, NotFound, SchemaError
from stepwell.store import migrate
from stepwell.store.pool import Database
from tests.conftest import as_role
from tests.shelf import on_server, sibling
from tests.store.schema_dump import schema_dump

ROOT = Path(__file__).parents[2]
MIGRATE = """
import asyncio, sys
from stepwell.store import migrate
from stepwell.store.pool import Database
print(len(asyncio.run(migrate.migrate(Database(sys.argv[1], "stepwell")))))
"""
ALL = len(migrate.migrations("stepwell"))
LATEST = migrate.latest("stepwell")


@pytest.fixture
async def blank(server: str) -> AsyncIterator[str]:
    """The DSN of an empty database."""
    name = f"blank_{uuid.uuid4().hex[:12]}"
    await on_server(server, f"create database {name}")
    yield sibling(server, name)
    await on_server(server, f"drop database {name} with (force)")


@pytest.fixture
async def role(server: str, blank: str) -> AsyncIterator[str]:
    """A role that may log in and nothing else."""
    name = f"plain_{uuid.uuid4().hex[:12]}"
    await on_server(server, f"create role {name} login password 'x'")
    yield name
    for dsn in (blank, server):
        await on_server(dsn, f"drop owned by {name} cascade")
    await on_server(server, f"drop role {name}")


async def fetchval(dsn: str, sql: str) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(sql)
    finally:
        await connection.close()


async def dump(dsn: str, schema: str = "stepwell") -> str:
    connection = await asyncpg.connect(dsn)
    try:
        return await schema_dump(connection, schema)
    finally:
        await connection.close()


async def in_a_process(dsn: str) -> int:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", MIGRATE, dsn, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env=dict(os.environ)
    )
    said, _ = await child.communicate()
    assert child.returncode == 0
    return int(said)


async def test_ten_connections_at_once_apply_each_migration_once(blank: str) -> None:
    applied = await asyncio.gather(*(migrate.migrate(Database(blank, "stepwell")) for _ in range(10)))
    assert sorted(len(each) for each in applied) == [0] * 9 + [ALL]
    assert await fetchval(blank, "select array_agg(version order by version) from stepwell.migrations") == [
        each.version for each in migrate.migrations("stepwell")
    ]


async def test_five_processes_at_once_apply_each_migration_once(blank: str) -> None:
    applied = await asyncio.gather(*(in_a_process(blank) for _ in range(5)))
    assert sorted(applied) == [0] * 4 + [ALL]


async def test_who_finds_nothing_to_do_takes_no_lock(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    async with asyncio.timeout(10), connection.transaction():
        await connection.execute("select pg_advisory_xact_lock(hashtextextended('stepwell.migrate', 0))")
        await connection.execute("lock stepwell.runs in access exclusive mode")
        assert await migrate.migrate(Database(dsn, "stepwell")) == []
    await connection.close()


async def test_a_migration_that_fails_leaves_nothing_behind_and_may_be_repeated(blank: str) -> None:
    await on_server(blank, "create schema stepwell", "create table stepwell.leaders (in_the_way int)")
    with pytest.raises(asyncpg.DuplicateTableError):
        await migrate.migrate(Database(blank, "stepwell"))
    assert await fetchval(
        blank, "select to_regclass('stepwell.migrations') is null and to_regclass('stepwell.runs') is null"
    )
    await on_server(blank, "drop table stepwell.leaders")
    assert len(await migrate.migrate(Database(blank, "stepwell"))) == ALL


@pytest.mark.parametrize("may_migrate", [True, False])
async def test_a_server_too_old_is_refused_with_both_versions_and_nothing_is_made_in_it(
    blank: str, may_migrate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    major = await fetchval(blank, "select current_setting('server_version_num')::int / 10000")
    monkeypatch.setattr(migrate, "OLDEST_POSTGRES", major + 1)
    with pytest.raises(SchemaError, match=rf"Postgres {major}, and {major + 1} or newer is needed"):
        async with App(blank, migrate=may_migrate):
            pass
    assert await fetchval(blank, "select to_regnamespace('stepwell') is null")


@pytest.mark.parametrize("may_migrate", [True, False])
async def test_a_database_newer_than_the_code_is_refused_and_left_as_it_is(dsn: str, may_migrate: bool) -> None:
    await on_server(dsn, f"insert into stepwell.migrations (version, name) values ({LATEST + 7}, 'from_tomorrow')")
    before = await dump(dsn)
    with pytest.raises(SchemaError, match=rf"version {LATEST + 7}, newer than this code, which knows {LATEST}\b"):
        async with App(dsn, migrate=may_migrate):
            pass
    assert await dump(dsn) == before
    assert await fetchval(dsn, "select count(*) from stepwell.migrations") == ALL + 1


async def test_a_database_that_becomes_newer_while_waiting_for_the_lock_is_refused(blank: str) -> None:
    newer = await asyncpg.connect(blank)
    transaction = newer.transaction()
    await transaction.start()
    await newer.execute(migrate.script("stepwell").removeprefix("begin;").removesuffix("commit;\n"))
    await newer.execute(f"insert into stepwell.migrations (version, name) values ({LATEST + 1}, 'from_tomorrow')")
    older = asyncio.create_task(migrate.migrate(Database(blank, "stepwell")))
    waiting = """select count(*) from pg_locks l join pg_database d on d.oid = l.database
                  where d.datname = current_database() and l.locktype = 'advisory' and not l.granted"""
    async with asyncio.timeout(10):
        while not await newer.fetchval(waiting):
            pass  # each look is a round trip
    await transaction.commit()
    await newer.close()
    with pytest.raises(SchemaError, match="newer than this code"):
        await older


async def test_who_may_not_migrate_is_told_how_to_mend_an_old_schema(blank: str) -> None:
    with pytest.raises(SchemaError, match=rf"at version 0 and this code needs {LATEST}.*stepwell migrate"):
        async with App(blank, migrate=False):
            pass
    assert await fetchval(blank, "select to_regnamespace('stepwell') is null")
    await migrate.migrate(Database(blank, "stepwell"))
    async with App(blank, migrate=False) as app:
        assert (await app.runs()).items == []


async def test_two_schemas_in_one_database_do_not_see_each_others_runs(blank: str) -> None:
    async with App(blank) as ours, App(blank, schema="other") as theirs:
        here = await ours.definition("shop.charge").options(key="order-7").start(1)
        there = await theirs.definition("shop.charge").options(key="order-7").start(2)
        assert here.id != there.id
        assert [each.id for each in (await ours.runs()).items] == [here.id]
        assert [each.id for each in (await theirs.runs()).items] == [there.id]
        with pytest.raises(NotFound):
            await ours.run(there.id).info()


async def test_another_schema_is_the_same_but_for_its_name_and_makes_no_other(blank: str) -> None:
    await migrate.migrate(Database(blank, "other"))
    assert await fetchval(blank, "select to_regnamespace('stepwell') is null")
    theirs = await dump(blank, "other")
    await migrate.migrate(Database(blank, "stepwell"))
    assert theirs.replace("other.", "stepwell.") == await dump(blank)


async def test_a_worker_in_another_schema_runs_only_its_own(blank: str) -> None:
    app = App(blank, schema="other")

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with App(blank) as ours, app:
        waits = await ours.definition(double.name).start(1)
        async with app.worker():
            assert await (await double.start(21)).result(timeout=20) == 42
        assert (await waits.info()).state == "pending"


@pytest.mark.parametrize("path", ["nowhere", "''", "odd, pg_catalog", "stepwell, pg_catalog", "pg_temp"])
async def test_nothing_depends_on_the_search_path(blank: str, path: str) -> None:
    name = urlsplit(blank).path.removeprefix("/")
    await on_server(
        blank, "create schema odd", "create table odd.runs (id int)", f"alter database {name} set search_path to {path}"
    )
    app = App(blank)

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker():
        assert await (await double.start(21)).result(timeout=20) == 42
        assert [each.name for each in (await app.runs()).items] == [double.name]


async def test_a_plain_role_that_owns_the_schema_needs_no_other_right(blank: str, role: str) -> None:
    await on_server(blank, f"create schema stepwell authorization {role}")
    app = App(as_role(blank, role))

    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app, app.worker():
        assert await (await double.start(21)).result(timeout=20) == 42
    assert len(await migrate.migrate(Database(as_role(blank, role), "stepwell"))) == 0


@pytest.mark.parametrize("may_migrate", [True, False])
@pytest.mark.parametrize("there", [True, False])
async def test_a_role_without_rights_is_told_so(blank: str, role: str, there: bool, may_migrate: bool) -> None:
    if there:
        await migrate.migrate(Database(blank, "stepwell"))
    told = "may not" if there or may_migrate else "stepwell migrate"
    with pytest.raises(SchemaError, match=told):
        async with App(as_role(blank, role), migrate=may_migrate):
            pass


@pytest.mark.parametrize("schema", ["stepwell", "other"])
async def test_the_script_for_an_administrator_makes_the_same_schema(blank: str, schema: str) -> None:
    await on_server(blank, migrate.script(schema))
    by_script = await dump(blank, schema)
    assert await migrate.migrate(Database(blank, schema)) == []
    await on_server(blank, f"drop schema {schema} cascade")
    assert len(await migrate.migrate(Database(blank, schema))) == ALL
    assert await dump(blank, schema) == by_script


async def test_the_script_after_the_last_migration_changes_nothing(dsn: str) -> None:
    before = await dump(dsn)
    await on_server(dsn, migrate.script("stepwell", after=LATEST))
    assert await dump(dsn) == before
