"""`stepwell signal`, `update`, `pause`, `resume` and `fork`: what is asked of one workflow from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

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
from stepwell.cli.run_named import run_named
from stepwell.cli.start import Input, input_of
from stepwell.client.client import Client
from stepwell.definitions.run import Run
from stepwell.definitions.workflow import Workflow
from stepwell.model.run import Waits
from stepwell.model.wording import near

Ask = Callable[[Run[Any]], Awaitable[Any]]


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

    async def send(run: Run[Any]) -> str | None:
        doubt = await _doubt(app, run, name, code)
        await run.signal(name, value)
        return doubt

    asked, doubt = run_async(_ask(app, run, send))
    if doubt is not None:
        say(f"warning: {doubt} It was sent all the same.")
    _say(asked, f"signal {name} sent", {"signal": name}, as_json=as_json)


async def _doubt(app: App, run: Run[Any], name: str, code: App | None) -> str | None:
    """Why nobody may wait for a signal of this name: by the code, where it is given, or by what the run waits for."""
    info = await run.info()
    known = None if code is None else code.definitions.get(info.name)
    if isinstance(known, Workflow) and known.mentions is not None:
        return known.mentions.doubt(info.name, name)
    waits = (await cast(Client, app.door).waits([info.id])).get(info.id, Waits())
    meant = None if name in waits.signals else near(name, waits.signals)
    return None if meant is None else f"{info.name} waits for the signal {meant!r}, and not for {name!r}: a typo?"


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
    _, answer = run_async(
        _ask(open_app(dsn, schema, home), run, lambda run: run.update(name, *args, timeout=timeout, **kwargs))
    )
    click.echo(json_text({"update": name, "answer": answer} if as_json else answer))


@click.command()
@click.argument("run")
@json_option
@on_database
def pause(run: str, *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """Let a run rest where it is, until it is resumed. A workflow that is in a turn rests after it."""
    asked = run_async(_ask(open_app(dsn, schema, home), run, lambda run: run.pause(by=whoami())))
    _say(asked[0], "paused", {}, as_json=as_json)


@click.command()
@click.argument("run")
@json_option
@on_database
def resume(run: str, *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """Let a paused run go on."""
    asked = run_async(_ask(open_app(dsn, schema, home), run, lambda run: run.resume()))
    _say(asked[0], "resumed", {}, as_json=as_json)


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
    origin, new = run_async(_ask(open_app(dsn, schema, home), run, lambda run: run.fork(at)))
    _say(origin, f"forked at event {at} as {new.id}", {"fork": new.id, "at": at}, as_json=as_json)


async def _ask(app: App, name: str, ask: Ask) -> tuple[Run[Any], Any]:
    async with reached(app):
        run = await run_named(app, name)
        answer = await ask(run)
        return run, answer


def _say(run: Run[Any], done: str, told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        echo_json({"id": run.id, **told})
    else:
        click.echo(plain(f"{run.id} {done}"))
