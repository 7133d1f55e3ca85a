"""The error behind an error: what went wrong in the task, step or child upon which a workflow failed."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WRAPPERS = frozenset({"stepwell.RunFailed", "stepwell.StepFailed"})
# As the docstrings of RunFailed and StepFailed have it.
_WRAPPED = re.compile(
    r"(?:Step )?(?P<name>\S.*?) (?:of )?[0-9a-f]{8}-[0-9a-f-]{27} failed at attempt \d+ \([a-z_]+\): "
    r"(?P<type>\S+?): (?P<message>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Innermost:
    type: str
    message: str
    name: str | None
    """Of the task, step or child that it happened in; None if it was no other's."""


def innermost(type: str, message: str) -> Innermost:
    """The last error of a chain in which each run failed because of the next."""
    name: str | None = None
    while type in _WRAPPERS and (found := _WRAPPED.fullmatch(message)) is not None:
        name, type, message = found["name"], found["type"], found["message"]
    return Innermost(type, message, name)
