"""`stepwell start`: one run, by name."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click
import msgspec

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.filters import tag_option
from stepwell.cli.loading import NoApp, WrongProject, load_app, named_app
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import length, on_database, open_app
from stepwell.cli.printing import echo_json, facts, json_text
from stepwell.config import Settings
from stepwell.operator.errors import WrongInput

Input = tuple[list[Any], dict[str, Any]]


def input_of(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> Input:
    """Each is one argument, as JSON; or `name=JSON`, which no JSON looks like."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for text in texts:
        name, equals, rest = text.partition("=")
        if equals and name.isidentifier():
            kwargs[name] = _read(rest, text)
        else:
            args.append(_read(text, text))
    return args, kwargs


def _read(text: str, whole: str) -> Any:
    try:
        return msgspec.json.decode(text.encode(errors="surrogateescape"))
    except msgspec.DecodeError as error:
        raise click.BadParameter(
            f"{whole!r} is no JSON ({error}). Text needs quotes of its own: --input '\"ann@example.org\"'"
        ) from error


@click.command()
@click.argument("name")
@click.option("--input", "input", multiple=True, callback=input_of, metavar="JSON", help="An argument; or name=JSON.")
@click.option("--key", help="An idempotency key: the same one again leads to the same run.")
@click.option("--queue")
@click.option("--priority", type=click.IntRange(1, 100), help="Lower goes first.")
@click.option("--delay", callback=length, metavar="DURATION", help="Not before, as in 5m.")
@click.option("--unique", is_flag=True, help="While a run of NAME with this input is unfinished, lead there.")
@click.option(
    "--unique-by", metavar="TEXT", help="While a run of NAME that is unique by this text is unfinished, lead there."
)
@tag_option
@click.option("--app", "app_reference", metavar="APP", help="Use this app's definition: its queue, retries, checks.")
@click.option("--wait", is_flag=True, help="Wait for it to finish, and print its result.")
@json_option
@on_database
def start(
    name: str,
    *,
    input: Input,
    unique: bool,
    unique_by: str | None,
    app_reference: str | None,
    wait: bool,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
    home: str | None,
    **options: Any,
) -> None:
    """Start a run of NAME and print its id."""
    if app_reference is None:
        app = open_app(dsn, schema, home)
        if not (dsn or schema or home):
            app = _app_that_knows(name, app.settings) or app
    elif dsn or schema or home:
        raise click.UsageError("--app brings its own database: leave out --dsn, --schema and --home")
    else:
        app = load_app(app_reference)
        app.definitions.named(name)
    options["unique"] = unique_by or unique or None
    given = {option: value for option, value in options.items() if value is not None}
    run_async(_start(app, name, input, given, wait=wait, as_json=as_json))


def _app_that_knows(name: str, found: Settings) -> App | None:
    """The app that is named, if it has this definition and works on this database."""
    if (named := named_app()) is None:
        return None
    # One that cannot be loaded has been told of, unless the database was given by hand.
    with suppress(NoApp, WrongProject):
        app = named.load()
        same = (app.settings.dsn, app.settings.schema, app.settings.home) == (found.dsn, found.schema, found.home)
        return app if same and app.definitions.get(name) is not None else None
    return None


async def _start(app: App, name: str, input: Input, options: dict[str, Any], *, wait: bool, as_json: bool) -> None:
    async with reached(app):
        runs = app.operator.runs
        try:
            started = await runs.start(name, *input, **options)
        except WrongInput as error:
            raise click.UsageError(f"{error.reason}. Each --input is one argument; or name=JSON") from None
        if not wait:
            echo_json({"id": started.id, "key": started.key}) if as_json else click.echo(started.id)
            return
        click.echo(started.id, err=True)
        result = await runs.result(started.id)
        click.echo(json_text(facts(await runs.info(started.id)) if as_json else result))
