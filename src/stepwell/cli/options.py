"""The options that several commands share, and how their values are read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from stepwell.app import App
from stepwell.cli.connection import say_if_new
from stepwell.config import settings
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


def on_database(command: F) -> F:
    """The flags that say which database. What they leave open is in the environment, or embedded."""
    for option in (
        click.option("--home", metavar="DIR", help="Where the embedded database lives."),
        click.option("--schema", help="The schema the tables are in."),
        click.option("--dsn", help="postgresql://… of the database; better in STEPWELL_DSN, out of `ps`."),
    ):
        command = option(command)
    return command


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def open_app(dsn: str | None, schema: str | None, home: str | None) -> App:
    """An app to ask through. Only an embedded database is migrated on the way: another is not ours to change."""
    found = settings(dsn, home=home, schema=schema)
    say_if_new(found)
    return App(dsn, home=home, schema=schema, migrate=found.dsn is None)
