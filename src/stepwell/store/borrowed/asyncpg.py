"""asyncpg: a connection, or the proxy that its pool returns."""

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
            raise WrongUse(
                "tx= is a connection that was closed or lost, so its transaction was rolled back. "
                "Repeat it on a new connection"
            )
        if not self._connection.is_in_transaction():
            raise WrongUse("tx= is a connection with no transaction open: use `async with conn.transaction():`")

    async def driver_connection(self) -> object | None:
        connection: object = getattr(self._connection, "_con", self._connection)  # unwraps the proxy of a pool
        return connection

    async def _fetch(self, sql: str, texts: Sequence[str | None]) -> Iterable[Mapping[str, Any]]:
        return [dict(row) for row in await self._connection.fetch(sql, *texts)]
