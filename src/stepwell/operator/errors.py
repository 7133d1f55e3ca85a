"""The table of errors: the exit code of a command, and the status of an HTTP answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from stepwell.model.errors import (
    KeyConflict,
    Nondeterminism,
    NotDecodable,
    NotEncodable,
    NotFound,
    RunUnsuccessful,
    SchemaError,
    StateError,
    StepwellError,
    Unavailable,
    UnknownName,
    UpdateRejected,
    UsageError,
)
from stepwell.model.run import Glimpse

SHOWN = 5
"""Runs that the message of an ambiguous id lists."""


@dataclass(eq=False)
class AmbiguousId(UsageError):
    """{beginning!r} is the beginning of more than one id: give more of it."""

    beginning: str
    matches: list[Glimpse]
    """The newest of them: up to five, and one more if there are more."""

    def __str__(self) -> str:
        return super().__str__() + _listed(self.matches)


@dataclass(eq=False)
class WrongInput(UsageError):
    """{name} cannot be called with this input: {reason}"""

    name: str
    reason: str


@dataclass(eq=False)
class NoHistory(UsageError):
    """{path} holds no history that can be read: {reason}"""

    path: str
    reason: str


def _listed(found: Sequence[Glimpse]) -> str:
    lines = [_line(each) for each in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append("  … and more")
    return "".join(f"\n{line}" for line in lines)


def _line(run: Glimpse) -> str:
    name = run.name.replace("\n", "\\n")  # a name must not look like another line
    return f"  {run.id}  {name}  {run.state}  {run.created_at.astimezone():%Y-%m-%d %H:%M:%S}"


class Exit(IntEnum):
    """The exit codes of commands."""

    DONE = 0
    FAILED = 1
    WRONG_USAGE = 2
    NOT_FOUND = 3
    NOT_REACHABLE = 4


@dataclass(frozen=True, slots=True)
class ErrorCodes:
    """The end of a request that raised an error: the exit code of a command, and the status of an HTTP answer."""

    exit: Exit
    http: int


# The first that fits decides.
CODES: tuple[tuple[type[Exception], ErrorCodes], ...] = (
    (NotFound, ErrorCodes(Exit.NOT_FOUND, 404)),
    (UnknownName, ErrorCodes(Exit.WRONG_USAGE, 404)),
    (KeyConflict, ErrorCodes(Exit.WRONG_USAGE, 409)),
    (NotEncodable, ErrorCodes(Exit.WRONG_USAGE, 422)),
    (NotDecodable, ErrorCodes(Exit.WRONG_USAGE, 422)),
    (WrongInput, ErrorCodes(Exit.WRONG_USAGE, 422)),
    (UsageError, ErrorCodes(Exit.WRONG_USAGE, 400)),
    (Unavailable, ErrorCodes(Exit.NOT_REACHABLE, 503)),
    (SchemaError, ErrorCodes(Exit.FAILED, 503)),
    (StateError, ErrorCodes(Exit.FAILED, 409)),
    (RunUnsuccessful, ErrorCodes(Exit.FAILED, 409)),
    (Nondeterminism, ErrorCodes(Exit.FAILED, 409)),
    (UpdateRejected, ErrorCodes(Exit.FAILED, 422)),
    (StepwellError, ErrorCodes(Exit.FAILED, 500)),
    (TimeoutError, ErrorCodes(Exit.FAILED, 503)),
    (OSError, ErrorCodes(Exit.FAILED, 500)),
)


def codes_of(error: Exception) -> ErrorCodes | None:
    """The codes of this error; None for an error that is a bug of ours."""
    return next((codes for kind, codes in CODES if isinstance(error, kind)), None)
