"""Connections of the user's, of whichever driver: no driver is imported here, since there is one already."""

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

# By package and class. A class of the user's own is known by its bases.
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
    """The user's connection, as a place where named statements can be spoken."""
    kinds = [(each.__module__.partition(".")[0], each.__name__) for each in connection.__class__.__mro__]
    for kind in kinds:
        if kind in _KINDS:
            return _KINDS[kind](connection, statements)
    # Not the value itself: it may be a DSN, with its password.
    given = f"{connection.__class__.__module__}.{connection.__class__.__qualname__}"
    if any(package in _PACKAGES for package, _ in kinds):
        raise InvalidSetting("tx", given, f"is no connection: give the one that the transaction is on, {_TAKEN}")
    raise InvalidSetting("tx", given, f"must be {_TAKEN}")
