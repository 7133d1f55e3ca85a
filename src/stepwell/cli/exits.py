"""How a command ends when it cannot do what was asked: one table from error to exit code."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum

import asyncpg
import click

from stepwell.cli.printing import plain
from stepwell.model.errors import NotFound, StepwellError, Unavailable, UsageError


class Exit(IntEnum):
    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    NOT_FOUND = 3
    NOT_REACHABLE = 4


@dataclass(eq=False)
class DatabaseAway(StepwellError):
    """The database at {place} cannot be reached: {reason}"""

    place: str
    reason: str


# The first that fits decides.
EXITS: tuple[tuple[type[Exception], Exit], ...] = (
    (NotFound, Exit.NOT_FOUND),
    (UsageError, Exit.WRONG_USAGE),
    (DatabaseAway, Exit.NOT_REACHABLE),
    (Unavailable, Exit.NOT_REACHABLE),
    (asyncpg.InvalidAuthorizationSpecificationError, Exit.NOT_REACHABLE),
    (asyncpg.InvalidCatalogNameError, Exit.NOT_REACHABLE),
    (StepwellError, Exit.FAILED),
    (TimeoutError, Exit.FAILED),
    (OSError, Exit.FAILED),
)


def exit_code(error: Exception) -> Exit | None:
    """The exit code of an error we know; None for one that is a mistake of ours."""
    return next((code for kind, code in EXITS if isinstance(error, kind)), None)


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
