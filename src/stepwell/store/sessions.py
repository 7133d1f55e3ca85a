"""Session settings: of direct connections, and through a pooler that lends a session for one transaction only.

Behind such a pooler, the next transaction may be in another session, and this session may be used by anybody next. So
nothing is left in a session and nothing expected of one: the settings that direct sessions get at their start are sent
with every `begin`, and statements have no names. See docs/decisions/0021.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import asyncpg

from stepwell.store.address import Address
from stepwell.store.connections import Connection
from stepwell.store.types_known import Knowing

# A connection that went silent must not keep its session and its locks: after half a minute at most, the server drops
# it.
KEPT_ALIVE = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "30s",
}
# Every statement of the engine is an index lookup. A plan made while a table was small must not outlive that: with
# these settings the index is the only plan, whether or not ANALYZE has run. And since there is only one plan, it is
# made once: Postgres would otherwise plan anew for every call where it hopes for a better plan, which takes longer than
# the call.
SESSION = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "synchronous_commit": "on",
    "statement_timeout": "60s",
    # A statement that waits longer for a lock fails and is retried: meanwhile others can use the connection, and the
    # rest of the work goes on without it.
    "lock_timeout": "2s",
    "idle_in_transaction_session_timeout": "60s",
    **KEPT_ALIVE,
}
# A statement without a name is planned for each call anyway. `jit` itself is left alone: when the driver looks up types
# it turns `jit` off for the whole session, and on again only if it was on. The TCP connection to the server is the
# pooler's own, so its keepalives are, too.
_TRANSACTION = {
    name: value for name, value in SESSION.items() if name not in {"jit", "plan_cache_mode", *KEPT_ALIVE}
} | {"jit_above_cost": "-1"}
_NAME = {"application_name": "stepwell"}
_MOST_DESCRIBED = 500
_BACKEND_PID = "select pg_backend_pid()"

if TYPE_CHECKING:
    _Described = asyncpg.prepared_stmt.PreparedStatement[asyncpg.Record]


class Sessions:
    """Opens connections to one database. Unless it is configured, the first connection finds out whether there is a
    pooler."""

    def __init__(self, address: Address, *, pooler: bool | None) -> None:
        self._address = address
        self.is_pooled = pooler
        self._settings_follow = False
        """True for a pooler in session mode: settings are sent after the start, then its sessions are like direct
        ones."""

    async def begin(self, settings: dict[str, str], *, answer: float | None) -> Connection:
        """Open a connection that waits `answer` seconds for each answer."""
        if self.is_pooled is None:
            return await self._find_out(settings, answer)
        return await (self._through_pooler if self.is_pooled else self._direct)(settings, answer)

    async def _find_out(self, settings: dict[str, str], answer: float | None) -> Connection:
        """Open the first connection, and detect a pooler. PgBouncer refuses settings it does not know. A pooler that
        accepts them is detected by the backend's pid: it must hide which backend answers, since that changes."""
        try:
            connection = await self._connect(_NAME | SESSION | settings, answer)
        except asyncpg.ProtocolViolationError:
            connection = await self._through_pooler(settings, answer)
            self.is_pooled = True
            return connection
        with kept(connection):
            # Without a name: a named statement would stay behind in a session that may not be ours.
            answers = await (await connection.prepare(_BACKEND_PID, name="")).fetchval()
        self.is_pooled = answers != connection.get_server_pid()
        if not self.is_pooled:
            return connection
        connection.terminate()
        return await self._through_pooler(settings, answer)

    async def _direct(self, settings: dict[str, str], answer: float | None) -> Connection:
        if not self._settings_follow:
            try:
                return await self._connect(_NAME | SESSION | settings, answer)
            except asyncpg.ProtocolViolationError:
                self._settings_follow = True
        connection = await self._connect(_NAME, answer)
        with kept(connection):
            await connection.execute(_set_all("set", SESSION | settings))
        return connection

    async def _through_pooler(self, settings: dict[str, str], answer: float | None) -> Connection:
        connection = await self._address.connect(
            command_timeout=answer, server_settings=_NAME, statement_cache_size=0, connection_class=Pooled
        )
        assert isinstance(connection, Pooled)  # by its class
        connection.settings_sql = _set_all("set local", _TRANSACTION | settings)
        return connection

    async def _connect(self, settings: dict[str, str], answer: float | None) -> Connection:
        return await self._address.connect(command_timeout=answer, server_settings=settings, connection_class=Knowing)


class Pooled(Knowing):
    """A connection that has a session only while a transaction lasts."""

    settings_sql = ""
    """Settings that are sent with every transaction's `begin`."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._described: dict[tuple[str, Any], _Described] = {}

    async def execute(self, query: str, *args: object, timeout: float | None = None) -> str:
        """Execute SQL. The driver's own transactions begin through this method, too."""
        if query.startswith("BEGIN"):
            query += self.settings_sql
        return await super().execute(query, *args, timeout=timeout)

    async def fetch(
        self, query: str, *args: object, timeout: float | None = None, record_class: Any = None
    ) -> list[Any]:
        """Fetch rows; outside of a transaction, in one of its own: the statement needs the settings that go with it."""
        if not self.is_closed() and self.is_in_transaction():
            return await self._ask(query, args, timeout, record_class)
        await self.execute("BEGIN;", timeout=timeout)
        try:
            rows = await self._ask(query, args, timeout, record_class)
        except asyncpg.PostgresError:
            with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                await self.execute("ROLLBACK;", timeout=timeout)
            raise
        await self.execute("COMMIT;", timeout=timeout)
        return rows

    async def fetchval(self, query: str, *args: Any, column: int = 0, timeout: float | None = None) -> Any:
        """Fetch one value. The driver calls this to ask whether a server is a standby, before the connection is
        returned to us."""
        if self.settings_sql:
            return await super().fetchval(query, *args, column=column, timeout=timeout)
        rows = await self.fetch(query, *args, timeout=timeout)
        return rows[0][column] if rows else None

    async def _ask(self, query: str, args: tuple[object, ...], timeout: float | None, record_class: Any) -> list[Any]:
        """Fetch rows in one round trip: the types were described once, and the session that answers parses the text."""
        described = self._described.get((query, record_class))
        if described is None:
            if len(self._described) >= _MOST_DESCRIBED:
                self._described.clear()
            described = await self.prepare(query, name="", timeout=timeout, record_class=record_class)
            self._described[query, record_class] = described
        return await described.fetch(*args, timeout=timeout)


@contextmanager
def kept(connection: Connection) -> Iterator[None]:
    """Terminate the connection if the block raises.

    The driver keeps a transaction that failed to begin or to end as the connection's current one, so the next statement
    would be executed inside of it.
    """
    is_well = False
    try:
        yield
        is_well = True
    finally:
        if not is_well:
            connection.terminate()


def _set_all(how: str, settings: dict[str, str]) -> str:
    """Return the SQL that makes these settings. Both names and values are our own."""
    return "".join(f"{how} {name} = '{value}';" for name, value in settings.items())


PLAN_AS_OURS = _set_all(
    "set local", {name: SESSION[name] for name in ("enable_seqscan", "enable_bitmapscan", "plan_cache_mode")}
)
"""Settings that make a body's own transaction plan the engine's statements as our sessions do: once, and by their
indexes."""
