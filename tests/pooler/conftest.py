"""transaction   a PgBouncer that lends each of two sessions for a transaction: `transaction(dsn)` leads through it
session       one that lends whole sessions
pooled        the test's own database, through the first
"""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Iterator

import pytest

from stepwell import App
from tests.pooler.bouncer import Bouncer, bouncing
from tests.pooler.bringing import HOW_TO, NotThere, Program, pgbouncer


@pytest.fixture(scope="session")
def program() -> Program:
    try:
        program = pgbouncer()
        program.version()
    except (NotThere, OSError, subprocess.SubprocessError) as error:
        pytest.fail(HOW_TO.format(why=error), pytrace=False)
    return program


@pytest.fixture(scope="session")
def transaction(program: Program, server: str) -> Iterator[Bouncer]:
    with bouncing(program, server, mode="transaction") as bouncer:
        yield bouncer


@pytest.fixture
def session(program: Program, server: str) -> Iterator[Bouncer]:
    with bouncing(program, server, mode="session", default_pool_size=30) as bouncer:
        yield bouncer


@pytest.fixture
def pooled(transaction: Bouncer, dsn: str) -> str:
    return transaction(dsn)


@pytest.fixture
async def app(pooled: str) -> AsyncIterator[App]:
    """An open app that has only the pooler."""
    async with App(pooled, lease=5) as app:
        yield app
