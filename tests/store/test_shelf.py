"""A test's database is as if new, though another test had it before."""

from __future__ import annotations

import asyncpg
import pytest

from stepwell import App
from tests.shelf import ROWS_KEPT, Shelf, sibling

BEYOND_ITS_ROWS = {
    "a function": "create or replace function stepwell.now() returns timestamptz language sql as 'select now()'",
    "a type": "create type mood as enum ('good')",
    "a column": "alter table stepwell.runs add column note text",
    "a right": "grant select on stepwell.runs to public",
    "a right to it": "do $$ begin execute 'grant create on database ' || current_database() || ' to public'; end $$",
    "a setting": "do $$ begin execute 'alter database ' || current_database() || ' set work_mem = 999'; end $$",
    "a row that was there": "delete from stepwell.migrations where version = 1",
    "too many rows": f"insert into stepwell.queues (name) select 'q' || n from generate_series(0, {ROWS_KEPT}) n",
}
OID = "select oid from pg_database where datname = current_database()"


@pytest.fixture
def own_shelf(server: str, template: str) -> Shelf:
    return Shelf(server, template)


async def test_a_database_comes_back_empty_and_under_another_name(own_shelf: Shelf, server: str) -> None:
    name = await own_shelf.take()
    async with App(sibling(server, name), lease=5) as app, app.worker():
        ...
    left_open = await asyncpg.connect(sibling(server, name))
    await left_open.execute("insert into stepwell.queues (name) values ('mine'); create table notes as select 1 as n")
    oid = await left_open.fetchval(OID)
    await own_shelf.give_back(name)
    again = await own_shelf.take()
    try:
        assert left_open.is_closed()
        with pytest.raises(asyncpg.InvalidCatalogNameError):
            await asyncpg.connect(sibling(server, name))
        connection = await asyncpg.connect(sibling(server, again))
        assert await connection.fetchval(OID) == oid
        for table in ("queues", "workers", "leaders"):
            assert await connection.fetchval(f"select count(*) from stepwell.{table}") == 0
        assert await connection.fetchval("select to_regclass('notes') is null")
        await connection.close()
    finally:
        await own_shelf.give_back(again)
        await own_shelf.clear()


@pytest.mark.parametrize("statement", BEYOND_ITS_ROWS.values(), ids=BEYOND_ITS_ROWS)
async def test_what_was_changed_beyond_its_rows_is_not_used_again(
    own_shelf: Shelf, server: str, statement: str
) -> None:
    name = await own_shelf.take()
    connection = await asyncpg.connect(sibling(server, name))
    oid = await connection.fetchval(OID)
    await connection.execute(statement)
    await connection.close()
    await own_shelf.give_back(name)
    connection = await asyncpg.connect(server)
    assert not await connection.fetchval("select count(*) from pg_database where oid = $1", oid)
    await connection.close()
