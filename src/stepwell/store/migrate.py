"""Migrates the schema: numbered files, each applied once, all under one lock.

Any number of processes may migrate at once: the first does the work in one transaction, the others wait for its lock
and find nothing left to do. The lock belongs to the transaction, so it is never left behind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import asyncpg

from stepwell.model.errors import SchemaError
from stepwell.store.pool import Database, Row, reaching
from stepwell.store.statements import checked_schema, in_schema

_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
OLDEST_POSTGRES = 13

_LOCK = "select pg_advisory_xact_lock(hashtextextended('stepwell.migrate', 0));\n"
# The schema is looked up first: `create schema if not exists` needs the right to create one even if it exists.
_SCHEMA = "do $$ begin if to_regnamespace('{0}') is null then create schema {0}; end if; end $$;\n"
_TABLE = """\
create table if not exists stepwell.migrations (
    version    integer primary key,
    name       text not null,
    applied_at timestamptz not null default pg_catalog.now()
);
"""


@dataclass(frozen=True, slots=True)
class Migration:
    """A numbered file of SQL."""

    version: int
    name: str
    sql: str


@lru_cache(maxsize=8)
def migrations(schema: str) -> tuple[Migration, ...]:
    """Return all migrations in order, for one schema name."""
    found = []
    for file in files("stepwell.store").joinpath("sql", "migrations").iterdir():
        if match := _FILE.fullmatch(file.name):
            sql = in_schema(file.read_text(encoding="utf-8"), schema)
            found.append(Migration(int(match[1]), match[2], sql))
    return tuple(sorted(found, key=lambda each: each.version))


def latest(schema: str) -> int:
    """Return the schema version that this code needs."""
    return migrations(schema)[-1].version


def script(schema: str, *, after: int = 0) -> str:
    """Return the SQL that `migrate` would run, for an administrator to run with psql."""
    parts = ["begin;", _begin(schema).rstrip()]
    for migration in migrations(schema):
        if migration.version > after:
            parts += [f"-- {migration.version:04} {migration.name}", migration.sql.strip(), _record(migration, schema)]
    return "\n\n".join([*parts, "commit;"]) + "\n"


async def migrate(database: Database) -> list[Migration]:
    """Bring the schema to this code's version. Return the migrations that were applied."""
    schema = database.schema
    if await version(database) == latest(schema):
        return []
    connection = await database.connect(
        answer=None, search_path="pg_catalog", statement_timeout="0", lock_timeout="60s"
    )
    try:
        with reaching():
            async with connection.transaction():
                await connection.execute(_begin(schema))
                current = _known(await _applied(connection, schema), schema)
                missing = [each for each in migrations(schema) if each.version > current]
                for migration in missing:
                    await connection.execute(migration.sql)
                    await connection.execute(_record(migration, schema))
    except asyncpg.InsufficientPrivilegeError as error:
        raise _refused(schema, error) from error
    finally:
        await connection.close(timeout=5)
    return missing


async def require_current(database: Database) -> None:
    """Raise SchemaError unless the schema is current, for processes that may not migrate it."""
    current = await version(database)
    if current < latest(database.schema):
        raise SchemaError(
            database.schema,
            f"it is at version {current} and this code needs {latest(database.schema)}. Run `stepwell migrate`.",
        )


async def version(database: Database) -> int:
    """Return the schema's version, 0 if there is no schema; raise SchemaError if this code cannot use it."""
    connection = await database.connect()
    try:
        with reaching():
            if (major := connection.get_server_version().major) < OLDEST_POSTGRES:
                raise SchemaError(
                    database.schema, f"its server is Postgres {major}, and {OLDEST_POSTGRES} or newer is needed."
                )
            exists = await connection.fetchval("select to_regclass($1) is not null", f"{database.schema}.migrations")
            current = await _applied(connection, database.schema) if exists else 0
    except asyncpg.InsufficientPrivilegeError as error:
        raise _refused(database.schema, error) from error
    finally:
        await connection.close(timeout=5)
    return _known(current, database.schema)


def _known(current: int, schema: str) -> int:
    if current > latest(schema):
        raise SchemaError(
            schema,
            f"it is at version {current}, newer than this code, which knows {latest(schema)}. "
            "Upgrade the stepwell package here.",
        )
    return current


def _refused(schema: str, error: Exception) -> SchemaError:
    return SchemaError(
        schema, f"this role may not use or migrate it ({error}). Let its owner run `stepwell migrate --print | psql`."
    )


def _begin(schema: str) -> str:
    return in_schema(_LOCK, schema) + _SCHEMA.format(checked_schema(schema)) + in_schema(_TABLE, schema)


async def _applied(connection: asyncpg.Connection[Row], schema: str) -> int:
    sql = in_schema("select coalesce(max(version), 0) from stepwell.migrations", schema)
    return int(await connection.fetchval(sql))


def _record(migration: Migration, schema: str) -> str:
    # Both values come from our own file names, which _FILE has checked.
    values = f"({migration.version}, '{migration.name}')"
    return in_schema("insert into stepwell.migrations (version, name) values ", schema) + values + ";"  # noqa: S608
