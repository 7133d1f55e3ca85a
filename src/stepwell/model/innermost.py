"""The root error of a failed workflow: the error of the task, step or child that made it fail."""

from __future__ import annotations

import re
from dataclasses import dataclass

_WRAPPERS = frozenset({"stepwell.RunFailed", "stepwell.StepFailed"})
# The format of the messages in the docstrings of RunFailed and StepFailed.
_WRAPPED = re.compile(
    r"(?:Step )?(?P<name>\S.*?) (?:of )?[0-9a-f]{8}-[0-9a-f-]{27} failed at attempt \d+ \([a-z_]+\): "
    r"(?P<type>\S+?): (?P<message>.*)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Innermost:
    """The root error of a chain."""

    type: str
    message: str
    name: str | None
    """The task, step or child that raised the error; None if the run itself did."""


def innermost(type: str, message: str) -> Innermost:
    """Return the last error of a chain in which each run failed because of the next."""
    name: str | None = None
    while type in _WRAPPERS and (found := _WRAPPED.fullmatch(message)) is not None:
        name, type, message = found["name"], found["type"], found["message"]
    return Innermost(type, message, name)
