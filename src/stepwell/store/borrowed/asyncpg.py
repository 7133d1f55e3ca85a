"""asyncpg: a connection, or what its pool lends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stepwell.model.errors import WrongUse
from stepwell.store.borrowed.base import Borrowed


class AsyncpgConnection(Borrowed):
    place = "${}"
    blocks = False

    async def require_transaction(self) -> None:
        if self._connection.is_closed():
            raise WrongUse("tx= is closed, or was lost: its transaction is rolled back. Begin again on another")
        if not self._connection.is_in_transaction():
            raise WrongUse(
                "tx= is in no transaction, so there is none to be part of: use `async with conn.transaction():`"
            )

    async def driver_connection(self) -> object | None:
        connection: object = getattr(self._connection, "_con", self._connection)  # of what a pool lends
        return connection

    async def _fetch(self, sql: str, texts: Sequence[str | None]) -> Iterable[Mapping[str, Any]]:
        return [dict(row) for row in await self._connection.fetch(sql, *texts)]
