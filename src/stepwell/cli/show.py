"""`stepwell show`: one run, and every attempt at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import coloured, echo_json, facts, json_text, local, plain
from stepwell.model.run import Attempt, Error, RunInfo


@click.command()
@click.argument("run")
@json_option
@on_database
def show(run: str, *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """Show a run, named by its id or key, with its attempts and their errors."""
    info, attempts = run_async(_ask(open_app(dsn, schema, home), run))
    if as_json:
        echo_json({**facts(info), "attempts": [facts(attempt) for attempt in attempts]})
        return
    for field, value in _fields(info):
        click.echo(f"{field:<9} {coloured(plain(value))}")
    for attempt in attempts:
        _show_attempt(attempt)


async def _ask(app: App, name: str) -> tuple[RunInfo, list[Attempt]]:
    async with reached(app):
        run = app.run(name)
        return await run.info(), await run.attempts()


def _fields(info: RunInfo) -> Iterator[tuple[str, str]]:
    """What there is to say, in the order in which one asks."""
    yield "run", str(info.id)
    yield "name", info.name
    yield "state", info.state
    yield "queue", f"{info.queue}, priority {info.priority}"
    optional: dict[str, Any] = {"key": info.key, "retry of": info.retry_of, "parent": info.parent_id}
    yield from ((name, str(value)) for name, value in optional.items() if value is not None)
    if info.tags:
        yield "tags", json_text(info.tags)
    yield "input", json_text(info.input)
    if info.state == "completed":
        yield "result", json_text(info.result)
    moments = {"created": info.created_at, "due": info.due_at, "expires": info.expires_at, "finished": info.finished_at}
    yield from ((name, local(moment)) for name, moment in moments.items() if moment is not None)
    yield "attempts", f"{info.attempt}, of which {info.failures} failed"


def _show_attempt(attempt: Attempt) -> None:
    took = ""
    if attempt.ended_at is not None:
        took = f" after {(attempt.ended_at - attempt.started_at).total_seconds():.2f} s"
    click.echo(f"\nattempt {attempt.attempt}: {coloured(plain(attempt.outcome))}{took}, {local(attempt.started_at)}")
    click.echo(f"  worker {attempt.worker}")
    if attempt.error is not None:
        _show_error(attempt.error)


def _show_error(error: Error) -> None:
    code = "" if error.code is None else f", code {error.code}"
    click.echo(plain(f"  {error.type}: {error.message} ({error.reason.value}{code})"))
    for line in (error.traceback or "").splitlines():
        click.echo(f"  │ {plain(line)}")
