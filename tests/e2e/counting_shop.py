"""An app behind the proxy whose bodies count how often they ran, and what the tables must say of it in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import asyncpg

from stepwell import App, Fatal, Retry, Run, Snooze, current

Sql: TypeAlias = "asyncpg.Connection[Any]"


class Shop:
    """An app behind the proxy, whose bodies count how often they ran."""

    def __init__(self, dsn: str) -> None:
        self.app = App(dsn, lease=5)
        self.ran: list[tuple[str, int]] = []
        self.lost: list[Any] = []
        self.gate = asyncio.Event()
        self.app.telemetry.listen(self._told)
        for body in (self.add, self.flaky, self.fatal, self.snoozing, self.wait):
            self.app.task(name=body.__name__, retry=Retry(attempts=3, delay=0.01))(_plain(body))

    def _told(self, name: str, facts: dict[str, Any]) -> None:
        if name == "worker.settled":
            self.lost += facts["lost"]

    def _ran(self) -> None:
        self.ran.append((str(current.run_id), current.attempt))

    async def add(self, n: int) -> int:
        self._ran()
        return n + 1

    async def flaky(self, n: int) -> int:
        self._ran()
        if current.attempt == 1:
            raise ValueError("once")
        return n + 1

    async def fatal(self, n: int) -> int:
        self._ran()
        raise Fatal("no")

    async def snoozing(self, n: int) -> int:
        self._ran()
        if current.attempt == 1:
            raise Snooze(0.01)
        return n + 1

    async def wait(self, n: int) -> int:
        self._ran()
        await self.gate.wait()
        return n + 1


def _plain(method: Callable[[int], Awaitable[int]]) -> Callable[[int], Awaitable[int]]:
    """A task is a function: this one calls the method."""

    async def body(n: int) -> int:
        return await method(n)

    return body


async def finished_once(sql: Sql, *runs: Run[Any]) -> None:
    """Each of these runs, and nothing else, is recorded as finished, and each of them once."""
    rows = await sql.fetch("select id from stepwell.finished_runs order by id")
    assert [row["id"] for row in rows] == sorted(run.id for run in runs)
    assert await sql.fetchval("select count(*) from stepwell.runs") == 0


async def no_statement_runs(sql: Sql) -> bool:
    asked = """select count(*) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid() and state <> 'idle'"""
    return await sql.fetchval(asked) == 0
