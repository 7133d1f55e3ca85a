"""Connections lent to bodies: with the driver's defaults, and without the settings of our own sessions.

They are apart from our pool, so that a body that keeps one for long blocks only other bodies.
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
"""Maximum number of connections that one worker lends at a time. Further bodies wait for their turn."""
STANDSTILL = 60.0
"""Seconds without any connection given back after which waiting bodies give up: they may wait for each other."""

_LOST = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
_NAME = {"application_name": "stepwell"}
# Resets everything but the prepared statements of the driver, which relies on them.
_RESET = """
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
    """A connection that notes changes outside of its session's state, such as codecs and listeners: the reset query
    does not undo those."""

    is_changed = False

    def get_reset_query(self) -> str:
        return _RESET

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
    """A connection that is lent to a body, and the transaction on it."""

    connection: Connection
    transaction: asyncpg.transaction.Transaction


class Lending:
    """Lends connections to the bodies of one worker."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Behind a pooler each lent connection occupies one of its sessions. Others need some as well, above all the
        # leases.
        self._size = 1 if database.is_pooled else MOST
        self._connections = Connections(self._connect, size=self._size)
        self._timeouts: set[asyncio.Timeout] = set()
        """Timeouts of the bodies that wait for a connection."""
        self._lent: set[Lent] = set()
        self._resetting: set[asyncio.Task[None]] = set()

    async def take(self) -> Lent:
        """Return a connection in a new transaction, for one body."""
        with reaching():
            connection = await self._next()
            try:
                if _is_read_only(connection):
                    raise Unavailable("the server of this connection no longer accepts writes")
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
        """Wait for a connection, for as long as others are given back."""
        timeout = asyncio.timeout(STANDSTILL)
        try:
            async with timeout:
                self._timeouts.add(timeout)
                return await self._connections.take()
        except TimeoutError:
            if not timeout.expired():
                raise
            raise WrongUse(
                f"current.tx() found no free connection: none of the {self._size} that this worker lends was given "
                f"back for {STANDSTILL:g} s. This is a deadlock if bodies wait, inside of `async with current.tx()`, "
                "for runs which need a connection, too: wait for those runs before the block, or after it"
            ) from None
        finally:
            self._timeouts.discard(timeout)

    def _give_back(self, connection: Connection) -> None:
        self._connections.give_back(connection)
        for timeout in self._timeouts:
            if not timeout.expired():
                timeout.reschedule(asyncio.get_running_loop().time() + STANDSTILL)

    def take_back(self, lent: Lent) -> None:
        """Take a connection back in any state, without waiting. What was not committed is rolled back."""
        if lent in self._lent:
            self._lent.remove(lent)
            resetting = asyncio.create_task(self._reset(lent), name="stepwell.resetting")
            self._resetting.add(resetting)
            resetting.add_done_callback(self._resetting.discard)

    async def close(self) -> None:
        """Terminate lent connections, and close the pool."""
        for lent in self._lent:
            lent.connection.terminate()
            self._connections.give_back(lent.connection)
        self._lent.clear()
        if self._resetting:
            await asyncio.wait(self._resetting)
        await self._connections.close()

    async def _reset(self, lent: Lent) -> None:
        """Reset what the body has set in its session; behind a pooler, the pooler does that."""
        connection = lent.connection
        try:
            if not connection.is_closed():  # a lost connection cannot tell whether it is in a transaction
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
                pass  # a pooler in session mode, which refuses these settings
        return await self._open(_NAME)

    async def _open(self, settings: dict[str, str]) -> Connection:
        # Behind a pooler statements have no names: the next transaction may be in another session.
        return await self._database.address.connect(
            server_settings=settings,
            statement_cache_size=0 if self._database.is_pooled else 100,
            connection_class=Plain,
        )


def _is_read_only(connection: Connection) -> bool:
    """Tell whether the server has reported, as Postgres 14 and later do, that it is no longer the primary."""
    reported = connection.get_settings()
    return "on" in (
        getattr(reported, "in_hot_standby", "off"), getattr(reported, "default_transaction_read_only", "off")
    )  # fmt: skip
