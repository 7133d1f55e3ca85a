"""Workflows of every kind, which end by themselves within a moment."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from stepwell import App, Retry, Run, State, workflow

MOMENT = 0.02
ELSEWHERE = "elsewhere"
"""A queue whose tasks another worker runs."""
NOWHERE = "nowhere"
"""A queue that nobody serves."""


class Kinds:
    def __init__(self, app: App) -> None:
        parts = SimpleNamespace(**_tasks(app), **_steps(app))
        defined = (*_plain(app, parts), *_by_time(app, parts), *_cancelling(app, parts), *_failing(app, parts))
        self.by_name: dict[str, Any] = {each.name: each for each in defined}

    async def through(self, name: str, count: int) -> list[Run[Any]]:
        """So many runs of one kind, to their end."""
        runs: list[Run[Any]] = await self.by_name[name].start_many([()] * count)
        for run in runs:
            await asyncio.gather(run.result(120), return_exceptions=True)
        return runs


def goal(name: str) -> State:
    """Where a run of this kind ends."""
    return State.FAILED if name.startswith("fails") else State.COMPLETED


def _tasks(app: App) -> dict[str, Any]:
    @app.task
    async def task(number: int) -> int:
        await asyncio.sleep(0)
        return number

    @app.task(retry=Retry(attempts=1))
    async def wrong_task() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    @app.task(queue=ELSEWHERE)
    async def task_elsewhere() -> int:
        return 1

    @app.task
    async def endless_task() -> None:
        await asyncio.Event().wait()

    return {"task": task, "wrong_task": wrong_task, "task_elsewhere": task_elsewhere, "endless_task": endless_task}


def _steps(app: App) -> dict[str, Any]:
    @app.step
    async def step(number: int) -> int:
        await asyncio.sleep(0)
        return number

    @app.step(retry=Retry(attempts=1))
    async def wrong_step() -> None:
        raise ValueError("no")

    @app.step(executor="thread")
    def step_in_thread(number: int) -> int:
        return number

    @app.step
    async def endless_step() -> None:
        await asyncio.Event().wait()

    return {"step": step, "wrong_step": wrong_step, "step_in_thread": step_in_thread, "endless_step": endless_step}


def _plain(app: App, parts: Any) -> tuple[Any, ...]:
    @app.workflow(name="steps")
    async def steps() -> int:
        return int(await parts.step(1) + await parts.step_in_thread(2))

    @app.workflow(name="tasks")
    async def tasks() -> None:
        await parts.task(1)
        await asyncio.gather(*(parts.task(number) for number in range(5)))

    @app.workflow(name="a child")
    async def a_child() -> None:
        await tasks()

    @app.workflow(name="tasks of another worker")
    async def tasks_of_another_worker() -> None:
        await asyncio.gather(parts.task_elsewhere(), parts.task(1))

    @app.workflow(name="continues as new")
    async def continues_as_new(left: int = 2) -> None:
        await parts.task(left)
        if left:
            workflow.continue_as_new(left - 1)

    return steps, tasks, a_child, tasks_of_another_worker, continues_as_new


def _by_time(app: App, parts: Any) -> tuple[Any, ...]:
    @app.workflow(name="sleeps")
    async def sleeps() -> None:
        await asyncio.sleep(MOMENT)

    @app.workflow(name="no signal in time")
    async def no_signal_in_time() -> None:
        try:
            await workflow.signal("never", int, timeout=MOMENT)
        except TimeoutError:
            await parts.step(1)

    return sleeps, no_signal_in_time


def _cancelling(app: App, parts: Any) -> tuple[Any, ...]:
    @app.workflow(name="waits for ever")
    async def waits_for_ever() -> None:
        await workflow.signal("never")

    async def out_of_time(call: Any) -> None:
        try:
            async with asyncio.timeout(MOMENT):
                await call
        except TimeoutError:
            await parts.task(1)

    @app.workflow(name="a task out of time")
    async def a_task_out_of_time() -> None:
        await out_of_time(parts.endless_task())

    @app.workflow(name="a step out of time")
    async def a_step_out_of_time() -> None:
        await out_of_time(parts.endless_step())

    @app.workflow(name="a queued task out of time")
    async def a_queued_task_out_of_time() -> None:
        await out_of_time(parts.task_elsewhere.options(queue=NOWHERE)())

    @app.workflow(name="a child out of time")
    async def a_child_out_of_time() -> None:
        await out_of_time(waits_for_ever())

    @app.workflow(name="the first of two")
    async def the_first_of_two() -> None:
        calls = {asyncio.create_task(parts.endless_task()), asyncio.create_task(parts.task(1))}
        _, rest = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
        for each in rest:
            each.cancel()
        await asyncio.gather(*rest, return_exceptions=True)

    return a_task_out_of_time, a_step_out_of_time, a_queued_task_out_of_time, a_child_out_of_time, the_first_of_two


def _failing(app: App, parts: Any) -> tuple[Any, ...]:
    @app.workflow(name="fails by a task")
    async def fails_by_a_task() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(parts.endless_task())
            group.create_task(parts.wrong_task())

    @app.workflow(name="fails by a step")
    async def fails_by_a_step() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(parts.endless_task())
            group.create_task(parts.wrong_step())

    return fails_by_a_task, fails_by_a_step


NAMES = tuple(Kinds(App("postgresql://nobody@nowhere/none")).by_name)
