"""psycopg 3, blocking and async, and psycopg2."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from stepwell.model.errors import WrongUse
from stepwell.store.borrowed.base import Borrowed, by_name, numbered

_IDLE = 0
"""libpq's number for a connection that is in no transaction."""


def _plain_rows(_cursor: object) -> Callable[..., Any]:
    """Row factory that returns tuples, whatever the connection's own row factory returns."""
    return tuple


class _Psycopg(Borrowed):
    place = "%(p{})s"

    async def require_transaction(self) -> None:
        if self._connection.autocommit and self._connection.info.transaction_status == _IDLE:
            raise WrongUse(
                "tx= is a connection in autocommit mode with no transaction open: "
                "use `with conn.transaction():`, or turn autocommit off"
            )

    async def driver_connection(self) -> object | None:
        connection: object = self._connection
        return connection


class PsycopgConnection(_Psycopg):
    blocks = True

    async def _fetch(self, sql: str, texts: Sequence[str | None]) -> Iterable[Mapping[str, Any]]:
        with self._connection.cursor(row_factory=_plain_rows) as cursor:
            cursor.execute(sql, numbered(texts))
            return by_name(cursor.description, cursor.fetchall() if cursor.description else ())


class PsycopgAsyncConnection(_Psycopg):
    blocks = False

    async def _fetch(self, sql: str, texts: Sequence[str | None]) -> Iterable[Mapping[str, Any]]:
        async with self._connection.cursor(row_factory=_plain_rows) as cursor:
            await cursor.execute(sql, numbered(texts))
            return by_name(cursor.description, await cursor.fetchall() if cursor.description else ())


class Psycopg2Connection(_Psycopg):
    blocks = True

    async def _fetch(self, sql: str, texts: Sequence[str | None]) -> Iterable[Mapping[str, Any]]:
        # A plain cursor, since the connection's own cursor class may return rows of any form.
        plain = sys.modules["psycopg2.extensions"].cursor
        with self._connection.cursor(cursor_factory=plain) as cursor:
            cursor.execute(sql, numbered(texts))
            return by_name(cursor.description, cursor.fetchall() if cursor.description else ())
