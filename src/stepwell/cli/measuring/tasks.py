"""The two tasks that are measured: one that does nothing, and one that says when it began."""

from __future__ import annotations

import time
from dataclasses import dataclass

from stepwell.app import App
from stepwell.definitions.definition import Task

NOOP, PROBE = "bench.noop", "bench.probe"
TO = "someone@example.org"
TEXT = "a hundred bytes of input or so, as in real life, a line of it"


@dataclass(frozen=True, slots=True)
class Tasks:
    noop: Task[[str, int, str], None]
    probe: Task[[str, int, str], float]


async def noop(to: str, number: int, text: str) -> None:
    return None


async def probe(to: str, number: int, text: str) -> float:
    """Return when the body began, by the clock that all processes of a machine share."""
    return time.monotonic()


def define(app: App) -> Tasks:
    return Tasks(app.task(name=NOOP)(noop), app.task(name=PROBE)(probe))
