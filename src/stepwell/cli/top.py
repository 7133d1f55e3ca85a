"""`stepwell top`: queues, workers, what is running and how fast it goes, kept up to date."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from stepwell.app import App
from stepwell.cli import queues as queue_tables
from stepwell.cli import workers as worker_tables
from stepwell.cli.connection import reached
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import length, on_database, open_app
from stepwell.cli.printing import echo_json, nth_try
from stepwell.cli.screen import follow, follow_as_json, until_interrupted
from stepwell.cli.tables import Heads, drawn
from stepwell.model.wording import age
from stepwell.operator.statistics import FinishRate, Overview

if TYPE_CHECKING:
    from rich.console import Group

EVERY = "2s"
HEADS = Heads(("run", "name", "queue", "attempt", "for", "worker"), least=("attempt", "queue", "worker"))


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot of what is shown."""

    now: Overview
    finishes: float | None
    """Per second; nothing at the first look."""


@click.command()
@click.option("--once", is_flag=True, help="Look once, and end.")
@click.option("--every", callback=length, default=EVERY, show_default=True, metavar="DURATION")
@json_option
@on_database
def top(*, once: bool, every: float, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> int:
    """Show queues, workers, rates and what runs for the longest, until Ctrl-C."""
    return until_interrupted(_show(open_app(dsn, schema, home), once=once, every=max(every, 0.1), as_json=as_json))


async def _show(app: App, *, once: bool, every: float, as_json: bool) -> None:
    async with reached(app):
        rate = FinishRate()

        async def look() -> Seen:
            now = await app.operator.statistics.overview()
            return Seen(now, rate.after(now.finishes))

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


def plainly(seen: Seen) -> dict[str, Any]:
    return {
        "queues": [queue_tables.plainly(each) for each in seen.now.queues],
        "workers": [worker_tables.plainly(each) for each in seen.now.workers],
        "running": seen.now.running,
        "starts_per_second": seen.now.starts_per_second,
        "claims_per_second": seen.now.claims_per_second,
        "finishes_per_second": seen.finishes,
    }


def _drawn(seen: Seen) -> Group:
    from rich.console import Group
    from rich.text import Text

    pending, running = (sum(getattr(each, what) for each in seen.now.queues) for what in ("pending", "running"))
    slots = sum(each.slots for each in seen.now.workers)
    head = (
        f"{datetime.now(UTC).astimezone():%H:%M:%S}  {pending:,} pending  {running:,} running in {slots:,} slots  "
        f"{seen.now.starts_per_second:,.1f} starts/s  {seen.now.claims_per_second:,.1f} claims/s"
        + ("" if seen.finishes is None else f"  {seen.finishes:,.1f} finishes/s")
    )
    return Group(
        Text(head, style="bold"),
        drawn(queue_tables.HEADS, [queue_tables.row_of(each) for each in seen.now.queues], title="queues"),
        drawn(worker_tables.HEADS, [worker_tables.row_of(each) for each in seen.now.workers], title="workers"),
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
                for each in seen.now.running
            ],
            title="running for the longest",
        ),
    )
