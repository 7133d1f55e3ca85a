"""A signal that was accepted before its timeout, in a turn that has not heard of it."""

from __future__ import annotations

import asyncio

import pytest

from stepwell import App, workflow
from stepwell.worker.turns import children, run_turn
from stepwell.worker.turns.turns import Turns
from tests.waiting_for import until


async def test_a_signal_accepted_in_time_wins_though_no_word_of_it_came(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turns, "heard", lambda self, ids: None)
    monkeypatch.setattr(children, "HOLD", 10.0)
    monkeypatch.setattr(run_turn, "LOOK", 10.0)
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.step
    async def hold() -> None:
        begun.set()
        await gate.wait()

    @app.workflow
    async def wait() -> str:
        holding = asyncio.create_task(hold())
        try:
            answer = await workflow.signal("answer", str, timeout=3)  # less than a turn waits for a word
        except TimeoutError:
            answer = "too late"
        await holding
        return answer

    async with app.worker():
        run = await wait.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await run.signal("answer", "in time")

        async def has_gone_on() -> bool:
            return len(await run.history()) > 2

        await until(has_gone_on)
        gate.set()
        assert await run.result(10) == "in time"
