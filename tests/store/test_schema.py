"""`schema.sql`: what all migrations together make, to be read in one place."""

from __future__ import annotations

import os

import pytest

from stepwell.store.pool import Database
from tests.store.schema_dump import SCHEMA, schema_dump


@pytest.fixture
async def made(database: Database) -> str:
    connection = await database.connect()
    try:
        return await schema_dump(connection)
    finally:
        await connection.close()


def test_the_schema_file_is_what_the_migrations_make(made: str) -> None:
    if os.environ.get("STEPWELL_WRITE_SCHEMA"):
        SCHEMA.write_text(made, encoding="utf-8")
    assert made == SCHEMA.read_text(encoding="utf-8"), "write it with STEPWELL_WRITE_SCHEMA=1; look at the difference"
