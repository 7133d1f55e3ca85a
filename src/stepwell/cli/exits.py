"""The end of a command that cannot do what was asked."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import click

from stepwell.cli.printing import plain
from stepwell.model.errors import Unavailable
from stepwell.operator.errors import Exit, codes_of


@dataclass(eq=False)
class DatabaseAway(Unavailable):
    """The database at {place} cannot be reached: {reason}"""

    place: str


def exit_code(error: Exception) -> Exit | None:
    """The exit code of an error we know; None for one that is a mistake of ours."""
    codes = codes_of(error)
    return None if codes is None else codes.exit


def told(error: Exception) -> Exit:
    """Say on stderr what went wrong. What is not in the table keeps its traceback: it is a mistake of ours."""
    code = exit_code(error)
    if code is None:
        raise error
    say(str(error) or type(error).__name__)
    return code


def say(message: str) -> None:
    """A line for the person at the terminal, out of the way of what is piped on."""
    with suppress(OSError):  # nobody reads it any more, and the exit code says it too
        click.echo("stepwell: " + plain(message, keep="\n"), err=True)
