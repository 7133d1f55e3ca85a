"""The big database, made by the first test process that needs it and shared by all."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterator

import msgspec
import pytest
from plan_reading import Session
from plan_survey import Survey, drop, make_survey, session


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
            found.write_bytes(msgspec.json.encode(asyncio.run(make_survey(server))))
        survey = msgspec.json.decode(found.read_bytes(), type=Survey)
        fcntl.flock(making, fcntl.LOCK_UN)
        yield survey
        fcntl.flock(making, fcntl.LOCK_EX)
        try:
            fcntl.flock(using, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        found.unlink()
        asyncio.run(drop(server, survey.dsn))


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
