from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from stepwell import App, Task
from tests.transactions.drivers import DRIVERS, Driver, opened


@pytest.fixture(params=DRIVERS)
async def driver(request: pytest.FixtureRequest, dsn: str) -> AsyncIterator[Driver]:
    async with opened(request.param, dsn) as driver:
        yield driver


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
def echo(app: App) -> Task[[Any], Any]:
    """Gives what it is given."""

    @app.task(name="echo")
    async def echo(what: Any) -> Any:
        return what

    return echo
