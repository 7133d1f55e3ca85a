"""Databases for tests. Copying one costs more than most tests do: what a test leaves as it was goes back on the
shelf, emptied, under a name that nobody has heard before. Tables of its own go first; what a test changed beyond
that is dropped.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import asyncpg

Connection = Any  # the driver's class is generic in its stubs only

CATALOGS = (
    "pg_attrdef", "pg_attribute", "pg_class", "pg_constraint", "pg_default_acl", "pg_event_trigger", "pg_extension",
    "pg_index", "pg_inherits", "pg_largeobject_metadata", "pg_namespace", "pg_policy", "pg_proc", "pg_publication",
    "pg_rewrite", "pg_sequence", "pg_trigger", "pg_type",
)  # fmt: skip
# Whatever is made, altered or granted is a new row version in a catalog.
SHAPE = " union all ".join(f"select '{name}', count(*), max(xmin::text::bigint) from {name}" for name in CATALOGS)
SETTINGS = """
select datdba, datacl, datconnlimit, array(select setconfig from pg_db_role_setting where setdatabase = d.oid)
  from pg_database d
 where datname = current_database()
"""
TABLES = """
select oid::regclass::text from pg_class
 where relnamespace = 'stepwell'::regnamespace and relkind in ('r', 'p') and not relispartition
"""
# A copy has the template's numbers: whatever is above them was made since.
LAST = "select max(oid) from pg_class"
MADE_SINCE = "select oid::regclass::text from pg_class where oid > $1 and relkind in ('r', 'p') and not relispartition"
OTHERS = "select pid from pg_stat_activity where datname = $1 and pid <> pg_backend_pid()"
# Emptied tables keep their dead rows for a while: a database that held more is not worth keeping.
ROWS_KEPT = 500
PATIENCE = 2.0


def sibling(dsn: str, name: str) -> str:
    """The DSN of another database on the same server."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


async def on_server(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


@dataclass(frozen=True)
class State:
    """What a test may leave behind that is not a run's: all of it as the template has it, or it is no copy any more."""

    shape: list[object]
    settings: list[object]
    rows: dict[str, list[str]]

    @classmethod
    async def read(cls, connection: Connection, tables: Iterable[str]) -> State:
        shape = [tuple(row) for row in await connection.fetch(SHAPE)]
        settings = list(await connection.fetchrow(SETTINGS))
        rows = {}
        for table in tables:
            rows[table] = [row[0] for row in await connection.fetch(f"select t::text from {table} t order by 1")]
        return cls(shape, settings, rows)


class Shelf:
    """Copies of one template, for one test process."""

    def __init__(self, server: str, template: str) -> None:
        self._server = server
        self._template = template
        self._spare: list[str] = []
        self._first: State | None = None
        self._emptied: list[str] = []
        self._last = 0

    async def take(self) -> str:
        """The name of a database in the template's state."""
        if self._spare:
            return self._spare.pop()
        name = _fresh_name()
        await on_server(self._server, f"create database {name} template {self._template}")
        return name

    async def give_back(self, name: str) -> None:
        connection = await asyncpg.connect(self._server)
        try:
            if await _left_by_all(connection, name) and await self._is_empty_again(name):
                await _left_by_all(connection, name)
                fresh = _fresh_name()
                # Who still knows the old name, a process that outlived its test, finds nothing there; unless it has
                # just come back, and then this is not to be had.
                with suppress(asyncpg.ObjectInUseError):
                    await connection.execute(f"alter database {name} rename to {fresh}")
                    self._spare.append(fresh)
                    return
            await connection.execute(f"drop database if exists {name} with (force)")
        finally:
            await connection.close()

    async def clear(self) -> None:
        await on_server(self._server, *(f"drop database if exists {name} with (force)" for name in self._spare))

    async def _is_empty_again(self, name: str) -> bool:
        first = self._first or await self._read_template()
        try:
            connection = await asyncpg.connect(sibling(self._server, name))
        except asyncpg.PostgresError:
            return False
        try:
            for row in await connection.fetch(MADE_SINCE, self._last):
                await connection.execute(f"drop table if exists {row[0]} cascade")
            if await State.read(connection, first.rows) != first:
                return False
            await connection.execute("set session_replication_role = replica")
            deleted = [await connection.execute(f"delete from {table}") for table in self._emptied]
            return sum(int(said.split()[1]) for said in deleted) <= ROWS_KEPT
        except asyncpg.PostgresError:
            return False
        finally:
            await connection.close()

    async def _read_template(self) -> State:
        connection = await asyncpg.connect(sibling(self._server, self._template))
        try:
            tables = [row[0] for row in await connection.fetch(TABLES)]
            state = await State.read(connection, tables)
            self._last = await connection.fetchval(LAST)
        finally:
            await connection.close()
        self._emptied = [table for table, rows in state.rows.items() if not rows]
        self._first = replace(state, rows={table: rows for table, rows in state.rows.items() if rows})
        return self._first


async def _left_by_all(connection: Connection, name: str) -> bool:
    deadline = time.monotonic() + PATIENCE
    while others := await connection.fetch(OTHERS, name):
        if time.monotonic() > deadline:
            return False
        for row in others:
            await connection.execute("select pg_terminate_backend($1)", row[0])
        await asyncio.sleep(0.002)
    return True


def _fresh_name() -> str:
    return f"test_{uuid.uuid4().hex[:12]}"
