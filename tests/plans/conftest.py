"""The big database, made by the first test process that needs it and shared by all."""

from __future__ import annotations

import asyncio
import fcntl
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit, urlunsplit

import msgspec
import pytest
from plan_reading import Session
from plan_survey import Survey, make_survey, on_server, session

from stepwell.store import migrate
from stepwell.store.pool import Database


@pytest.fixture(scope="session")
def survey(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survey]:
    """One process makes it while the others wait; the last to leave drops the database."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    found = shared / "plans.json"
    # Two locks: one is held while it is made, the other for as long as it is used.
    with (shared / "plans.making").open("w") as making, (shared / "plans.using").open("w") as using:
        fcntl.flock(making, fcntl.LOCK_EX)
        fcntl.flock(using, fcntl.LOCK_SH)
        if not found.exists():
            found.write_bytes(msgspec.json.encode(asyncio.run(_made(server))))
        survey = msgspec.json.decode(found.read_bytes(), type=Survey)
        fcntl.flock(making, fcntl.LOCK_UN)
        yield survey
        fcntl.flock(making, fcntl.LOCK_EX)
        try:
            fcntl.flock(using, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        found.unlink()
        asyncio.run(on_server(server, f"drop database {urlsplit(survey.dsn).path[1:]} with (force)"))


async def _made(server: str) -> Survey:
    """Not a copy: what other tests rolled back in the template may have had it vacuumed, and a table that was found
    empty is planned for otherwise than one of which nothing is known."""
    name = f"plans_{uuid.uuid4().hex[:12]}"
    dsn = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    await on_server(server, f"create database {name}")
    await migrate.migrate(Database(dsn, "stepwell"))
    return await make_survey(dsn)


@pytest.fixture
async def alone(survey: Survey) -> AsyncIterator[Session]:
    """A session on the big database, while no other test process uses it."""
    first = await session(survey.dsn)
    await first.connection.execute("set lock_timeout = 0; select pg_advisory_lock(1); reset lock_timeout")
    yield first
    await first.connection.close()


@pytest.fixture
async def another(alone: Session, survey: Survey) -> AsyncIterator[Session]:
    """A second session beside it."""
    second = await session(survey.dsn)
    yield second
    await second.connection.close()
