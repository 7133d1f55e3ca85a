"""A worker whose event loop stands still says so, and where."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from stepwell import App
from stepwell.telemetry import log
from stepwell.worker import loop_watchdog
from tests.waiting_for import until


class Hearing(logging.Handler):
    """Sets an event at the first line that has these words: from whichever thread."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self._words = words
        self.heard = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if self._words in record.getMessage():
            self.heard.set()


@pytest.fixture
def still() -> Iterator[Hearing]:
    hearing = Hearing("in spin")
    log.addHandler(hearing)
    yield hearing
    log.removeHandler(hearing)


@pytest.mark.parametrize("kind", ["workflow", "task"])
async def test_code_that_never_comes_back_to_the_loop_is_told_with_its_line(
    dsn: str, still: Hearing, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(loop_watchdog, "STILL", 0.5)
    app = App(dsn=dsn, lease="1s")

    async def spin() -> bool:
        return still.heard.wait(20)  # the loop stands here until that is logged

    body = app.workflow(spin) if kind == "workflow" else app.task(spin)
    async with app, app.worker():
        assert await (await body.start()).result(30)

        async def goes_on() -> bool:
            return any("goes on, after" in line for line in still.lines)

        await until(goes_on)
    assert any("has stood still" in line and "test_pulse.py" in line and "in spin" in line for line in still.lines)
