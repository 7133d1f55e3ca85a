"""Connections that bodies work on: as the driver makes them, without what our own sessions are set to.

They are apart from ours, so that a body that keeps one for long keeps nobody else waiting but other bodies.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import asyncpg

from stepwell.model.errors import Unavailable, WrongUse
from stepwell.store.connections import PARTING, Connection, Connections
from stepwell.store.pool import ANSWER, Database, reaching
from stepwell.store.sessions import KEPT_ALIVE, kept

MOST = 10
"""Of one worker, at a time. Who comes then waits for its turn."""
STANDSTILL = 60.0
"""Seconds in which none was given back, after which nobody waits any longer: they may wait for each other."""

_LOST = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_NAME = {"application_name": "stepwell"}
# All but what the driver has prepared, which it believes to be there.
_TIDY = """
    set session authorization default; close all; unlisten *; reset all; select pg_advisory_unlock_all();
    discard temp; discard sequences;
    do $$
        declare prepared text;
        begin
            for prepared in select p.name from pg_catalog.pg_prepared_statements p where p.from_sql loop
                execute pg_catalog.format('deallocate %I', prepared);
            end loop;
        end
    $$"""

if TYPE_CHECKING:
    _Driver = asyncpg.Connection[asyncpg.Record]
else:
    _Driver = asyncpg.Connection


class Plain(_Driver):
    """A connection that notes whether more was done to it than its session knows of: nothing else would undo that."""

    is_changed = False

    def get_reset_query(self) -> str:
        return _TIDY

    async def set_type_codec(self, *given: Any, **named: Any) -> None:
        self.is_changed = True
        await super().set_type_codec(*given, **named)

    async def set_builtin_type_codec(self, *given: Any, **named: Any) -> None:
        self.is_changed = True
        await super().set_builtin_type_codec(*given, **named)

    async def reset_type_codec(self, *given: Any, **named: Any) -> None:
        self.is_changed = True
        await super().reset_type_codec(*given, **named)

    async def add_listener(self, *given: Any, **named: Any) -> None:
        self.is_changed = True
        await super().add_listener(*given, **named)

    def add_log_listener(self, *given: Any, **named: Any) -> None:
        self.is_changed = True
        super().add_log_listener(*given, **named)

    def add_query_logger(self, *given: Any, **named: Any) -> None:
        self.is_changed = True
        super().add_query_logger(*given, **named)

    def add_termination_listener(self, *given: Any, **named: Any) -> None:
        self.is_changed = True
        super().add_termination_listener(*given, **named)


@dataclass(frozen=True, slots=True, eq=False)
class Lent:
    connection: Connection
    transaction: asyncpg.transaction.Transaction


class Lending:
    def __init__(self, database: Database) -> None:
        self._database = database
        # Behind a pooler each holds one of its sessions, and others need some too: leases, above all.
        self._size = 1 if database.is_pooled else MOST
        self._connections = Connections(self._connect, size=self._size)
        self._patience: set[asyncio.Timeout] = set()
        """Of those who wait for their turn."""
        self._lent: set[Lent] = set()
        self._tidying: set[asyncio.Task[None]] = set()

    async def take(self) -> Lent:
        """A connection in a transaction, for one body."""
        with reaching():
            connection = await self._next()
            try:
                if _takes_no_writes(connection):
                    raise Unavailable("the server of this connection takes no writes any more")
                lent = Lent(connection, connection.transaction())
                async with asyncio.timeout(ANSWER):
                    await lent.transaction.start()
            except BaseException:
                connection.terminate()
                self._connections.give_back(connection)
                raise
        self._lent.add(lent)
        return lent

    async def _next(self) -> Connection:
        patience = asyncio.timeout(STANDSTILL)
        try:
            async with patience:
                self._patience.add(patience)
                return await self._connections.take()
        except TimeoutError:
            if not patience.expired():
                raise
            raise WrongUse(
                f"current.tx() found no connection: none of the {self._size} that this worker lends was given back for "
                f"{STANDSTILL:g} s. Bodies that wait inside of the block for runs which need one too wait for each "
                "other: wait for them before it, or after"
            ) from None
        finally:
            self._patience.discard(patience)

    def _give_back(self, connection: Connection) -> None:
        self._connections.give_back(connection)
        for patience in self._patience:
            if not patience.expired():
                patience.reschedule(asyncio.get_running_loop().time() + STANDSTILL)

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
            if not connection.is_closed():  # one that is lost does not even know whether it is in a transaction
                with suppress(*_LOST), kept(connection):
                    async with asyncio.timeout(PARTING):
                        await self._clean(lent)
        finally:
            self._give_back(connection)

    async def _clean(self, lent: Lent) -> None:
        connection = lent.connection
        if connection.is_in_transaction():
            await lent.transaction.rollback()
        if isinstance(connection, Plain) and connection.is_changed:
            await connection.close()
        elif not self._database.is_pooled:
            await connection.reset()

    async def _connect(self) -> Connection:
        if not self._database.is_pooled:
            try:
                return await self._open(_NAME | KEPT_ALIVE)
            except asyncpg.ProtocolViolationError:
                pass  # a pooler after all, which lends whole sessions
        return await self._open(_NAME)

    async def _open(self, settings: dict[str, str]) -> Connection:
        # Behind a pooler no statement has a name: the next transaction may find itself in another session.
        return await self._database.address.connect(
            server_settings=settings,
            statement_cache_size=0 if self._database.is_pooled else 100,
            connection_class=Plain,
        )


def _takes_no_writes(connection: Connection) -> bool:
    """Whether the server has said, as Postgres does from 14 on, that it is no longer the primary."""
    told = connection.get_settings()
    return "on" in (getattr(told, "in_hot_standby", "off"), getattr(told, "default_transaction_read_only", "off"))
