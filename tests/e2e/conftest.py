from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from counting_shop import Shop
from e2e_processes import Hire, Notes, hiring
from proxy import Proxy, proxied

from stepwell import App


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where gates are opened and bodies write that they ran."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def notes(place: Path) -> Notes:
    return Notes(place)


@pytest.fixture
async def hire(dsn: str, place: Path) -> AsyncIterator[Hire]:
    async with hiring(dsn, place) as hire:
        yield hire


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[App]:
    """An app that only starts and asks."""
    async with App(dsn) as app:
        yield app


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture
async def proxy(dsn: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proxy]:
    # A socket's path must be short.
    async with proxied(dsn, tmp_path_factory.mktemp("p")) as proxy:
        yield proxy


@pytest.fixture
def shop(proxy: Proxy) -> Shop:
    return Shop(proxy.dsn)
