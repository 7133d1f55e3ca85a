"""Forks of workflows that have runs of their own, and timers that never fire."""

from __future__ import annotations

import asyncio
import math

import pytest

from stepwell import App, RunCancelled, State, workflow
from tests.workflows.telling import has, reaches


async def test_the_end_of_a_fork_leaves_alone_what_its_origin_had_started(app: App) -> None:
    @app.workflow
    async def child() -> int:
        return await workflow.signal("go", int)

    @app.workflow
    async def parent(begun: bool = False) -> None:
        if not begun:
            await child.start()
            workflow.continue_as_new(True)
        await workflow.signal("never")

    async with app.worker():
        run = await parent.start()
        await has(run, "ContinuedAsNew")
        await reaches(run, State.WAITING)
        [mine] = await run.children()
        await reaches(mine, State.WAITING)
        fork = await run.fork(at=len(await run.history()))
        await reaches(fork, State.WAITING)
        await fork.cancel()
        with pytest.raises(RunCancelled):
            await fork.result(10)
        await mine.signal("go", 7)
        assert await mine.result(10) == 7


async def test_what_was_yet_to_begin_begins_at_the_same_time_in_a_fork(app: App) -> None:
    @app.task
    async def later() -> int:
        return 1

    @app.workflow
    async def parent() -> None:
        await later.options(delay="1d").start()
        await workflow.signal("never")

    async with app.worker():
        run = await parent.start()
        await reaches(run, State.WAITING)
        fork = await run.fork(at=len(await run.history()))
        [mine], [other] = await run.children(), await fork.children()
        assert mine != other
        assert (await other.info()).state is State.SCHEDULED
        assert (await other.info()).due_at == (await mine.info()).due_at


@pytest.mark.parametrize("ended", [False, True])
async def test_a_child_started_anew_for_a_fork_has_its_timeout(app: App, ended: bool) -> None:
    @app.workflow(timeout="1h")
    async def child() -> None:
        await workflow.signal("go")

    @app.workflow
    async def parent() -> None:
        await child.start()
        await workflow.signal("never")

    async with app.worker():
        run = await parent.start()
        await reaches(run, State.WAITING)
        at = len(await run.history())
        [mine] = await run.children()
        await reaches(mine, State.WAITING)
        if ended:
            await mine.signal("go")
            await mine.result(10)
        [other] = await (await run.fork(at=at)).children()
        left = (await other.explain()).deadline_at
        assert left is not None
        assert 3590 < (left - (await other.info()).created_at).total_seconds() <= 3600.1


async def test_a_workflow_that_sleeps_for_ever_can_be_forked(app: App) -> None:
    @app.workflow
    async def sleep() -> int:
        for_ever = asyncio.create_task(asyncio.sleep(math.inf))
        answer = await workflow.signal("go", int)
        for_ever.cancel()
        return answer

    async with app.worker():
        run = await sleep.start()
        await reaches(run, State.WAITING)
        fork = await run.fork(at=len(await run.history()))
        await fork.signal("go", 1)
        assert await fork.result(10) == 1
