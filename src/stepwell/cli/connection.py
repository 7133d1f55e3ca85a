"""The database a command talks to: found from flags or settings, waited for, and named without its password."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import asyncpg

from stepwell.app import App
from stepwell.cli.exits import DatabaseAway, say
from stepwell.config import Settings
from stepwell.model.dsn import read_dsn
from stepwell.model.errors import Unavailable
from stepwell.store import embedded
from stepwell.store.pool import Database

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds for which a starting worker waits for its database."""
LONGEST_PAUSE = 5.0

log = logging.getLogger("stepwell")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def place_of(settings: Settings) -> str:
    """Where the database is, for a message: host, port and name, and never a password."""
    if settings.dsn is None:
        return f"{settings.home} (embedded)"
    return str(read_dsn(settings.dsn))


def say_if_new(settings: Settings) -> None:
    """Nobody should wonder where a database came from."""
    if settings.dsn is None and not settings.home.exists():
        say(f"no database in {settings.home} yet: making an embedded one (yours is named by --dsn or STEPWELL_DSN)")


@contextmanager
def naming(settings: Settings) -> Iterator[None]:
    """Whatever keeps us from the database is told with the place where it should be."""
    place = place_of(settings)
    try:
        yield
    except Unavailable as error:
        raise DatabaseAway(place, error.reason) from None
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise DatabaseAway(place, str(error)) from None


@asynccontextmanager
async def reached(app: App, *, patience: float = 0.0) -> AsyncIterator[App]:
    """The app, open. A database that is away is waited for, and then named."""
    end, pause = time.monotonic() + patience, 0.5
    with naming(app.settings):
        while True:
            try:
                await app.__aenter__()
                break
            except Unavailable as error:
                # The embedded one has had its own patience already.
                if app.settings.dsn is None or time.monotonic() + pause > end:
                    raise
                log.warning("waiting for the database at %s: %s", place_of(app.settings), error.reason)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
    try:
        yield app
    finally:
        await app.__aexit__()


@asynccontextmanager
async def database_of(settings: Settings) -> AsyncIterator[Database]:
    """The database itself, whatever schema is in it."""
    with naming(settings):
        hold = await asyncio.to_thread(embedded.ensure, settings.home) if settings.dsn is None else None
        pooler = settings.pooler if hold is None else False
        database = Database(settings.dsn or (hold.dsn if hold else ""), settings.schema, pooler=pooler)
        try:
            await database.open()
            yield database
        finally:
            await database.close()
            if hold is not None:
                hold.release()
