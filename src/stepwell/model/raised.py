"""Exceptions that a task's body raises to choose how its attempt ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stepwell.model.duration import Duration, duration


class Fatal(Exception):
    """Raised by a task: fail now, whatever the retry policy says."""

    # Stored errors and retry policies name an error type by the module from which users import it.
    __module__ = "stepwell"


class RunError(Exception):
    """Raised by a task: fail with a code of the user's own, which retry policies can match."""

    __module__ = "stepwell"

    def __init__(self, message: str = "", *, code: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_run_error, (str(self), self.code)


def _rebuild_run_error(message: str, code: str) -> RunError:
    return RunError(message, code=code)


class Snooze(Exception):
    """Raised by a task: run again after this delay, at least 0.1 seconds. It does not count as a failure."""

    __module__ = "stepwell"

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay: timedelta = duration(delay, setting="Snooze(delay)")


SHORTEST = timedelta(seconds=0.1)
"""The shortest delay between endless attempts: a run without any would keep a slot and the database busy."""


def delay_of(snooze: Snooze) -> timedelta:
    """Return the delay of a raised Snooze, checked again: user code may have changed it, or a subclass may lack it."""
    return max(duration(snooze.delay, setting="Snooze(delay)"), SHORTEST)


def type_name(cls: type) -> str:
    """Return the qualified name by which an exception type is matched; built-in types have no prefix."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
