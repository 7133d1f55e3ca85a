"""SQLAlchemy 2: connections and sessions, blocking and async, over any of its drivers for Postgres."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepwell.model.errors import InvalidSetting, WrongUse
from stepwell.store.borrowed.base import Borrowed, numbered


class _Alchemy(Borrowed):
    place = ":p{}"

    @abstractmethod
    async def _open(self) -> tuple[Any, Any]:
        """Return the connection of the current transaction and its blocking side. A transaction begins if there is
        none."""

    async def require_transaction(self) -> None:
        _, inner = await self._open()
        if inner is None:
            raise WrongUse("tx= is a connection that is not open yet: use `async with engine.begin() as conn:`")
        if inner.dialect.name != "postgresql":
            raise InvalidSetting("tx", inner.dialect.name, "must be a connection to the app's Postgres database")
        if getattr(inner.connection.dbapi_connection, "autocommit", False):
            raise WrongUse(
                "tx= is a connection with the isolation level AUTOCOMMIT, so it has no transaction: use another level"
            )

    async def driver_connection(self) -> object | None:
        _, inner = await self._open()
        connection: object | None = inner.connection.driver_connection
        return connection


class _Blocking(_Alchemy):
    blocks = True

    async def _fetch(self, sql: str, texts: Sequence[str | None]) -> Iterable[Mapping[str, Any]]:
        connection, _ = await self._open()
        return _rows(connection.execute(_text(sql), numbered(texts)))


class _Awaited(_Alchemy):
    blocks = False

    async def _fetch(self, sql: str, texts: Sequence[str | None]) -> Iterable[Mapping[str, Any]]:
        connection, _ = await self._open()
        return _rows(await connection.execute(_text(sql), numbered(texts)))


class AlchemyConnection(_Blocking):
    async def _open(self) -> tuple[Any, Any]:
        return self._connection, self._connection


class AlchemySession(_Blocking):
    async def _open(self) -> tuple[Any, Any]:
        connection = self._connection.connection()
        return connection, connection


class AlchemyAsyncConnection(_Awaited):
    async def _open(self) -> tuple[Any, Any]:
        return self._connection, self._connection.sync_connection


class AlchemyAsyncSession(_Awaited):
    async def _open(self) -> tuple[Any, Any]:
        connection = await self._connection.connection()
        return connection, connection.sync_connection


def _text(sql: str) -> Any:
    return sys.modules["sqlalchemy"].text(sql)


def _rows(result: Any) -> list[dict[str, Any]]:
    return [dict(row) for row in result.mappings().all()] if result.returns_rows else []
