"""The user's connections, of any supported driver. No driver is imported here: the user's code has imported its own."""

from __future__ import annotations

from typing import Any

from stepwell.model.errors import InvalidSetting
from stepwell.store.borrowed.asyncpg import AsyncpgConnection
from stepwell.store.borrowed.base import Borrowed
from stepwell.store.borrowed.django import DjangoConnection
from stepwell.store.borrowed.psycopg import Psycopg2Connection, PsycopgAsyncConnection, PsycopgConnection
from stepwell.store.borrowed.sqlalchemy import (
    AlchemyAsyncConnection,
    AlchemyAsyncSession,
    AlchemyConnection,
    AlchemySession,
)
from stepwell.store.statements import Statements

# Adapters by package and class. A subclass of the user's is recognised by its bases.
_KINDS: dict[tuple[str, str], type[Borrowed]] = {
    ("asyncpg", "Connection"): AsyncpgConnection,
    ("asyncpg", "PoolConnectionProxy"): AsyncpgConnection,
    ("psycopg", "Connection"): PsycopgConnection,
    ("psycopg", "AsyncConnection"): PsycopgAsyncConnection,
    ("psycopg2", "connection"): Psycopg2Connection,
    ("sqlalchemy", "Connection"): AlchemyConnection,
    ("sqlalchemy", "Session"): AlchemySession,
    ("sqlalchemy", "scoped_session"): AlchemySession,
    ("sqlalchemy", "AsyncConnection"): AlchemyAsyncConnection,
    ("sqlalchemy", "AsyncSession"): AlchemyAsyncSession,
    ("sqlalchemy", "async_scoped_session"): AlchemyAsyncSession,
    ("django", "ConnectionProxy"): DjangoConnection,
    ("django", "BaseDatabaseWrapper"): DjangoConnection,
}
_PACKAGES = frozenset(package for package, _ in _KINDS) | {"psycopg_pool"}
_TAKEN = "a connection (or session) of asyncpg, psycopg, psycopg2, SQLAlchemy or Django"


def borrow(connection: Any, statements: Statements) -> Borrowed:
    """Wrap the user's connection, so that named statements can be executed on it."""
    kinds = [(each.__module__.partition(".")[0], each.__name__) for each in connection.__class__.__mro__]
    for kind in kinds:
        if kind in _KINDS:
            return _KINDS[kind](connection, statements)
    # The value itself is not shown: it may be a DSN with its password.
    given = f"{connection.__class__.__module__}.{connection.__class__.__qualname__}"
    if any(package in _PACKAGES for package, _ in kinds):
        raise InvalidSetting("tx", given, f"is not a connection: pass the connection of the transaction, {_TAKEN}")
    raise InvalidSetting("tx", given, f"must be {_TAKEN}")
