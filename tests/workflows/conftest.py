from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[asyncpg.Connection[Any]]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()
