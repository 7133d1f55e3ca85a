"""Identifies the database of an app: a user's transaction must be on the same database.

Another database may have a schema of the same name. Runs written there would be accepted, and no worker of this app
would ever see them. So each connection is compared once, when it is first used.
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
"""Seconds for finding out which database the app uses, if the app is not open."""
RETRY_AFTER = 60.0
"""Seconds until that is tried again after a failure."""

_UNREACHABLE = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


@dataclass(frozen=True, slots=True)
class Namespace:
    """A schema in a database of a server."""

    database: str
    server: str
    """The server's own address, for people: through a proxy it may have another."""
    system: str | None
    """The server's identifier; None if the role may not read it."""
    mark: str | None
    """The mark of the schema; None if the schema does not exist, or is older than the mark."""

    def is_same(self, other: Namespace) -> bool:
        """Tell whether `other` is this namespace, as far as both are known."""
        return (
            self.database == other.database
            and (self.system is None or other.system is None or self.system == other.system)
            and (self.mark is None or self.mark == other.mark)
        )


async def namespace_of(tx: Tx, schema: str) -> Namespace:
    """Return the namespace that a connection is on."""
    (row,) = await tx.rows("namespace", schema=schema)
    system = (await tx.rows("system_identifier"))[0]["system"] if row["may_ask"] else None
    return Namespace(row["database"], row["server"], system, row["mark"])


class Home:
    """The namespace of one app, and the connections that are known to be on it. Shared by all threads."""

    def __init__(self, dsn: str | None, schema: str) -> None:
        """Make a namespace to be found by its DSN; without a `dsn`, the app sets it when it is opened."""
        self._dsn = dsn
        self._schema = schema
        self._namespace: Namespace | None = None
        self._unreachable_until = 0.0
        self._known: WeakSet[object] = WeakSet()
        self._lock = threading.Lock()

    def opened(self, dsn: str, namespace: Namespace) -> None:
        """Set the database of the app, which is now open."""
        self._dsn = dsn
        self._namespace = namespace

    async def require(self, tx: Borrowed) -> None:
        """Raise WrongUse if the user's connection is not on this database. It costs nothing once the connection is
        known."""
        connection = await tx.driver_connection()
        if connection is not None and connection in self._known:
            return
        ours = self._namespace or await self._ask(blocks=tx.blocks)
        if ours is None:
            return
        theirs = await namespace_of(tx, self._schema)
        if not ours.is_same(theirs):
            # The database may have moved: there may be a new server behind the same name.
            ours = await self._ask(blocks=tx.blocks) or ours
        if not ours.is_same(theirs):
            raise WrongUse(self._refusal(ours, theirs))
        connection = await tx.driver_connection()
        if connection is not None:
            with self._lock:
                self._known.add(connection)

    def _refusal(self, ours: Namespace, theirs: Namespace) -> str:
        """Return the message that names both databases."""
        has = "" if theirs.mark else f", which has no schema {self._schema!r} of this version"
        return (
            f"tx= is a connection to another database: it is on {theirs.database!r} at {theirs.server}{has}, and this "
            f"app uses {ours.database!r} at {ours.server}, schema {self._schema!r}. Pass a connection to the app's "
            "database, or configure the app with the DSN of the other one"
        )

    async def _ask(self, *, blocks: bool) -> Namespace | None:
        """Look up the namespace on a connection of our own; None if there is no connection."""
        if self._dsn is None or time.monotonic() < self._unreachable_until:
            return None
        if blocks:  # the caller has no event loop, or its driver blocks it anyway
            asking = threading.Thread(target=lambda: asyncio.run(self._look_up()), name="stepwell.home", daemon=True)
            asking.start()
            asking.join()
        else:
            await self._look_up()
        return None if time.monotonic() < self._unreachable_until else self._namespace

    async def _look_up(self) -> None:
        """Connect and look up the namespace. Remember a failure for a while."""
        try:
            async with asyncio.timeout(REACH):
                # Statements have no names, since there may be a pooler.
                connection = await asyncpg.connect(self._dsn, statement_cache_size=0)
                try:
                    async with connection.transaction():
                        found = await namespace_of(Transaction(connection, load(self._schema)), self._schema)
                finally:
                    connection.terminate()
        except _UNREACHABLE as error:
            log.info(
                "the app's database could not be reached, so the database of tx= is not checked: %s",
                type(error).__name__,
            )
            self._unreachable_until = time.monotonic() + RETRY_AFTER
        else:
            self._namespace, self._unreachable_until = found, 0.0
