"""What a workflow is told when something happens is what it is told of it in every replay."""

from __future__ import annotations

from typing import Any, TypedDict

import pytest

from stepwell import App, State, workflow
from tests.workflows.telling import has, reaches


class Prices(TypedDict):
    zebra: int
    ant: int


@pytest.mark.parametrize("who", ["step", "task", "child"])
async def test_a_result_has_its_keys_in_the_same_order_when_it_is_told_again(app: App, who: str) -> None:
    def prices() -> dict[str, int]:
        return {"zebra": 1, "ant": 2, "élan": 3, "bee": 4, "": 5}

    @app.step
    async def step() -> dict[str, int]:
        return prices()

    @app.task
    async def task() -> dict[str, int]:
        return prices()

    @app.workflow
    async def child() -> dict[str, int]:
        return prices()

    @app.task
    async def buy(what: str) -> str:
        return what

    @app.workflow
    async def shopping() -> dict[str, str]:
        wanted = await {"step": step, "task": task, "child": child}[who]()
        bought = {what: await buy(what) for what in wanted}
        await workflow.signal("end")
        return bought

    async with app.worker():
        run = await shopping.start()
        await has(run, "TaskCompleted", 6 if who == "task" else 5)
        await reaches(run, State.WAITING)
    async with app.worker():  # which tells it again
        await run.signal("end")
        assert await run.result(10) == {what: what for what in prices()}


async def test_every_kind_of_result_is_the_same_when_it_is_told_again(app: App) -> None:
    told: list[str] = []

    @app.step
    async def anything() -> Any:
        return [-0.0, 1e16, 1e22, 5e-324, 1e-7, 2**70, "é\u2028\x01", {"bb": [{"b": 1, "a": -0.0}], "a": 2}, 100.0]

    @app.step
    async def nought() -> float:
        return -0.0

    @app.step
    async def typed() -> Prices:
        return {"zebra": 1, "ant": 2}

    @app.step
    async def nested() -> dict[str, dict[int, float]]:
        return {"bb": {10: 1.5, 9: -0.0}, "a": {}}

    @app.workflow
    async def ask() -> None:
        told.append(repr([await anything(), await nought(), await typed(), await nested()]))
        await workflow.signal("end")

    async with app.worker():
        run = await ask.start()
        await reaches(run, State.WAITING)
    async with app.worker():
        await run.signal("end")
        await run.result(10)
    assert len(told) == 2
    assert told[0] == told[1]
