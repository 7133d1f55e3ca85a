"""The database of an app, told apart from any other: a transaction of the user's must be on it.

Another database may have a schema of the same name. What is written there is accepted, and no worker of this app will
ever see it. So each connection is compared once, when it is first used.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from weakref import WeakSet

import asyncpg

from stepwell.model.errors import WrongUse
from stepwell.store.borrowed.base import Borrowed
from stepwell.store.pool import Transaction, Tx
from stepwell.store.statements import load
from stepwell.telemetry import log

REACH = 5.0
"""Seconds for finding out which database the app uses, where it is not open."""
AGAIN = 60.0
"""Seconds until that is tried again, after it failed."""

_UNREACHABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@dataclass(frozen=True, slots=True)
class Namespace:
    """One schema in one database of one server."""

    database: str
    server: str
    """Its address, as it sees it itself: for people, since a proxy may have another."""
    system: str | None
    """The server's identifier; None if the role may not ask for it."""
    mark: str | None
    """Of the schema; None if it is not there, or older than the mark."""

    def is_same(self, other: Namespace) -> bool:
        """Whether `other` is this one, as far as either can tell."""
        return (
            self.database == other.database
            and (self.system is None or other.system is None or self.system == other.system)
            and (self.mark is None or self.mark == other.mark)
        )


async def namespace_of(tx: Tx, schema: str) -> Namespace:
    (row,) = await tx.rows("namespace", schema=schema)
    system = (await tx.rows("system_identifier"))[0]["system"] if row["may_ask"] else None
    return Namespace(row["database"], row["server"], system, row["mark"])


class Home:
    """The namespace of one app, and the connections that are known to be on it. Shared by all threads."""

    def __init__(self, dsn: str | None, schema: str) -> None:
        """Without a `dsn`, the app tells it when it is opened."""
        self._dsn = dsn
        self._schema = schema
        self._namespace: Namespace | None = None
        self._unreachable_until = 0.0
        self._known: WeakSet[object] = WeakSet()
        self._lock = threading.Lock()

    def opened(self, dsn: str, namespace: Namespace) -> None:
        """The app is open: this is its database."""
        self._dsn = dsn
        self._namespace = namespace

    async def require(self, tx: Borrowed) -> None:
        """WrongUse if the user's connection is not on this database. Costs nothing once it was found to be."""
        connection = await tx.driver_connection()
        if connection is not None and connection in self._known:
            return
        ours = self._namespace or await self._ask(blocks=tx.blocks)
        if ours is None:
            return
        theirs = await namespace_of(tx, self._schema)
        if not ours.is_same(theirs):
            # The database may have moved since: a new server behind the same name.
            ours = await self._ask(blocks=tx.blocks) or ours
        if not ours.is_same(theirs):
            raise WrongUse(self._refusal(ours, theirs))
        connection = await tx.driver_connection()
        if connection is not None:
            with self._lock:
                self._known.add(connection)

    def _refusal(self, ours: Namespace, theirs: Namespace) -> str:
        has = "" if theirs.mark else f", which has no schema {self._schema!r} of this version"
        return (
            f"tx= is a connection to another database: it is on {theirs.database!r} at {theirs.server}{has}, and this "
            f"app uses {ours.database!r} at {ours.server}, schema {self._schema!r}. Give a connection to that one, "
            "or give the app the DSN of the other"
        )

    async def _ask(self, *, blocks: bool) -> Namespace | None:
        """Find out by a connection of our own; None if that cannot be had."""
        if self._dsn is None or time.monotonic() < self._unreachable_until:
            return None
        if blocks:  # the caller may have no event loop, or is used to blocking it
            asking = threading.Thread(target=lambda: asyncio.run(self._look()), name="stepwell.home", daemon=True)
            asking.start()
            asking.join()
        else:
            await self._look()
        return None if time.monotonic() < self._unreachable_until else self._namespace

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(REACH):
                # Perhaps through a pooler: statements have no names.
                connection = await asyncpg.connect(self._dsn, statement_cache_size=0)
                try:
                    async with connection.transaction():
                        found = await namespace_of(Transaction(connection, load(self._schema)), self._schema)
                finally:
                    connection.terminate()
        except _UNREACHABLE as error:
            log.info("which database the app uses is not known, so tx= is not checked: %s", type(error).__name__)
            self._unreachable_until = time.monotonic() + AGAIN
        else:
            self._namespace, self._unreachable_until = found, 0.0
