"""`stepwell signal`, `update`, `pause`, `resume` and `fork`: what is asked of one workflow from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

import click
import msgspec

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.exits import say
from stepwell.cli.loading import load_app
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import length, on_database, open_app
from stepwell.cli.printing import echo_json, json_text, plain
from stepwell.cli.queues import whoami
from stepwell.cli.replay import database_of_app
from stepwell.cli.start import Input, input_of
from stepwell.operator.runs import RunVerbs

T = TypeVar("T")


def value_of(_ctx: click.Context, _param: click.Parameter, text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except msgspec.DecodeError as error:
        raise click.BadParameter(f"{text!r} is no JSON ({error}). Text needs quotes of its own: '\"yes\"'") from error


@click.command()
@click.argument("run")
@click.argument("name")
@click.argument("value", metavar="[JSON]", default="null", callback=value_of)
@click.option("--app", "app_reference", metavar="APP", help="Warn if this app's code never mentions NAME.")
@json_option
@on_database
def signal(
    run: str,
    name: str,
    value: Any,
    *,
    app_reference: str | None,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
    home: str | None,
) -> None:
    """Send the signal NAME to a workflow, with a value. It is there, once, when this ends.

    A NAME that looks like a typing error is sent, too, with a warning: the workflow may come to wait for it.
    """
    code = None if app_reference is None else load_app(app_reference)
    app = open_app(dsn, schema, home) if code is None else database_of_app(code, dsn, schema, home)

    known = None if code is None else code.definitions
    sent = run_async(_ask(app, lambda runs: runs.signal(run, name, value, code=known)))
    if sent.doubt is not None:
        say(f"warning: {sent.doubt} It was sent all the same.")
    _say(sent.id, f"signal {name} sent", {"signal": name}, as_json=as_json)


@click.command()
@click.argument("run")
@click.argument("name")
@click.argument("input", nargs=-1, metavar="[JSON]…", callback=input_of)
@click.option(
    "--timeout", callback=length, metavar="DURATION", default="30s", show_default=True, help="How long to wait for it."
)
@json_option
@on_database
def update(
    run: str,
    name: str,
    input: Input,
    *,
    timeout: float,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
    home: str | None,
) -> None:
    """Ask the update NAME of a workflow, and print its answer. Each JSON is an argument; or name=JSON."""
    args, kwargs = input
    app = open_app(dsn, schema, home)
    answer = run_async(_ask(app, lambda runs: runs.update(run, name, *args, timeout=timeout, **kwargs)))
    click.echo(json_text({"update": name, "answer": answer} if as_json else answer))


@click.command()
@click.argument("run")
@json_option
@on_database
def pause(run: str, *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """Let a run rest where it is, until it is resumed. A workflow that is in a turn rests after it."""
    paused = run_async(_ask(open_app(dsn, schema, home), lambda runs: runs.pause(run, by=whoami())))
    _say(paused, "paused", {}, as_json=as_json)


@click.command()
@click.argument("run")
@json_option
@on_database
def resume(run: str, *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """Let a paused run go on."""
    resumed = run_async(_ask(open_app(dsn, schema, home), lambda runs: runs.resume(run)))
    _say(resumed, "resumed", {}, as_json=as_json)


@click.command()
@click.argument("run")
@click.option("--at", type=int, required=True, metavar="N", help="The last event of its history; 0 is the beginning.")
@json_option
@on_database
def fork(run: str, *, at: int, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """Start a new run with the history of a workflow up to the event N, as `stepwell history` numbers them.

    In the middle of what its code did upon one event, it is before that event. Tasks and children that were
    under way there are started anew, timers have what was left of them.
    """
    new = run_async(_ask(open_app(dsn, schema, home), lambda runs: runs.fork(run, at)))
    _say(new.origin, f"forked at event {at} as {new.id}", {"fork": new.id, "at": at}, as_json=as_json)


async def _ask(app: App, ask: Callable[[RunVerbs], Awaitable[T]]) -> T:
    async with reached(app):
        return await ask(app.operator.runs)


def _say(run: UUID, done: str, told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json({"id": run, **told})
    else:
        click.echo(plain(f"{run} {done}"))
