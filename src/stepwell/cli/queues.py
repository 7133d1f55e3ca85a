"""`stepwell queues`, and `stepwell queue pause|resume|set`."""

from __future__ import annotations

import getpass
import socket
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import echo_json, local, plain
from stepwell.cli.tables import Heads, echo_table
from stepwell.model.queue import COUNTED, QueueInfo
from stepwell.model.rate import Rate
from stepwell.model.wording import age
from stepwell.operator.queues import QueueVerbs

HEADS = Heads(
    ("queue", "pending", "running", "waits", "concurrency", "rate", "per key", "workers", "paused"),
    least=("waits", "workers", "per key", "rate", "concurrency"),
)


@click.command()
@json_option
@on_database
def queues(*, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """List the queues that have settings or live runs."""
    found = run_async(_all(open_app(dsn, schema, home)))
    if as_json:
        echo_json([plainly(each) for each in found])
    else:
        echo_table(HEADS, [row_of(each) for each in found])


async def _all(app: App) -> list[QueueInfo]:
    async with reached(app):
        return await app.operator.queues.list()


def plainly(info: QueueInfo) -> dict[str, Any]:
    limits = info.limits
    return {
        "name": info.name,
        "pending": info.pending,
        "running": info.running,
        "first_pending": info.first_pending,
        "concurrency": limits.concurrency,
        "rate": None if limits.rate is None else str(limits.rate),
        "per_key": limits.per_key,
        "keep": limits.keep,
        "workers": info.workers,
        "paused_at": info.paused_at,
        "paused_by": info.paused_by,
    }


def row_of(info: QueueInfo) -> tuple[str, ...]:
    limits = info.limits
    waits = "" if info.first_pending is None else age((datetime.now(UTC) - info.first_pending).total_seconds())
    paused = "" if info.paused_at is None else f"since {local(info.paused_at)} by {info.paused_by or 'someone'}"
    return (
        info.name,
        f"{info.pending}+" if info.pending == COUNTED else str(info.pending),
        str(info.running),
        waits,
        *("" if limit is None else str(limit) for limit in (limits.concurrency, limits.rate, limits.per_key)),
        str(info.workers),
        paused,
    )


@click.group()
def queue() -> None:
    """Pause a queue, resume it, or set its limits. It holds for all workers from their next claim on."""


@queue.command()
@click.argument("name")
@json_option
@on_database
def pause(name: str, *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """Claim nothing more from the queue NAME. What is running goes on."""
    info = run_async(_change(open_app(dsn, schema, home), lambda queues: queues.pause(name, by=whoami())))
    since = "" if info.paused_at is None else f" since {local(info.paused_at)} by {info.paused_by}"
    echo_json(plainly(info)) if as_json else click.echo(plain(f"{name} is paused{since}"))


@queue.command()
@click.argument("name")
@json_option
@on_database
def resume(name: str, *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """Claim from the queue NAME again."""
    info = run_async(_change(open_app(dsn, schema, home), lambda queues: queues.resume(name)))
    echo_json(plainly(info)) if as_json else click.echo(plain(f"{name} is claimed from"))


def number(_ctx: click.Context, _param: click.Parameter, value: str | None) -> int | str | None:
    """A whole number, or none for no limit; what is not given is left as it is."""
    if value is None or value.lower() == "none":
        return value and "none"
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise click.BadParameter(f"{value!r}: a number from 1 on, or none for no limit; to stop it, pause it")
    return int(value[:20])  # which is already more than it may be


def rate(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    if value is None or value.lower() == "none":
        return value and "none"
    Rate.of(value)
    return value


@queue.command("set")
@click.argument("name")
@click.option("--concurrency", callback=number, metavar="N|none", help="Runs that may be running at a time.")
@click.option("--rate", callback=rate, metavar="RATE|none", help="Runs that may be begun: 100/s, 500/min, 10/5m.")
@click.option("--per-key", callback=number, metavar="N|none", help="Runs with one limit key that may be running.")
@json_option
@on_database
def set_limits(
    name: str, *, as_json: bool, dsn: str | None, schema: str | None, home: str | None, **limits: int | str | None
) -> None:
    """Limit the queue NAME, on all workers together; none lifts a limit. What is not given stays as it is."""
    given: dict[str, Any] = {
        limit: None if value == "none" else value for limit, value in limits.items() if value is not None
    }
    if not given:
        raise click.UsageError("set what? --concurrency, --rate or --per-key")
    info = run_async(_change(open_app(dsn, schema, home), lambda queues: queues.set(name, **given)))
    if as_json:
        echo_json(plainly(info))
    else:
        echo_table(HEADS, [row_of(info)])


async def _change(app: App, change: Callable[[QueueVerbs], Awaitable[QueueInfo]]) -> QueueInfo:
    async with reached(app):
        return await change(app.operator.queues)


def whoami() -> str:
    """Name the user who does this, for anybody who wonders later."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in many containers
        user = "someone"
    return f"{user}@{socket.gethostname()}"
