"""`stepwell workers`: who is there to do the work, and who was."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import echo_json, size
from stepwell.cli.tables import Heads, echo_table
from stepwell.model.wording import age
from stepwell.model.worker import WorkerInfo

HEADS = Heads(
    ("worker", "state", "queues", "running", "slots", "claims/s", "cpu", "memory", "lease", "host", "pid", "version"),
    least=("version", "pid", "host", "slots", "queues", "lease"),
)


@click.command()
@click.option("--live", is_flag=True, help="Leave out those that left or were lost in the last day.")
@json_option
@on_database
def workers(*, live: bool, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """List workers: live ones first, then those that left or were lost in the last day."""
    shown = run_async(_all(open_app(dsn, schema, home), live=live))
    if as_json:
        echo_json([plainly(each) for each in shown])
    else:
        echo_table(HEADS, [row_of(each) for each in shown])


async def _all(app: App, *, live: bool) -> list[WorkerInfo]:
    async with reached(app):
        return await app.operator.workers.list(live=live)


def plainly(info: WorkerInfo) -> dict[str, Any]:
    told = asdict(info)
    return told | {
        "lease_left": info.lease_left.total_seconds(),
        "claims_per_second": info.claims_per_second,
    }


def row_of(info: WorkerInfo) -> tuple[str, ...]:
    newest = info.samples[0] if info.samples else None
    claims = info.claims_per_second
    left = info.lease_left.total_seconds()
    return (
        info.name,
        info.state,
        "all" if info.queues is None else ",".join(info.queues),
        str(info.running),
        str(info.slots),
        "" if claims is None else f"{claims:.1f}",
        "" if newest is None else f"{newest.cpu:.2f}",
        "" if newest is None else size(newest.memory),
        age(left) if info.state == "live" else f"ended {age(-left)} ago",
        info.host,
        str(info.pid),
        info.version,
    )
