"""What a worker lets go of is freed at once: circles would stay until the collector comes, and that is seldom."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepwell import App
from stepwell.model.states import State
from tests.waiting_for import until

FEW = 20


@asynccontextmanager
async def found(names: set[str]) -> AsyncIterator[Counter[str]]:
    """Which objects of these classes only the collector would have freed, at the end of the block."""
    left: Counter[str] = Counter()
    gc.collect()
    gc.disable()
    try:
        yield left
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left.update(name for each in gc.garbage if (name := type(each).__name__) in names)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


class Shapes:
    def __init__(self, app: App) -> None:
        @app.step
        async def step(number: int) -> None:
            await asyncio.sleep(0)

        @app.task(timeout="1m", heartbeat="1m")
        async def task(number: int) -> None:
            await asyncio.sleep(0)

        @app.workflow(name="tests.steps")
        async def steps() -> None:
            for number in range(3):
                await step(number)

        @app.workflow(name="tests.tasks")
        async def tasks() -> None:
            for number in range(3):
                await task(number)

        @app.workflow(name="tests.fan")
        async def fan() -> None:
            await asyncio.gather(*(task(number) for number in range(5)))

        @app.workflow(name="tests.group")
        async def group() -> None:
            async with asyncio.TaskGroup() as all_of_them:
                all_of_them.create_task(step(1))
                all_of_them.create_task(tasks())

        @app.workflow(name="tests.asleep")
        async def asleep() -> None:
            await asyncio.sleep(86_400)

        self.by_name: dict[str, Any] = {"steps": steps, "tasks": tasks, "fan": fan, "group": group, "asleep": asleep}
        self.by_name["task"] = task


@pytest.mark.parametrize("shape", ["steps", "tasks", "fan", "group", "asleep", "task"])
async def test_what_a_worker_lets_go_of_waits_for_no_collection(app: App, shape: str) -> None:
    definition = Shapes(app).by_name[shape]
    calls = [(0,) if shape == "task" else ()] * FEW
    goal = State.WAITING if shape == "asleep" else State.COMPLETED

    async def through(worker: Any) -> None:
        runs = await definition.start_many(calls)

        async def are_through() -> bool:
            is_at_rest = not worker._turns._under_way and not worker._ledger.known
            return is_at_rest and all([(await run.info()).state is goal for run in runs])

        await until(are_through)

    async with app, app.worker() as worker:
        await through(worker)
        async with found({"Turn", "Replay", "Loop", "RunningAttempt", "Claim", "Advance", "Draft", "CallTask"}) as left:
            await through(worker)
    assert left == {}
