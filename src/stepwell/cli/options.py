"""The options that several commands share, and how their values are read."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import click

from stepwell.app import App
from stepwell.cli.connection import EMBEDDED
from stepwell.cli.loading import named_app
from stepwell.config import Settings, settings
from stepwell.model.duration import duration
from stepwell.model.errors import InvalidSetting

F = TypeVar("F", bound=Callable[..., Any])


def length(_ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """A duration: a number of seconds, or text such as 5m."""
    if value is None:
        return None
    try:
        seconds: float | str = float(value)
    except ValueError:
        seconds = value
    try:
        return duration(seconds, setting=param.human_readable_name).total_seconds()
    except InvalidSetting as error:
        raise click.BadParameter(f"{value!r}: {error.reason}") from error


def names(_ctx: click.Context, _param: click.Parameter, value: str | None) -> tuple[str, ...] | None:
    """Names, with commas between them."""
    if value is None:
        return None
    found = tuple(name.strip() for name in value.split(","))
    if not all(found):
        raise click.BadParameter(f"{value!r}: names with commas between them, as in mail,reports")
    return found


def _remember(context: click.Context, _param: click.Parameter, value: bool) -> None:
    context.meta[EMBEDDED] = value


may_be_embedded = click.option(
    "--embedded",
    is_flag=True,
    expose_value=False,
    callback=_remember,
    help="Make an embedded database where there is none and none is named.",
)


def on_database(command: F) -> F:
    """The flags that say which database. What they leave open is in the environment, the app, or embedded."""
    for option in (
        may_be_embedded,
        click.option("--home", metavar="DIR", help="Where the embedded database lives."),
        click.option("--schema", help="The schema the tables are in."),
        click.option("--dsn", help="postgresql://… of the database; better in STEPWELL_DSN, out of `ps`."),
    ):
        command = option(command)
    return command


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def chosen(dsn: str | None, schema: str | None, home: str | None) -> Settings:
    """The settings of a command: of its flags, else of the environment, else of the app that is named.

    The app is loaded only for what is still open, so that a command with a DSN works where the app does not.
    """
    found = settings(dsn, home=home, schema=schema)
    is_said = schema or os.environ.get("STEPWELL_SCHEMA")
    if dsn or home or (found.dsn and is_said) or (named := named_app()) is None:
        return found
    of_app = named.load().settings
    if found.dsn is None:
        found = replace(of_app, schema=found.schema)
    return found if is_said else replace(found, schema=of_app.schema)


def open_app(dsn: str | None, schema: str | None, home: str | None) -> App:
    """An app to ask through. Only an embedded database is migrated on the way: another is not ours to change."""
    found = chosen(dsn, schema, home)
    return App(
        found.dsn, home=found.home, schema=found.schema, pooler=found.pooler, migrate=found.dsn is None
    )  # fmt: skip
