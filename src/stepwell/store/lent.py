"""Connections that bodies work on: as the driver makes them, without what our own sessions are set to.

They are apart from ours, so that a body that keeps one for long keeps nobody else waiting but other bodies.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import asyncpg

from stepwell.store.connections import PARTING, Connection, Connections
from stepwell.store.pool import Database, reaching

MOST = 10
"""Of one worker, at a time. Who comes then waits for its turn."""


@dataclass(frozen=True, slots=True, eq=False)
class Lent:
    connection: Connection
    transaction: asyncpg.transaction.Transaction


class Lending:
    def __init__(self, database: Database) -> None:
        self._database = database
        # Behind a pooler each holds one of its sessions, and others need some too: leases, above all.
        self._connections = Connections(self._connect, size=1 if database.is_pooled else MOST)
        self._lent: set[Lent] = set()
        self._tidying: set[asyncio.Task[None]] = set()

    async def take(self) -> Lent:
        """A connection in a transaction, for one body."""
        with reaching():
            connection = await self._connections.take()
            try:
                lent = Lent(connection, connection.transaction())
                await lent.transaction.start()
            except BaseException:
                connection.terminate()
                self._connections.give_back(connection)
                raise
        self._lent.add(lent)
        return lent

    def take_back(self, lent: Lent) -> None:
        """In whatever state it is: what was not committed is rolled back. Waits for nobody."""
        if lent in self._lent:
            self._lent.remove(lent)
            tidying = asyncio.create_task(self._tidy(lent), name="stepwell.tidying")
            self._tidying.add(tidying)
            tidying.add_done_callback(self._tidying.discard)

    async def close(self) -> None:
        for lent in self._lent:
            lent.connection.terminate()
            self._connections.give_back(lent.connection)
        self._lent.clear()
        if self._tidying:
            await asyncio.wait(self._tidying)
        await self._connections.close()

    async def _tidy(self, lent: Lent) -> None:
        """What the body has set for its session is not for the next one; a pooler sees to that itself."""
        connection = lent.connection
        try:
            async with asyncio.timeout(PARTING):
                if connection.is_in_transaction():
                    await lent.transaction.rollback()
                if not self._database.is_pooled:
                    await connection.reset()
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()
        finally:
            self._connections.give_back(connection)

    async def _connect(self) -> Connection:
        # Behind a pooler no statement has a name: the next transaction may find itself in another session.
        return await asyncpg.connect(
            self._database.dsn,
            timeout=10,
            server_settings={"application_name": "stepwell"},
            statement_cache_size=0 if self._database.is_pooled else 100,
        )
