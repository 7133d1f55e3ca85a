"""Pause and resume, new code under running histories, and beginning anew."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from stepwell import AlreadyFinished, App, NotFound, State, WrongUse, workflow
from stepwell.testing import Clock
from tests.waiting_for import until
from tests.workflows.telling import has, reaches, types_of

# -- pause


async def test_a_waiting_workflow_rests_and_what_arrives_meanwhile_is_kept(app: App) -> None:
    @app.workflow
    async def collect() -> list[int]:
        return [await workflow.signal("n", int) for _ in range(3)]

    async with app.worker():
        run = await collect.start()
        await reaches(run, State.WAITING)
        await run.pause()
        await run.pause()
        for n in range(3):
            await run.signal("n", n)
        assert (await run.info()).state is State.PAUSED
        assert (await types_of(run)) == ["WorkflowStarted"]
        await run.resume()
        assert await run.result(10) == [0, 1, 2]


async def test_a_workflow_is_paused_before_its_first_turn(app: App) -> None:
    @app.workflow
    async def one() -> int:
        return 1

    run = await one.start()
    await run.pause()
    async with app.worker():
        other = await one.start()
        assert await other.result(10) == 1
        assert (await run.info()).state is State.PAUSED
        await run.resume()
        assert await run.result(10) == 1
        with pytest.raises(AlreadyFinished):
            await run.pause()
        with pytest.raises(AlreadyFinished):
            await run.resume()


async def test_a_workflow_in_a_turn_rests_after_it(app: App) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.step
    async def hold() -> int:
        begun.set()
        await gate.wait()
        return 1

    @app.workflow
    async def work() -> int:
        return await hold() + await workflow.signal("n", int)

    async with app.worker():
        run = await work.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await run.pause()
        gate.set()
        await reaches(run, State.PAUSED)
        await run.signal("n", 2)
        await run.resume()
        assert await run.result(10) == 3


async def test_a_workflow_in_the_midst_of_many_steps_rests_soon(app: App) -> None:
    begun, gate, ran = asyncio.Event(), asyncio.Event(), []

    @app.step
    async def step(n: int) -> int:
        ran.append(n)
        if n == 3:
            begun.set()
            await gate.wait()
        return n

    @app.workflow
    async def work() -> list[int]:
        return [await step(n) for n in range(100)]

    async with app.worker():
        run = await work.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await run.pause()
        gate.set()
        await reaches(run, State.PAUSED)
        assert len(ran) < 10
        await run.resume()
        assert await run.result(10) == list(range(100))
    assert ran == list(range(100))


async def test_a_pause_taken_back_in_the_same_turn_is_none(app: App) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.step
    async def hold() -> int:
        begun.set()
        await gate.wait()
        return 1

    @app.workflow
    async def work() -> int:
        await hold()
        return await workflow.signal("n", int)

    async with app.worker():
        run = await work.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await run.pause()
        await run.resume()
        gate.set()
        await reaches(run, State.WAITING)
        await run.signal("n", 3)
        assert await run.result(10) == 3


async def test_a_timer_that_is_due_during_a_pause_fires_after_it(app: App) -> None:
    @app.workflow
    async def nap() -> str:
        await asyncio.sleep(3600)
        return "awake"

    async with app.worker():
        run = await nap.start()
        await reaches(run, State.WAITING)
        await run.pause()
        await Clock(app.dsn).skip("2h")
        assert (await run.info()).state is State.PAUSED
        await run.resume()
        assert await run.result(10) == "awake"


async def test_a_workflow_resumed_before_its_timer_is_due_waits_for_it(app: App) -> None:
    @app.workflow
    async def nap() -> str:
        await asyncio.sleep(3600)
        return "awake"

    async with app.worker():
        run = await nap.start()
        await reaches(run, State.WAITING)
        await run.pause()
        await run.resume()
        await reaches(run, State.WAITING)
        await Clock(app.dsn).skip("1h")
        assert await run.result(10) == "awake"


async def test_the_end_of_a_child_during_a_pause_is_kept(app: App) -> None:
    gate = asyncio.Event()

    @app.task
    async def one() -> int:
        await gate.wait()
        return 1

    @app.workflow
    async def work() -> int:
        return await one()

    async with app.worker():
        run = await work.start()
        await has(run, "TaskScheduled")
        await reaches(run, State.WAITING)
        await run.pause()
        (child,) = await run.children()
        gate.set()
        assert await child.result(10) == 1
        assert (await run.info()).state is State.PAUSED
        await run.resume()
        assert await run.result(10) == 1


async def test_a_paused_workflow_can_be_cancelled(app: App) -> None:
    @app.workflow
    async def work() -> None:
        await workflow.signal("never")

    async with app.worker():
        run = await work.start()
        await reaches(run, State.WAITING)
        await run.pause()
        await run.cancel()
        await run.resume()
        await reaches(run, State.CANCELLED)


async def test_what_cannot_be_paused_says_why(app: App) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.task
    async def hold() -> None:
        begun.set()
        await gate.wait()

    with pytest.raises(NotFound):
        await app.run(uuid4()).pause()
    async with app.worker():
        run = await hold.start()
        async with asyncio.timeout(30):
            await begun.wait()
        with pytest.raises(WrongUse, match="is running"):
            await run.pause()
        gate.set()
        await run.result(10)


# -- new code


def versions(dsn: str, *bodies: Callable[[], Awaitable[Any]]) -> list[App]:
    """An app for each of these, which all of them know as `work`."""
    apps = [App(dsn, lease=5, migrate=False) for _ in bodies]
    for app, body in zip(apps, bodies, strict=True):
        app.workflow(name="work")(body)  # type: ignore[arg-type]  # coroutine functions
    return apps


async def test_patched_code_goes_the_new_way_only_for_those_who_had_not_come_there(app: App, dsn: str) -> None:
    @app.step(name="old_tax")
    async def old_tax() -> str:
        return "old"

    @app.step(name="new_tax")
    async def new_tax() -> str:
        return "new"

    async def first() -> list[str]:
        taxes = [await old_tax()]
        await workflow.signal("go")
        return [*taxes, await old_tax()]

    async def second() -> list[str]:
        taxes = [await (new_tax if workflow.patched("new-tax") else old_tax)()]
        await workflow.signal("go")
        return [*taxes, await (new_tax if workflow.patched("newer-tax") else old_tax)()]

    old, new = versions(dsn, first, second)
    async with old, old.worker():
        before = await old.start("work")
        await reaches(before, State.WAITING)
    async with new, new.worker():
        after = await new.start("work")
        await reaches(after, State.WAITING)
        for run in (before, after):
            await new.run(run.id).signal("go")
        assert await new.run(before.id).result(10) == ["old", "new"]
        assert await new.run(after.id).result(10) == ["new", "new"]
    # Told again, from the very first event, by a worker that never saw them.
    assert [event.data["name"] for event in await app.run(after.id).history() if event.type == "VersionMarked"] == [
        "new-tax", "newer-tax",
    ]  # fmt: skip


async def test_code_that_does_not_fit_makes_its_runs_wait_until_fitting_code_comes(app: App, dsn: str) -> None:
    @app.step(name="one")
    async def one() -> int:
        return 1

    @app.step(name="two")
    async def two() -> int:
        return 2

    async def fits() -> int:
        got = await one()
        await workflow.signal("go")
        return got

    async def does_not() -> int:
        got = await two()
        await workflow.signal("go")
        return got

    good, bad = versions(dsn, fits, does_not)
    async with good, good.worker():
        run = await good.start("work")
        await reaches(run, State.WAITING)
    await app.run(run.id).signal("go")
    seen = app.run(run.id)
    async with bad, bad.worker():

        async def blocked() -> bool:
            return "does not fit" in str(await seen.explain())

        await until(blocked)
        assert (await seen.info()).state is State.WAITING
        await seen.signal("go", "again")
        assert (await seen.info()).state is State.WAITING
    async with good, good.worker():
        assert await good.run(run.id).result(10) == 1


# -- continue as new


async def test_a_workflow_begins_anew_fifty_times_as_the_same_run(app: App) -> None:
    @app.step
    async def add(n: int) -> int:
        return n + 1

    @app.workflow
    async def count(n: int, to: int) -> int:
        n = await add(n)
        workflow.publish(n)
        if n < to:
            workflow.continue_as_new(n, to=to)
        return n

    async with app.worker():
        run = await count.start(0, 50)
        assert await run.result(30) == 50
        assert await run.state(int) == 50
    types = await types_of(run)
    assert (types.count("ContinuedAsNew"), types.count("StepCompleted")) == (49, 50)


async def test_signals_that_nobody_had_waited_for_go_on_with_it_in_their_order(app: App) -> None:
    @app.workflow
    async def collect(came: list[int], to: int) -> list[int]:
        came = [*came, await workflow.signal("n", int)]
        if len(came) < to:
            workflow.continue_as_new(came, to)
        return came

    run = await collect.start([], 20)
    for n in range(10):
        await run.signal("n", n)
    async with app.worker():
        for n in range(10, 20):
            await run.signal("n", n)
        assert await run.result(20) == list(range(20))


async def test_signals_sent_while_it_begins_anew_are_not_lost(app: App) -> None:
    @app.workflow
    async def collect(came: list[int], to: int) -> list[int]:
        for _ in range(3):
            came = [*came, await workflow.signal("n", int)]
            if len(came) == to:
                return came
        workflow.continue_as_new(came, to)

    async with app.worker():
        run = await collect.start([], 200)
        for first in range(0, 200, 20):
            await asyncio.gather(*(run.signal("n", n) for n in range(first, first + 20)))
        assert sorted(await run.result(20)) == list(range(200))


async def test_a_child_that_ends_after_its_parent_began_anew_is_not_mistaken_for_another(app: App) -> None:
    gates = {"old": asyncio.Event(), "new": asyncio.Event()}

    @app.task
    async def wait(which: str) -> str:
        await gates[which].wait()
        return which

    @app.workflow
    async def work(which: str) -> str:
        run = await wait.start(which)
        if which == "old":
            workflow.continue_as_new("new")
        return await run.result()

    async with app.worker():
        run = await work.start("old")
        await has(run, "TaskScheduled", 2)
        old, _new = await run.children()
        gates["old"].set()
        assert await old.result(10) == "old"
        gates["new"].set()
        assert await run.result(10) == "new"


async def test_what_it_awaited_ends_when_it_begins_anew(app: App) -> None:
    ended = asyncio.Event()

    @app.task
    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.workflow
    async def work(again: bool) -> str:
        if not again:
            return "anew"
        waiting = asyncio.create_task(wait_for_ever())
        await workflow.signal("go")
        assert not waiting.done()
        workflow.continue_as_new(False)

    async with app.worker():
        run = await work.start(True)
        (child,) = await until(run.children)
        await reaches(child, State.RUNNING)
        await run.signal("go")
        assert await run.result(10) == "anew"
        await reaches(child, State.CANCELLED)
        async with asyncio.timeout(30):
            await ended.wait()


async def test_a_worker_that_takes_over_replays_only_what_came_since(app: App, sql: asyncpg.Connection[Any]) -> None:
    @app.step
    async def one() -> int:
        return 1

    @app.workflow
    async def work(n: int) -> int:
        for _ in range(5):
            await one()
        if n < 5:
            workflow.continue_as_new(n + 1)
        await workflow.signal("go")
        return n

    async with app.worker():
        run = await work.start(0)
        await reaches(run, State.WAITING)
    kept_from = await sql.fetchval("select history_from from stepwell.runs where id = $1", run.id)
    history = await run.history()
    assert history[kept_from - 1].type == "ContinuedAsNew"
    assert len(history) - kept_from == 5
    await run.signal("go")
    async with app.worker():
        assert await run.result(10) == 5
