"""`stepwell top`: queues, workers, what is running and how fast it goes, kept up to date."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from stepwell.app import App
from stepwell.cli import queues as queue_tables
from stepwell.cli import workers as worker_tables
from stepwell.cli.connection import reached
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import length, on_database, open_app
from stepwell.cli.printing import age, echo_json, nth_try
from stepwell.cli.screen import follow, follow_as_json, until_interrupted
from stepwell.cli.tables import Heads, drawn
from stepwell.model.queue import QueueInfo
from stepwell.model.worker import WorkerInfo
from stepwell.store.pool import Database

if TYPE_CHECKING:
    from rich.console import Group

EVERY = "2s"
LATELY = timedelta(seconds=10)
MOST_STARTS = 100_000
"""Starts of the last seconds that are counted; of more it says no more than this."""
HEADS = Heads(("run", "name", "queue", "attempt", "for", "worker"), least=("attempt", "queue", "worker"))
SHOWN = 10
"""Runs that are shown: those that run for the longest."""


@dataclass(frozen=True, slots=True)
class Running:
    id: UUID
    name: str
    kind: str
    queue: str
    attempt: int
    seconds: float
    worker: str | None


@dataclass(frozen=True, slots=True)
class Seen:
    queues: list[QueueInfo]
    workers: list[WorkerInfo]
    """The live ones."""
    running: list[Running]
    starts: float
    """Per second."""
    finishes: float | None
    """Per second; nothing at the first look."""

    @property
    def claims(self) -> float:
        """Per second, of all workers that have told it."""
        return sum(each.claims_per_second or 0.0 for each in self.workers)


@click.command()
@click.option("--once", is_flag=True, help="Look once, and end.")
@click.option("--every", callback=length, default=EVERY, show_default=True, metavar="DURATION")
@json_option
@on_database
def top(*, once: bool, every: float, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> int:
    """Show queues, workers, rates and what runs for the longest, until Ctrl-C."""
    return until_interrupted(_show(open_app(dsn, schema, home), once=once, every=max(every, 0.1), as_json=as_json))


async def _show(app: App, *, once: bool, every: float, as_json: bool) -> None:
    async with reached(app), _beside(app) as database:
        finishes = Finishes(database)

        async def look() -> Seen:
            return await _look(app, database, finishes)

        async def look_plainly() -> dict[str, Any]:
            return plainly(await look())

        if as_json and once:
            echo_json(await look_plainly())
        elif as_json:
            await follow_as_json(look_plainly, every=every)
        elif once:
            from rich.console import Console

            Console().print(_drawn(await look()))
        else:
            await follow(look, _drawn, every=every)


@asynccontextmanager
async def _beside(app: App) -> AsyncIterator[Database]:
    database = Database(app.dsn, app.settings.schema, size=1, pooler=app.settings.pooler)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


class Finishes:
    """How many runs finish per second, by what the server has counted from look to look."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._looks: deque[tuple[float, int]] = deque()

    async def per_second(self) -> float | None:
        (row,) = await self._database.rows("finishes_so_far")
        looks, now = self._looks, row["at"]
        looks.append((now, row["runs"]))
        while len(looks) > 2 and looks[1][0] <= now - LATELY.total_seconds():
            looks.popleft()
        since, before = looks[0]
        # A day that was dropped since takes its count along.
        return None if len(looks) == 1 else max(0.0, (row["runs"] - before) / (now - since))


async def _look(app: App, database: Database, finishes: Finishes) -> Seen:
    (started,) = await database.rows("starts_lately", since=LATELY, most=MOST_STARTS)
    return Seen(
        queues=await app.queues(),
        workers=[each for each in await app.workers() if each.state == "live"],
        running=[Running(**dict(row)) for row in await database.rows("longest_running", limit=SHOWN)],
        starts=started["runs"] / LATELY.total_seconds(),
        finishes=await finishes.per_second(),
    )


def plainly(seen: Seen) -> dict[str, Any]:
    return {
        "queues": [queue_tables.plainly(each) for each in seen.queues],
        "workers": [worker_tables.plainly(each) for each in seen.workers],
        "running": seen.running,
        "starts_per_second": seen.starts,
        "claims_per_second": seen.claims,
        "finishes_per_second": seen.finishes,
    }


def _drawn(seen: Seen) -> Group:
    from rich.console import Group
    from rich.text import Text

    pending, running = (sum(getattr(each, what) for each in seen.queues) for what in ("pending", "running"))
    slots = sum(each.slots for each in seen.workers)
    head = (
        f"{datetime.now(UTC).astimezone():%H:%M:%S}  {pending:,} pending  {running:,} running in {slots:,} slots  "
        f"{seen.starts:,.1f} starts/s  {seen.claims:,.1f} claims/s"
        + ("" if seen.finishes is None else f"  {seen.finishes:,.1f} finishes/s")
    )
    return Group(
        Text(head, style="bold"),
        drawn(queue_tables.HEADS, [queue_tables.row_of(each) for each in seen.queues], title="queues"),
        drawn(worker_tables.HEADS, [worker_tables.row_of(each) for each in seen.workers], title="workers"),
        drawn(
            HEADS,
            [
                (
                    str(each.id),
                    each.name,
                    each.queue,
                    nth_try(each.kind, each.attempt),
                    age(each.seconds),
                    each.worker or "gone",
                )
                for each in seen.running
            ],
            title="running for the longest",
        ),
    )
