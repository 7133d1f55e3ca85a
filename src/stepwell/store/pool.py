"""The database: connections, and the two ways to use one: a statement on its own, or several in a transaction.

Every failure to reach the database is raised as Unavailable, whatever the driver calls it. After it, a write may or may
not have happened, so callers must be able to repeat it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from operator import itemgetter
from typing import Any, Literal, Protocol

import asyncpg

from stepwell.model.errors import NotEncodable, Unavailable
from stepwell.store.address import Address
from stepwell.store.connections import Connection, Connections, Share
from stepwell.store.sessions import Sessions, kept
from stepwell.store.statements import Statements, load

# The server is unavailable, shutting down, starting, no longer the primary, refuses the login, or has a fault itself;
# or the transaction broke, since somebody cancelled a statement or changed a table in the middle of it. None of these
# errors says anything about the statement: it is repeated, and no run is blamed for it.
_UNAVAILABLE = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.OperatorInterventionError,
    asyncpg.PostgresSystemError,
    asyncpg.InternalServerError,
    asyncpg.InvalidTransactionStateError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.LockNotAvailableError,
    asyncpg.InsufficientResourcesError,
    OSError,
    TimeoutError,
)
# The server rolled the transaction back by itself: it is certain that nothing was written.
_ROLLED_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
# The driver received the server's or the pooler's goodbye, and has not noticed yet that the connection is dead; or the
# server has become a replica, and another is the primary. A retry needs another connection.
_DEAD_CONNECTION = (asyncpg.InternalClientError, asyncpg.PostgresConnectionError, asyncpg.ReadOnlySQLTransactionError)
# The data of a statement cannot be stored by anyone: SQLSTATE class 22, or more than any field can hold.
_DATA_ERRORS = (asyncpg.DataError, asyncpg.ProgramLimitExceededError, NotEncodable)
# Text that Postgres cannot store, in one of its types or inside of JSON; or that the driver cannot even send.
_TEXT_ERRORS = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)
_TRIES = 5
ANSWER = 30.0
"""Seconds to wait for an answer: a half-open connection never gives one."""

RESERVED = 3
"""Connections of a pool that clients may not take: their verbs may wait for locks, and keep their connections
meanwhile."""

Row = asyncpg.Record


class Tx(Protocol):
    """A target for the engine's verbs, on which they execute named statements: a transaction, or the database
    itself."""

    async def rows(self, name: str, /, **values: Any) -> list[Row]: ...


class Fetches(Protocol):
    """A connection, from the pool or the caller's own."""

    async def fetch(self, query: str, *args: Any) -> list[Row]: ...

    async def copy_to_table(
        self, table_name: str, *, source: AsyncIterable[bytes], columns: Sequence[str], schema_name: str,
        format: Literal["binary"],
    ) -> str: ...  # fmt: skip


class Transaction:
    """A connection on which named statements are executed, mostly inside of one open transaction."""

    def __init__(self, connection: Fetches, statements: Statements, schema: str = "stepwell") -> None:
        self.connection = connection
        self._statements = statements
        self._schema = schema

    async def rows(self, name: str, /, **values: Any) -> list[Row]:
        statement = self._statements[name]
        return await self.connection.fetch(statement.sql, *statement.bind(values))

    async def copy(self, table: str, columns: Sequence[str], chunks: Iterable[bytes]) -> None:
        """Insert rows in COPY's binary form. Each chunk is encoded while the ones before it are on their way."""
        await self.connection.copy_to_table(
            table, source=_in_turns(chunks), columns=columns, schema_name=self._schema, format="binary"
        )


async def _in_turns(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(0)  # encoding a chunk takes a while: let other tasks of the event loop run


class Database:
    """A pool of connections to one schema."""

    def __init__(self, dsn: str, schema: str, *, size: int = 10, pooler: bool | None = None) -> None:
        """`pooler` says whether a pooler lends sessions for single transactions; with None, the first connection finds
        out."""
        self.address = Address(dsn)
        self.dsn = self.address.dsn
        self.schema = schema
        self.statements = load(schema)
        self._sessions = Sessions(self.address, pooler=pooler)
        self._size = size
        self._connections: Connections | Share | None = None

    async def open(self) -> None:
        connections = Connections(lambda: self.connect(answer=ANSWER), size=self._size)
        await connections.open()
        self._connections = connections

    def for_clients(self) -> Database:
        """Return a view of this open database that always leaves some connections for a worker of this process."""
        if isinstance(self._connections, Connections):
            clients = copy(self)
            clients._connections = Share(self._connections, most=max(1, self._size - RESERVED))
            return clients
        return self

    @property
    def is_pooled(self) -> bool:
        """True if a pooler lends sessions to others, so that no notifications can be received and no session state
        kept."""
        return bool(self._sessions.is_pooled)

    async def close(self) -> None:
        if self._connections is not None:
            connections, self._connections = self._connections, None
            await connections.close()

    async def rows(self, name: str, /, **values: Any) -> list[Row]:
        """Execute one statement. It is committed when this returns."""
        statement = self.statements[name]
        arguments = statement.bind(values)
        with reaching():
            for _ in range(_TRIES - 1):
                try:
                    return await self._fetch(statement.sql, arguments)
                except _ROLLED_BACK:
                    continue
            return await self._fetch(statement.sql, arguments)

    async def _fetch(self, sql: str, arguments: list[Any]) -> list[Row]:
        connections = self._opened()
        connection = await connections.take()
        try:
            return await connection.fetch(sql, *arguments)
        except (asyncio.CancelledError, TimeoutError, *_DEAD_CONNECTION) as error:
            # There may never be an answer on this connection, and a request to cancel would have to wait for another
            # answer.
            connection.terminate()
            _terminate_suspects(connections, error)
            raise
        finally:
            connections.give_back(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Open a transaction. Its statements are committed together when the block ends."""
        with reaching():
            connections = self._opened()
            connection = await connections.take()
            try:
                with kept(connection):
                    transaction = connection.transaction()
                    await transaction.start()
                try:
                    yield Transaction(connection, self.statements, self.schema)
                except (asyncio.CancelledError, TimeoutError, *_DEAD_CONNECTION):
                    # There may never be an answer on this connection. Terminating it rolls back as well, and waits for
                    # nobody.
                    connection.terminate()
                    raise
                except BaseException:
                    await _roll_back(connection, transaction)
                    raise
                with kept(connection):
                    await transaction.commit()
            except (TimeoutError, asyncpg.ReadOnlySQLTransactionError) as error:
                _terminate_suspects(connections, error)
                raise
            finally:
                connections.give_back(connection)

    async def connect(self, *, answer: float | None = ANSWER, **settings: str) -> asyncpg.Connection[Row]:
        """Open a connection of the caller's own, outside the pool. It waits `answer` seconds for each answer."""
        with reaching():
            connection = await self._sessions.begin(settings, answer=answer)
            try:
                await prepare(connection)
            except BaseException:
                connection.terminate()
                raise
            return connection

    def _opened(self) -> Connections | Share:
        if self._connections is None:
            raise Unavailable("the connection pool is closed")
        return self._connections


def _terminate_suspects(connections: Connections | Share, error: BaseException) -> None:
    """Terminate idle connections that share the fault of the one that failed.

    If one waited for its answer in vain, a connection that was idle meanwhile would only make the next caller wait,
    too. A server that accepts no writes is no longer the primary: none of the connections to it is of use.
    """
    now = asyncio.get_running_loop().time()
    if isinstance(error, TimeoutError):
        connections.forget_idle(now - ANSWER)
    elif isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        connections.forget_idle(now)


async def _roll_back(connection: Connection, transaction: asyncpg.transaction.Transaction) -> None:
    """Roll back. An error in doing so is suppressed, so that the original one is raised; a broken connection is
    terminated, which rolls back as well."""
    with suppress(asyncpg.PostgresError, *_UNAVAILABLE), kept(connection):
        await transaction.rollback()


class reaching:
    """Context manager that turns every way in which a database can be unavailable into Unavailable."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, (*_UNAVAILABLE, *_ROLLED_BACK)):
            if isinstance(error, asyncpg.InterfaceError) and not _connection_is_gone(error):
                return
            raise Unavailable(f"{type(error).__name__}: {error}".strip(": ")) from error
        if isinstance(error, _TEXT_ERRORS) or (type(error) is asyncpg.DataError and "utf-8" in str(error)):
            raise NotEncodable("a text of this call", "it has a NUL character, or half of a surrogate pair") from error


def is_of_data(error: BaseException) -> bool:
    """Tell whether the data of a statement caused its error. Any other error may pass when it is repeated."""
    # The driver has a class of its own, with both as bases, for a value that it cannot send.
    return isinstance(error, _DATA_ERRORS) or (
        isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
    )


def _connection_is_gone(error: asyncpg.InterfaceError) -> bool:
    # The driver uses one class for wrong arguments and for lost connections.
    return not isinstance(error, asyncpg.exceptions.DataError) and "clos" in str(error)


async def prepare(connection: asyncpg.Connection[Row]) -> None:
    """Make JSON travel as raw bytes: the binary form of `jsonb` is a version byte and the text."""
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", format="binary", encoder=b"\x01".__add__, decoder=_without_version
    )


_without_version = itemgetter(slice(1, None))
