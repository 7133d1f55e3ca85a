"""The database a command talks to: found from flags or settings, waited for, and named without its password."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from stepwell.app import App
from stepwell.cli.exits import DatabaseAway, say
from stepwell.config import Settings
from stepwell.model.errors import Unavailable, UsageError
from stepwell.operator.doctor import place_of
from stepwell.operator.maintenance import Maintenance
from stepwell.store import embedded
from stepwell.store.pool import Database

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds for which a starting worker waits for its database."""
LONGEST_PAUSE = 5.0
EMBEDDED = "stepwell.embedded"
"""The place where the context of a command line keeps that an embedded database may be made."""

log = logging.getLogger("stepwell")


def run_async(main: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


@dataclass(eq=False)
class NoDatabase(UsageError):
    """There is no database in {home}, and no other is named. Name yours by --dsn or STEPWELL_DSN; or your app, by
    --app, STEPWELL_APP or [tool.stepwell] app = "module:app" in pyproject.toml; or make an embedded one by --embedded.
    """

    home: str


def is_missing(settings: Settings) -> bool:
    """Tell whether these settings mean an embedded database, and there is none yet."""
    return settings.dsn is None and not embedded.exists(settings.home)


def may_make() -> bool:
    """Tell whether `--embedded` was given."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(EMBEDDED))


def _check_there(settings: Settings) -> None:
    """Make no database by mistake, in the wrong directory; and let nobody wonder where one came from."""
    if not is_missing(settings):
        return
    if not may_make():
        raise NoDatabase(str(settings.home))
    say(f"no database in {settings.home} yet: making an embedded one")


@contextmanager
def naming(settings: Settings) -> Iterator[None]:
    """Name the place where the database should be, if it cannot be reached."""
    place = place_of(settings)
    try:
        yield
    except Unavailable as error:
        raise DatabaseAway(error.reason, place) from None


@asynccontextmanager
async def reached(app: App, *, patience: float = 0.0) -> AsyncIterator[App]:
    """The app, open. A database that is away is waited for, and then named."""
    _check_there(app.settings)
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
    _check_there(settings)
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


@asynccontextmanager
async def maintained(settings: Settings) -> AsyncIterator[Maintenance]:
    """The operator's verbs that need no schema of this version."""
    async with database_of(settings) as database:
        yield Maintenance(database, settings)
