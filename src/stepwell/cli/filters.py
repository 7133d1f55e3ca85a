"""The filters that lists and bulk commands share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

import click
import msgspec

from stepwell.model.duration import duration
from stepwell.model.errors import InvalidSetting
from stepwell.model.run import Filter
from stepwell.model.states import State

F = TypeVar("F", bound=Callable[..., Any])


def tags_of(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> dict[str, Any] | None:
    """Each is `name=value`; a value that is JSON is taken as such, so that 3 is a number and "3" is text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r}: name=value, as in tenant=acme")
        try:
            found[name] = msgspec.json.decode(value.encode(errors="surrogateescape"))
        except msgspec.DecodeError:
            found[name] = value
    return found or None


def moment(_ctx: click.Context, _param: click.Parameter, value: str | None) -> datetime | None:
    """A time of day with its date, or how long ago."""
    if value is None:
        return None
    try:
        return datetime.fromisoformat(value).astimezone()
    except ValueError:
        pass
    try:
        return datetime.now(UTC) - duration(value, setting="since")
    except InvalidSetting as error:
        raise click.BadParameter(f"{value!r}: how long ago, as in 2h, or a time, as in 2026-11-16T03:00") from error


tag_option = click.option(
    "--tag", "tags", multiple=True, callback=tags_of, metavar="NAME=VALUE", help="May be repeated."
)


def filtered(states: Collection[State], *, error: bool = True) -> Callable[[F], F]:
    """The options of a filter, for runs that may be in these states."""
    allowed = [state.value for state in State if state in states]
    options = [
        click.option("--state", "state", multiple=True, type=click.Choice(allowed), help="May be repeated."),
        click.option("--name", help="Of this definition."),
        click.option("--queue", help="In this queue."),
        click.option("--kind", type=click.Choice(["task", "workflow", "graph"])),
        tag_option,
        click.option("--since", callback=moment, metavar="WHEN", help="Started since: 2h, or 2026-11-16T03:00."),
    ]
    if error:
        options.append(click.option("--error", metavar="TYPE", help="Failed with an error of this type, or code."))

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def filter_of(which: Mapping[str, Any]) -> Filter:
    states = which.get("state") or None
    return Filter(
        states=None if states is None else [State(each) for each in states],
        name=which.get("name"),
        queue=which.get("queue"),
        kind=which.get("kind"),
        tags=which.get("tags"),
        error=which.get("error"),
        since=which.get("since"),
    )


def in_words(which: Mapping[str, Any]) -> str:
    """Say what was asked for, to be read before one agrees."""
    parts = [f"{name} {_word(value)}" for name, value in which.items() if value not in (None, ())]
    return ", ".join(parts) or "every one"


def _word(value: Any) -> str:
    match value:
        case tuple():
            return " or ".join(map(str, value))
        case dict():
            return " ".join(f"{name}={value}" for name, value in value.items())
        case datetime():
            return f"{value.astimezone():%Y-%m-%d %H:%M:%S}"
        case _:
            return str(value)
