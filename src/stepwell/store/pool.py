"""Connections, and the two ways to use one: a statement on its own, or several in a transaction.

Every failure to reach the database comes out as Unavailable, whatever the driver called it. After one,
a write may or may not have happened: who repeats it must be able to.
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

# The server is away, shutting down, starting, no longer the primary, does not let us in, or is ill itself; or the
# transaction is not what it was, since somebody cancelled a statement or changed a table in the middle of it.
# None of these says anything about what was asked: it is asked again, and nobody is blamed for it.
_AWAY = (
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
# The server took the transaction back by itself: it is certain that nothing was written.
_TAKEN_BACK = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError)
# The driver heard the server's farewell, or its pooler's, and not yet that the line is dead; or the server is a replica
# now, and another is the primary: whoever asks again needs another line.
_DEAD_LINE = (asyncpg.InternalClientError, asyncpg.PostgresConnectionError, asyncpg.ReadOnlySQLTransactionError)
# The data of a statement cannot be stored, whoever tries: SQLSTATE class 22, or more than any field can hold.
_OF_DATA = (asyncpg.DataError, asyncpg.ProgramLimitExceededError, NotEncodable)
# Text that Postgres stores nowhere, as one of its types or as part of JSON; or that the driver cannot even send.
_NO_TEXT = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)
_TRIES = 5
ANSWER = 30.0
"""Seconds to wait for an answer: a connection that is half open never gives one."""

RESERVED = 3
"""Connections of a pool that are kept from clients: their verbs may have to wait for locks, and keep them meanwhile."""

Row = asyncpg.Record


class Tx(Protocol):
    """What an engine's verb is given: a place where named statements can be spoken."""

    async def rows(self, name: str, /, **values: Any) -> list[Row]: ...


class Fetches(Protocol):
    """A connection, from the pool or of the caller's own."""

    async def fetch(self, query: str, *args: Any) -> list[Row]: ...

    async def copy_to_table(
        self, table_name: str, *, source: AsyncIterable[bytes], columns: Sequence[str], schema_name: str,
        format: Literal["binary"],
    ) -> str: ...  # fmt: skip


class Transaction:
    """A connection on which named statements are spoken, mostly inside one open transaction."""

    def __init__(self, connection: Fetches, statements: Statements, schema: str = "stepwell") -> None:
        self.connection = connection
        self._statements = statements
        self._schema = schema

    async def rows(self, name: str, /, **values: Any) -> list[Row]:
        statement = self._statements[name]
        return await self.connection.fetch(statement.sql, *statement.bind(values))

    async def copy(self, table: str, columns: Sequence[str], chunks: Iterable[bytes]) -> None:
        """Insert rows in COPY's binary form. They are made while those before them are already on their way."""
        await self.connection.copy_to_table(
            table, source=_in_turns(chunks), columns=columns, schema_name=self._schema, format="binary"
        )


async def _in_turns(chunks: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk
        await asyncio.sleep(0)  # to make one takes a while: others on the event loop have a turn


class Database:
    """A pool of connections to one schema."""

    def __init__(self, dsn: str, schema: str, *, size: int = 10, pooler: bool | None = None) -> None:
        """`pooler`: whether a pooler lends sessions for a transaction only; None, the first connection finds out."""
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
        """The same, once open; but whatever they wait for, a worker of this process finds a connection."""
        if isinstance(self._connections, Connections):
            clients = copy(self)
            clients._connections = Share(self._connections, most=max(1, self._size - RESERVED))
            return clients
        return self

    @property
    def is_pooled(self) -> bool:
        """Whether nothing can be heard, or kept in a session, because a pooler lends it to others."""
        return bool(self._sessions.is_pooled)

    async def close(self) -> None:
        if self._connections is not None:
            connections, self._connections = self._connections, None
            await connections.close()

    async def rows(self, name: str, /, **values: Any) -> list[Row]:
        """One statement, committed when this returns."""
        statement = self.statements[name]
        arguments = statement.bind(values)
        with reaching():
            for _ in range(_TRIES - 1):
                try:
                    return await self._fetch(statement.sql, arguments)
                except _TAKEN_BACK:
                    continue
            return await self._fetch(statement.sql, arguments)

    async def _fetch(self, sql: str, arguments: list[Any]) -> list[Row]:
        connections = self._opened()
        connection = await connections.take()
        try:
            return await connection.fetch(sql, *arguments)
        except (asyncio.CancelledError, TimeoutError, *_DEAD_LINE) as error:
            # No answer may ever come on it, and to ask the server to stop is to wait for another.
            connection.terminate()
            _suspect(connections, error)
            raise
        finally:
            connections.give_back(connection)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Several statements, committed together when the block ends."""
        with reaching():
            connections = self._opened()
            connection = await connections.take()
            try:
                with kept(connection):
                    transaction = connection.transaction()
                    await transaction.start()
                try:
                    yield Transaction(connection, self.statements, self.schema)
                except (asyncio.CancelledError, TimeoutError, *_DEAD_LINE):
                    # No answer may ever come on it. To hang up rolls back as well, and waits for nobody.
                    connection.terminate()
                    raise
                except BaseException:
                    await _roll_back(connection, transaction)
                    raise
                with kept(connection):
                    await transaction.commit()
            except (TimeoutError, asyncpg.ReadOnlySQLTransactionError) as error:
                _suspect(connections, error)
                raise
            finally:
                connections.give_back(connection)

    async def connect(self, *, answer: float | None = ANSWER, **settings: str) -> asyncpg.Connection[Row]:
        """A connection of the caller's own, outside the pool. It waits `answer` seconds for each answer."""
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
            raise Unavailable("it is closed")
        return self._connections


def _suspect(connections: Connections | Share, error: BaseException) -> None:
    """Hang up idle connections that share what made this one useless.

    Where one waited for its answer in vain, what lay idle all the while would only make the next one wait, too. A
    server that takes no writes is no longer the primary: none of the connections that lead to it is of use.
    """
    now = asyncio.get_running_loop().time()
    if isinstance(error, TimeoutError):
        connections.forget_idle(now - ANSWER)
    elif isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        connections.forget_idle(now)


async def _roll_back(connection: Connection, transaction: asyncpg.transaction.Transaction) -> None:
    """Whatever comes of it, what has failed before is what is told: to hang up rolls back as well."""
    with suppress(asyncpg.PostgresError, *_AWAY), kept(connection):
        await transaction.rollback()


class reaching:
    """Turns every way in which a database can be away into Unavailable."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, (*_AWAY, *_TAKEN_BACK)):
            if isinstance(error, asyncpg.InterfaceError) and not _connection_is_gone(error):
                return
            raise Unavailable(f"{type(error).__name__}: {error}".strip(": ")) from error
        if isinstance(error, _NO_TEXT) or (type(error) is asyncpg.DataError and "utf-8" in str(error)):
            raise NotEncodable("a text of this call", "it has a NUL character, or half of a surrogate pair") from error


def is_of_data(error: BaseException) -> bool:
    """Whether the data of a statement is to blame for its error. Any other error may pass."""
    # The driver has a class of its own, of which both are bases, for a value that it cannot send.
    return isinstance(error, _OF_DATA) or (isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError))


def _connection_is_gone(error: asyncpg.InterfaceError) -> bool:
    # The driver uses one class for our own mistakes (a wrong argument) and for a lost connection.
    return not isinstance(error, asyncpg.exceptions.DataError) and "clos" in str(error)


async def prepare(connection: asyncpg.Connection[Row]) -> None:
    """Payloads travel as the bytes they are: `jsonb` in its binary form is a version byte and the text."""
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", format="binary", encoder=b"\x01".__add__, decoder=_without_version
    )


_without_version = itemgetter(slice(1, None))
