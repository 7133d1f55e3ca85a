"""Outcomes that the database refuses to record, for a reason that is not in them: each is retried with a growing pause.

The run stays running under its lease meanwhile. The retries end when the outcome is recorded, or its claim is lost.
"""

from __future__ import annotations

import time

from stepwell.model.run import Claim
from stepwell.model.worker import Unrecorded

FIRST, MOST = 0.5, 30.0
"""Seconds until the first retry, and at most."""
TEXT = 500
"""Limit of characters that are kept of a message."""


class Refusals:
    """Outcomes of one worker that the database refused. `told` may be read from any thread."""

    def __init__(self) -> None:
        self._tries: dict[Claim, int] = {}
        self._since = 0.0
        self._why = ""

    def add(self, claim: Claim, error: Exception, *, before: int = 0) -> float:
        """Count a refusal, and return the seconds until the next try. `before` counts refusals that earlier claims may
        have had."""
        if not self._tries:
            self._since = time.monotonic()
        tries = self._tries[claim] = self._tries.get(claim, before) + 1
        self._why = why(error)
        return float(min(FIRST * 2 ** min(tries - 1, 10), MOST))

    def forget(self, claim: Claim) -> None:
        self._tries.pop(claim, None)

    def forget_all(self, claims: list[Claim]) -> None:
        if self._tries:
            for claim in claims:
                self.forget(claim)

    @property
    def told(self) -> Unrecorded | None:
        """The refusals at this moment; None if there are none."""
        count = len(self._tries)
        return Unrecorded(count, time.monotonic() - self._since, self._why) if count else None


def why(error: Exception) -> str:
    """Return the first line of an error. A server's details quote the row, and so the user's input and result."""
    return first_line(type(error).__name__, str(error))


def first_line(name: str, message: str) -> str:
    """Return the first line of an error, given by the name of its type and its text."""
    return f"{name}: {message}".partition("\n")[0][:TEXT]
