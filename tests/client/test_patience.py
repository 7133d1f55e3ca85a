"""A verb outlasts a database that is away, from the moment on at which it is found to be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stepwell import Unavailable
from stepwell.concurrency.retry_unavailable import PATIENCE, patiently


class Line:
    """A line to a database: how long each question waits on it for nothing, until there is an answer."""

    def __init__(self, *silences: float) -> None:
        self.now = 100.0
        self.asked: list[bool] = []
        self._silences = list(silences)

    async def ask(self, again: bool) -> str:
        self.asked.append(again)
        if not self._silences:
            return "answer"
        self.now += self._silences.pop(0)
        raise Unavailable("no answer")


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr("stepwell.concurrency.retry_unavailable.time", clock)
    return clock


async def test_a_first_question_that_waits_for_long_is_asked_again(clock: SimpleNamespace) -> None:
    line = Line(4 * PATIENCE)
    clock.monotonic = lambda: line.now
    assert await patiently(line.ask) == "answer"
    assert line.asked == [False, True]


async def test_it_ends_some_time_after_the_first_failure(clock: SimpleNamespace) -> None:
    line = Line(1.0, PATIENCE / 2, PATIENCE / 2, 1.0)
    clock.monotonic = lambda: line.now
    with pytest.raises(Unavailable):
        await patiently(line.ask)
    assert line.asked == [False, True, True]
