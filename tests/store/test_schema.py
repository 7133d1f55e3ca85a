"""`schema.sql`: what all migrations together make, to be read in one place."""

from __future__ import annotations

import os
from importlib.resources import files

from stepwell.store.pool import Database
from tests.store.schema_dump import schema_dump

SCHEMA = files("stepwell.store").joinpath("sql", "schema.sql")


async def test_the_schema_file_is_what_the_migrations_make(database: Database) -> None:
    connection = await database.connect()
    try:
        made = await schema_dump(connection)
    finally:
        await connection.close()
    if os.environ.get("STEPWELL_WRITE_SCHEMA"):
        with open(str(SCHEMA), "w", encoding="utf-8") as file:
            file.write(made)
    written = SCHEMA.read_text(encoding="utf-8") if SCHEMA.is_file() else ""
    assert made == written, "run it again with STEPWELL_WRITE_SCHEMA=1, and look at the difference"
