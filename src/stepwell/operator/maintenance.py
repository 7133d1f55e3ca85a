"""The verbs that need a database, but no schema of this version: doctor, the facts of the database, migrations."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.config import Settings
from stepwell.operator import doctor
from stepwell.operator.findings import DoctorFinding
from stepwell.store import migrate
from stepwell.store.pool import Database


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """The database and the schema in it."""

    place: str
    """Host, port and name, or the directory of an embedded one; never a password."""
    version: str
    """The version of Postgres."""
    size: int
    """Bytes of the database on disk, with everything else that is in it."""
    schema: str
    schema_version: int
    """0: there is no schema yet."""
    latest: int
    """The version that this code needs."""
    is_pooled: bool
    """A pooler lends sessions for a transaction only."""


@dataclass(frozen=True, slots=True)
class SchemaVersions:
    """The version of a schema, and what is missing."""

    schema: str
    version: int
    latest: int
    missing: list[str]
    """The migrations that are still to be applied, in order."""

    @property
    def is_current(self) -> bool:
        return self.version >= self.latest


class Maintenance:
    """Look at a database, and bring its schema forward."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings

    async def doctor(self) -> list[DoctorFinding]:
        """Look at the database and at the work in it: what is good, what needs a look, what is bad."""
        return await doctor.examine(self._database, self._settings)

    async def facts(self) -> DatabaseFacts:
        """The versions of server and schema, and the size of the database."""
        (row,) = await self._database.rows("database_facts")
        schema = self._database.schema
        version, latest = await migrate.version(self._database), migrate.latest(schema)
        return DatabaseFacts(
            doctor.place_of(self._settings), row["version"], row["size"], schema, version, latest,
            self._database.is_pooled,
        )  # fmt: skip

    async def schema(self) -> SchemaVersions:
        """The version of the schema, and the migrations that are missing."""
        schema, version = self._database.schema, await migrate.version(self._database)
        missing = [_named(each) for each in migrate.migrations(schema) if each.version > version]
        return SchemaVersions(schema, version, latest_version(schema), missing)

    async def migrate(self) -> list[str]:
        """Bring the schema to this version; the migrations that were applied. Safe to repeat, by any number at once."""
        return [_named(each) for each in await migrate.migrate(self._database)]


def latest_version(schema: str) -> int:
    """The version that this code needs."""
    return migrate.latest(schema)


def script(schema: str, *, after: int = 0) -> str:
    """The SQL of all migrations behind a version, for psql."""
    return migrate.script(schema, after=after)


def _named(migration: migrate.Migration) -> str:
    return f"{migration.version:04}_{migration.name}"
