"""Sleeping across the ends of workers; timeouts of whole workflows; the time, and chance, as they are told again."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from stepwell import App, RunFailed, State, workflow
from stepwell.testing import Clock
from tests.workflows.telling import has, reaches, types_of


async def test_a_workflow_sleeps_across_the_ends_of_its_workers(app: App) -> None:
    @app.workflow
    async def patient() -> int:
        for _ in range(3):
            await asyncio.sleep(24 * 3600)
        return 3

    clock = Clock(app.dsn)
    run = await patient.start()
    for day in range(3):
        async with app.worker():
            await has(run, "TimerScheduled", day + 1)
            await reaches(run, State.WAITING)
        await clock.skip("1d")
    async with app.worker():
        assert await run.result(10) == 3
    assert await types_of(run) == [
        "WorkflowStarted", *["TimerScheduled", "TimerFired"] * 3, "WorkflowCompleted",
    ]  # fmt: skip


async def test_a_timer_that_is_due_while_no_worker_lives_fires_when_one_comes(app: App) -> None:
    @app.workflow
    async def nap() -> str:
        await asyncio.sleep(60)
        return "awake"

    async with app.worker():
        run = await nap.start()
        await reaches(run, State.WAITING)
    await Clock(app.dsn).skip("1h")
    async with app.worker():
        assert await run.result(10) == "awake"


async def test_sleeping_costs_no_slot(app: App) -> None:
    @app.workflow
    async def nap(n: int) -> int:
        await asyncio.sleep(3600)
        return n

    async with app.worker(slots=2):
        runs = [await nap.start(n) for n in range(20)]
        for run in runs:
            await reaches(run, State.WAITING)
        await Clock(app.dsn).skip("1h")
        assert [await run.result(10) for run in runs] == list(range(20))


async def test_timers_fire_in_the_order_of_their_time(app: App) -> None:
    @app.workflow
    async def race() -> list[int]:
        order: list[int] = []

        async def after(seconds: int) -> None:
            await asyncio.sleep(seconds)
            order.append(seconds)

        await asyncio.gather(*(after(seconds) for seconds in (300, 100, 200)))
        return order

    async with app.worker():
        run = await race.start()
        await reaches(run, State.WAITING)
        await Clock(app.dsn).skip("1h")
        assert await run.result(10) == [100, 200, 300]


async def test_timers_of_one_moment_fire_together(app: App) -> None:
    @app.workflow
    async def nested() -> list[bool]:
        when = asyncio.get_running_loop().time() + 3600
        try:
            async with asyncio.timeout_at(when) as outer, asyncio.timeout_at(when) as inner:
                await asyncio.sleep(7200)
        except TimeoutError:
            pass
        return [outer.expired(), inner.expired()]

    async with app.worker():
        run = await nested.start()
        await reaches(run, State.WAITING)
        await Clock(app.dsn).skip("1h")
        assert await run.result(10) == [True, True]
    fired = [event for event in await run.history() if event.type == "TimerFired"]
    assert [event.data.get("together") for event in fired] == [True, None]


async def test_a_workflow_with_a_timeout_ends_as_timed_out_and_its_children_with_it(app: App) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.task
    async def wait_for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.workflow
    async def inner() -> None:
        await wait_for_ever()

    @app.workflow(timeout="1h")
    async def outer() -> None:
        await inner()

    async with app.worker():
        run = await outer.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await reaches(run, State.WAITING)
        await Clock(app.dsn).skip("1h")
        with pytest.raises(RunFailed) as raised:
            await run.result(10)
        assert raised.value.reason == "timed_out"
        (child,) = await run.children()
        (grandchild,) = await child.children()
        await reaches(child, State.CANCELLED)
        await reaches(grandchild, State.CANCELLED)
        async with asyncio.timeout(30):
            await ended.wait()
    assert (await types_of(run))[-1] == "WorkflowTimedOut"
    assert (await types_of(child))[-1] == "WorkflowCancelled"


@pytest.mark.parametrize("by", ["its worker", "the clock of the database"])
async def test_a_timeout_comes_to_a_workflow_that_is_in_a_turn(app: App, by: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.step
    async def wait_for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.workflow
    async def busy() -> None:
        await wait_for_ever()

    async with app.worker():
        run = await busy.options(timeout=3 if by == "its worker" else "1h").start()
        async with asyncio.timeout(30):
            await begun.wait()
        if by == "the clock of the database":
            await Clock(app.dsn).skip("2h")
        with pytest.raises(RunFailed) as raised:
            await run.result(30)
        assert raised.value.reason == "timed_out"
        async with asyncio.timeout(30):
            await ended.wait()
    assert (await types_of(run))[-1] == "WorkflowTimedOut"


async def test_a_timeout_counts_from_the_start_whether_or_not_anyone_runs_it(app: App) -> None:
    @app.workflow(timeout="1h")
    async def one() -> int:
        return 1

    run = await one.start()
    await Clock(app.dsn).skip("2h")
    async with app.worker():
        with pytest.raises(RunFailed):
            await run.result(10)
    assert (await types_of(run)) == ["WorkflowTimedOut"]


async def test_time_and_chance_are_the_same_when_told_again(app: App) -> None:
    seen: list[list[Any]] = []

    @app.workflow
    async def look() -> list[Any]:
        told: list[Any] = [workflow.now().isoformat(), str(workflow.uuid()), workflow.random.random()]
        await asyncio.sleep(3600)
        told += [workflow.now().isoformat(), str(workflow.uuid()), workflow.random.randint(1, 1000)]
        seen.append(told[:3])
        return told

    async with app.worker():
        run = await look.start()
        await reaches(run, State.WAITING)
    async with app.worker():
        await Clock(app.dsn).skip("1h")
        told = await run.result(10)
    assert seen == [told[:3]]
    before, after = datetime.fromisoformat(told[0]), datetime.fromisoformat(told[3])
    assert timedelta(hours=1) <= after - before < timedelta(hours=1, minutes=1)
    assert told[1] != told[4]
    history = await run.history()
    assert before == history[0].at
    assert after == history[2].at


async def test_two_runs_do_not_share_their_chance(app: App) -> None:
    @app.workflow
    async def throw() -> list[str]:
        return [str(workflow.uuid()), str(workflow.random.random())]

    async with app.worker():
        one, other = await throw.start(), await throw.start()
        assert set(await one.result(10)).isdisjoint(await other.result(10))


async def test_a_workflow_knows_which_run_it_is(app: App) -> None:
    @app.workflow(queue="shop", tags={"tenant": "acme"})
    async def who() -> list[Any]:
        info = workflow.info()
        return [str(info.id), info.name, info.key, info.queue, info.parent_id, dict(info.tags)]

    async with app.worker():
        run = await who.options(key="k").start()
        assert await run.result(10) == [str(run.id), who.name, "k", "shop", None, {"tenant": "acme"}]


async def test_code_knows_whether_it_is_told_again(app: App) -> None:
    said = []

    @app.workflow
    async def greet() -> None:
        if not workflow.replaying:
            said.append("hello")
        await asyncio.sleep(3600)
        if not workflow.replaying:
            said.append("good bye")

    async with app.worker():
        run = await greet.start()
        await reaches(run, State.WAITING)
    async with app.worker():
        await Clock(app.dsn).skip("1h")
        await run.result(10)
    assert said == ["hello", "good bye"]


async def test_an_hour_of_sleep_is_an_hour_whoever_is_asked(app: App) -> None:
    @app.workflow
    async def nap() -> None:
        await asyncio.sleep(3600)

    async with app.worker():
        run = await nap.start()
        await reaches(run, State.WAITING)
        info = await run.info()
        assert info.due_at is not None
        scheduled = (await run.history())[1]
        assert scheduled.type == "TimerScheduled"
        assert datetime.fromisoformat(scheduled.data["when"]) == info.due_at
        assert info.due_at - scheduled.at == timedelta(hours=1)
