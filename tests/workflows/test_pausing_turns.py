"""A workflow that is paused and resumed while a turn of it is under way."""

from __future__ import annotations

import asyncio

from stepwell import App, State, workflow
from tests.workflows.telling import has, reaches


async def test_a_step_held_back_by_a_pause_begins_when_that_is_taken_back_in_the_same_turn(app: App) -> None:
    begun, first, second = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @app.step
    async def slow() -> int:
        begun.set()
        await second.wait()
        return 1

    @app.step
    async def quick() -> int:
        await first.wait()
        return 2

    @app.step
    async def then() -> int:
        return 3

    @app.workflow
    async def work() -> int:
        async def both() -> int:
            return await quick() + await then()

        return sum(await asyncio.gather(slow(), both()))

    async with app.worker():
        run = await work.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await run.pause()
        first.set()
        await has(run, "StepCompleted")  # the turn has heard of the pause: `then` does not begin
        await run.resume()
        second.set()
        assert await run.result(10) == 6


async def test_a_paused_workflow_starts_no_task_though_a_step_of_it_still_runs(app: App) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    @app.step
    async def slow() -> None:
        begun.set()
        await gate.wait()

    @app.task
    async def count(who: str) -> None:
        ran.append(who)

    @app.workflow
    async def work() -> None:
        async def listen() -> None:
            await count(await workflow.signal("who", str))

        await asyncio.gather(slow(), listen())

    @app.workflow
    async def other() -> None:
        await count(await workflow.signal("who", str))

    async with app.worker():
        run, beside = await work.start(), await other.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await run.pause()
        await run.signal("who", "paused")
        await beside.signal("who", "beside")  # heard by the same worker, and later
        await beside.result(10)
        gate.set()
        await reaches(run, State.PAUSED)
        assert ran == ["beside"]
        await run.resume()
        await run.result(10)
        assert ran == ["beside", "paused"]
