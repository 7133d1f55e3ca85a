"""A schema of our own, made and dropped again. What is not ours is left alone, whatever it is called.

A mark in the schema's comment says that it is ours, so one that a killed bench left behind is known and removed by
the next. A lock of the session's keeps two of them apart.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from stepwell.cli.exits import say
from stepwell.config import Settings
from stepwell.model.errors import InvalidSetting, SchemaError, Unavailable
from stepwell.store.pool import Database, Row, reaching
from stepwell.store.statements import checked_schema

MARK = "made by stepwell bench, which drops it"
_LOCK = "select pg_try_advisory_lock(hashtextextended('stepwell bench ' || $1, 0))"
_FACTS = """
select obj_description(n.oid, 'pg_namespace') as mark,
       (select count(*) from pg_class c where c.relnamespace = n.oid)
     + (select count(*) from pg_proc p where p.pronamespace = n.oid)
     + (select count(*) from pg_type t where t.typnamespace = n.oid) as things
  from pg_namespace n
 where n.nspname = $1
"""


def checked_name(schema: str, for_work: Settings) -> str:
    """The schema of a bench, if it is none that is for work."""
    if schema in {for_work.schema, "stepwell", "public"}:
        raise InvalidSetting("schema-name", schema, "it is for work: the schema of a bench is dropped at the end")
    return checked_schema(schema)


async def server_version(database: Database) -> str:
    """The version of Postgres."""
    (row,) = await database.rows("database_facts")
    return str(row["version"])


@asynccontextmanager
async def own_schema(database: Database, *, force: bool) -> AsyncIterator[None]:
    """The database's schema, empty and ours for as long as the block lasts; however that ends, it is dropped."""
    schema = checked_schema(database.schema)
    keeper = await database.connect()
    if database.is_pooled:
        keeper.terminate()
        raise InvalidSetting("dsn", "a pooler", "bench measures Postgres itself: connect to it directly")
    try:
        with reaching():
            if not await keeper.fetchval(_LOCK, schema):
                raise SchemaError(schema, "another `stepwell bench` is at work in it. Wait, or use --schema-name.")
        try:
            with reaching():
                await _make(keeper, schema, force=force)
            yield
        finally:
            await _drop_at_last(database)
    finally:
        keeper.terminate()


async def _make(keeper: asyncpg.Connection[Row], schema: str, *, force: bool) -> None:
    await _drop(keeper, schema)
    foreign = await keeper.fetchrow(_FACTS, schema)
    if foreign is not None:
        _check_foreign(schema, foreign["things"], force=force)
    try:
        async with keeper.transaction():
            if foreign is None:
                await keeper.execute(f"create schema {schema}")
            await keeper.execute(f"comment on schema {schema} is '{MARK}'")
    except asyncpg.InsufficientPrivilegeError as error:
        raise SchemaError(
            schema,
            f"this role may not make it ({error}). Let an administrator run "
            f"`create schema {schema} authorization ROLE` with the role that you connect as, and add --force.",
        ) from error


def _check_foreign(schema: str, things: int, *, force: bool) -> None:
    """Refuse a schema that is not ours. With force, an empty one becomes ours; one with anything in it does not."""
    theirs = "it is there, and `stepwell bench` did not make it"
    if things:
        raise InvalidSetting("schema-name", schema, f"{theirs}: it holds {things} things. Name another")
    if not force:
        raise InvalidSetting("schema-name", schema, f"{theirs}. It is empty: --force takes it, and drops it at the end")


async def _drop(connection: asyncpg.Connection[Row], schema: str) -> None:
    """Drop the schema only if it has our mark, which it gets when it is made."""
    found = await connection.fetchrow(_FACTS, schema)
    if found is not None and found["mark"] == MARK:
        await connection.execute(f"drop schema {schema} cascade")


async def _drop_at_last(database: Database) -> None:
    """Drop it on a connection of its own: the keeper's may be lost, or in the middle of a statement."""
    schema = database.schema
    try:
        connection = await database.connect()
        try:
            with reaching():
                await _drop(connection, schema)
        finally:
            connection.terminate()
    except (Unavailable, asyncpg.PostgresError) as error:
        say(f"the schema {schema} may still be there ({error}): the next `stepwell bench` removes it")
