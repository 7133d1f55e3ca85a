"""Every way to have a transaction of one's own, behind one face. Blocking ones keep to a thread of their own, as in a
web server: the same for all their statements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import django
import psycopg
import psycopg2
import sqlalchemy
from django.conf import settings
from django.db import connection, connections, transaction
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from stepwell import Run

T = TypeVar("T")

if not settings.configured:
    settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres"}})
    django.setup()


class Driver:
    """One connection of the user's, and the verbs of a transaction on it."""

    tx: Any

    async def open(self, dsn: str) -> None: ...
    async def begin(self) -> None: ...
    async def execute(self, sql: str) -> None: ...
    async def commit(self) -> None: ...
    async def roll_back(self) -> None: ...
    async def close(self) -> None: ...

    async def start(self, task: Any, *args: Any, **options: Any) -> Run[Any]:
        run: Run[Any] = await task.options(tx=self.tx, **options).start(*args)
        return run

    async def start_many(self, task: Any, calls: Sequence[Any]) -> list[Run[Any]]:
        runs: list[Run[Any]] = await task.options(tx=self.tx).start_many(calls)
        return runs

    async def cancel(self, run: Run[Any]) -> None:
        await run.cancel(tx=self.tx)


class Asyncpg(Driver):
    async def open(self, dsn: str) -> None:
        self.tx = await asyncpg.connect(dsn)

    async def begin(self) -> None:
        self._transaction = self.tx.transaction()
        await self._transaction.start()

    async def execute(self, sql: str) -> None:
        await self.tx.execute(sql)

    async def commit(self) -> None:
        await self._transaction.commit()

    async def roll_back(self) -> None:
        await self._transaction.rollback()

    async def close(self) -> None:
        await self.tx.close()


class AsyncpgPool(Asyncpg):
    async def open(self, dsn: str) -> None:
        self._pool = await asyncpg.create_pool(dsn, min_size=1)
        self.tx = await self._pool.acquire()

    async def close(self) -> None:
        await self._pool.release(self.tx)
        await self._pool.close()


class PsycopgAsync(Driver):
    async def open(self, dsn: str) -> None:
        self.tx = await psycopg.AsyncConnection.connect(dsn)

    async def execute(self, sql: str) -> None:
        await self.tx.execute(sql)

    async def commit(self) -> None:
        await self.tx.commit()

    async def roll_back(self) -> None:
        await self.tx.rollback()

    async def close(self) -> None:
        await self.tx.close()


class AlchemyAsync(Driver):
    async def open(self, dsn: str) -> None:
        self._engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: asyncpg.connect(dsn))
        self.tx = AsyncConnection(self._engine)
        await self.tx.start()

    async def execute(self, sql: str) -> None:
        await self.tx.execute(sqlalchemy.text(sql))

    async def commit(self) -> None:
        await self.tx.commit()

    async def roll_back(self) -> None:
        await self.tx.rollback()

    async def close(self) -> None:
        await self.tx.close()
        await self._engine.dispose()


class AlchemyAsyncSession(AlchemyAsync):
    async def open(self, dsn: str) -> None:
        self._engine = create_async_engine(
            "postgresql+psycopg://", async_creator=lambda: psycopg.AsyncConnection.connect(dsn)
        )
        self.tx = AsyncSession(self._engine)


class Blocking(Driver):
    """Its verbs are called in its own thread."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    async def there(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def connect(self, dsn: str) -> Any: ...

    async def open(self, dsn: str) -> None:
        self.tx = await self.there(lambda: self.connect(dsn))

    def say(self, sql: str) -> None:
        with self.tx.cursor() as cursor:
            cursor.execute(sql)

    async def execute(self, sql: str) -> None:
        await self.there(lambda: self.say(sql))

    async def commit(self) -> None:
        await self.there(lambda: self.tx.commit())

    async def roll_back(self) -> None:
        await self.there(lambda: self.tx.rollback())

    async def close(self) -> None:
        await self.there(lambda: self.tx.close())
        self._thread.shutdown()

    async def start(self, task: Any, *args: Any, **options: Any) -> Run[Any]:
        run: Run[Any] = (await self.there(lambda: task.options(tx=self.tx, **options).sync.start(*args)))._run
        return run

    async def start_many(self, task: Any, calls: Sequence[Any]) -> list[Run[Any]]:
        return [run._run for run in await self.there(lambda: task.options(tx=self.tx).sync.start_many(calls))]

    async def cancel(self, run: Run[Any]) -> None:
        await self.there(lambda: run.sync.cancel(tx=self.tx))


class Psycopg(Blocking):
    def connect(self, dsn: str) -> Any:
        return psycopg.connect(dsn)


class Psycopg2(Blocking):
    def connect(self, dsn: str) -> Any:
        return psycopg2.connect(plain(dsn))


class Alchemy(Blocking):
    def connect(self, dsn: str) -> Any:
        self._engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(dsn))
        return self._engine.connect()

    def say(self, sql: str) -> None:
        self.tx.execute(sqlalchemy.text(sql))

    async def close(self) -> None:
        await self.there(lambda: self.tx.close())
        await self.there(lambda: self._engine.dispose())
        self._thread.shutdown()


class AlchemySession(Alchemy):
    def connect(self, dsn: str) -> Any:
        self._engine = sqlalchemy.create_engine("postgresql+psycopg2://", creator=lambda: psycopg2.connect(plain(dsn)))
        return Session(self._engine)


class Django(Blocking):
    """In `transaction.atomic()`."""

    def connect(self, dsn: str) -> Any:
        at = conninfo_to_dict(plain(dsn))
        connections.settings["default"] |= {
            "NAME": at["dbname"], "USER": at.get("user", ""), "PASSWORD": at.get("password", ""),
            "HOST": at.get("host", ""), "PORT": at.get("port", ""),
        }  # fmt: skip
        return connection

    async def begin(self) -> None:
        self._atomic = transaction.atomic()
        await self.there(self._atomic.__enter__)

    async def commit(self) -> None:
        await self.there(lambda: self._atomic.__exit__(None, None, None))

    async def roll_back(self) -> None:
        await self.there(lambda: self._atomic.__exit__(ValueError, ValueError(), None))


def plain(dsn: str) -> str:
    """The DSN as libpq spells it: the host may be a directory."""
    return make_conninfo(dsn)


DRIVERS: dict[str, type[Driver]] = {
    "asyncpg": Asyncpg,
    "asyncpg's pool": AsyncpgPool,
    "psycopg": Psycopg,
    "psycopg, async": PsycopgAsync,
    "psycopg2": Psycopg2,
    "SQLAlchemy": Alchemy,
    "SQLAlchemy's session": AlchemySession,
    "SQLAlchemy, async": AlchemyAsync,
    "SQLAlchemy's session, async": AlchemyAsyncSession,
    "Django": Django,
}


@asynccontextmanager
async def opened(name: str, dsn: str) -> AsyncIterator[Driver]:
    driver = DRIVERS[name]()
    await driver.open(dsn)
    try:
        yield driver
    finally:
        await driver.close()
