"""What a task's body raises to say how its attempt ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from stepwell.model.duration import Duration, duration


class Fatal(Exception):
    """Raised by a task: fail now, whatever the retry policy says."""

    # Stored errors and retry policies name the types as users import them.
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
    """Raised by a task: not now, again after this long, and at least 0.1 seconds. Counts as no failure."""

    __module__ = "stepwell"

    def __init__(self, delay: Duration) -> None:
        super().__init__(delay)
        self.delay: timedelta = duration(delay, setting="Snooze(delay)")


SHORTEST = timedelta(seconds=0.1)
"""Between attempts of which there is no end: a run that asks for none would keep a slot and the database busy."""


def delay_of(snooze: Snooze) -> timedelta:
    """The delay when it was raised: anyone may have changed it, and a subclass of the user's may have none."""
    return max(duration(snooze.delay, setting="Snooze(delay)"), SHORTEST)


def type_name(cls: type) -> str:
    """The qualified name an exception type is matched by; built-in ones have no prefix."""
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
