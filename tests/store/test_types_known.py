"""Types are looked up once in a process, and what is known is what would have been looked up."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from stepwell.store import types_known
from stepwell.store.pool import Database

VALUES: dict[str, list[Any]] = {
    "bool[]": [True, None], "bytea[]": [b"a"], "smallint[]": [1], "integer[]": [2], "text[]": ["x"], "bigint[]": [3],
    "float8[]": [1.5], "timestamptz[]": [datetime(2026, 1, 2, tzinfo=UTC)], "interval[]": [timedelta(seconds=3)],
    "uuid[]": [UUID(int=7)], "jsonb[]": [b'{"a": 1}', None],
}  # fmt: skip
ASK = f"select {', '.join(f'${n}::{type}' for n, type in enumerate(VALUES, 1))}"


async def test_a_second_connection_looks_nothing_up(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []
    ask: Any = asyncpg.Connection._introspect_types  # type: ignore[attr-defined]

    async def noted(self: Any, typeoids: Any, timeout: Any) -> Any:
        asked.append(list(typeoids))
        return await ask(self, typeoids, timeout)

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", noted, raising=True)
    monkeypatch.setattr(types_known, "_known", {})
    for _ in range(3):
        connection = await database.connect()
        try:
            (row,) = await connection.fetch(ASK, *VALUES.values())
            assert list(row) == list(VALUES.values())
        finally:
            await connection.close()
    assert len(asked) == 1


async def test_a_type_of_the_users_is_looked_up_each_time(database: Database) -> None:
    """It may be another one tomorrow, by the same number."""
    first, second = await database.connect(), await database.connect()
    try:
        await first.execute("create type public.mood as enum ('good', 'bad')")
        for connection in (first, second):
            assert await connection.fetchval("select array['good']::public.mood[]") == ["good"]
        assert all(oid < 16_384 for oid in types_known._known)
    finally:
        await first.close()
        await second.close()
