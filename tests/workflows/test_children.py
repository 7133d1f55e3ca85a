"""Tasks and child workflows: awaited, or started and awaited later."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import App, NotDurable, Retry, RunFailed, State, current, workflow
from stepwell.testing import Clock
from tests.workflows.telling import has, reaches, types_of


async def test_a_task_is_a_run_of_its_own_on_any_worker(app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def calc(x: int) -> int:
        return await add(await add(x, 1), b=10)

    async with app.worker():
        run = await calc.start(1)
        assert await run.result(10) == 12
    assert await types_of(run) == [
        "WorkflowStarted", "TaskScheduled", "TaskCompleted", "TaskScheduled", "TaskCompleted", "WorkflowCompleted",
    ]  # fmt: skip
    children = await run.children()
    infos = [await child.info() for child in children]
    assert [(info.name, info.state, info.result, info.parent_id, info.root_id) for info in infos] == [
        (add.name, State.COMPLETED, 2, run.id, run.id),
        (add.name, State.COMPLETED, 12, run.id, run.id),
    ]
    scheduled = (await run.history())[1]
    assert scheduled.data["takes"] == ["a", "b"]
    assert scheduled.data["run"] == str(children[0].id)


async def test_a_task_in_a_workflow_has_all_the_options_of_a_task(app: App) -> None:
    tries = []

    @app.task
    async def flaky() -> tuple[str, int]:
        tries.append(current.attempt)
        if len(tries) < 4:
            raise ConnectionError("not yet")
        return str(current.tags["tenant"]), current.attempt

    @app.workflow
    async def ask() -> tuple[str, int]:
        retry = Retry(attempts=4, delay=0.01)
        return await flaky.options(queue="slow", priority=7, retry=retry, tags={"tenant": "acme"})()

    async with app.worker(queues=["default"]):
        run = await ask.start()
        await has(run, "TaskScheduled")
        (child,) = await run.children()
        info = await child.info()
        assert (info.queue, info.priority, info.state) == ("slow", 7, State.PENDING)
        await reaches(run, State.WAITING)
        async with app.worker(queues=["slow"]):
            assert await run.result(10) == ("acme", 4)
    assert tries == [1, 2, 3, 4]
    assert (await types_of(run)).count("TaskCompleted") == 1


async def test_a_delayed_task_begins_later(app: App) -> None:
    @app.task
    async def one() -> int:
        return 1

    @app.workflow
    async def later() -> int:
        return await one.options(delay="1h")()

    async with app.worker():
        run = await later.start()
        await has(run, "TaskScheduled")
        (child,) = await run.children()
        assert (await child.info()).state is State.SCHEDULED
        await Clock(app.dsn).skip("1h")
        assert await run.result(10) == 1


async def test_a_task_that_fails_raises_run_failed_in_its_workflow(app: App) -> None:
    @app.task(retry=Retry(attempts=2, delay=0))
    async def refuse(why: str) -> None:
        raise ValueError(why)

    @app.workflow
    async def ask() -> tuple[str, str, int]:
        try:
            await refuse("no")
        except RunFailed as error:
            return error.type, error.message, error.attempt
        raise AssertionError

    async with app.worker():
        run = await ask.start()
        assert await run.result(10) == ("ValueError", "no", 2)
    assert await types_of(run) == ["WorkflowStarted", "TaskScheduled", "TaskFailed", "WorkflowCompleted"]


async def test_a_task_that_is_cancelled_or_expired_says_so_in_its_workflow(app: App) -> None:
    @app.task(queue="nobody")
    async def one() -> int:
        return 1

    @app.workflow
    async def ask() -> list[str]:
        ends = await asyncio.gather(one(), one.options(expires="1h")(), return_exceptions=True)
        return [type(end).__name__ for end in ends]

    async with app.worker(queues=["default"]):
        run = await ask.start()
        await has(run, "TaskScheduled", 2)
        first, _ = await run.children()
        await first.cancel()
        await has(run, "TaskFailed")
        await Clock(app.dsn).skip("1h")
        assert await run.result(10) == ["RunCancelled", "RunExpired"]


async def test_a_task_given_up_is_cancelled(app: App) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.task
    async def wait_for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(3600):
                await wait_for_ever()
        except TimeoutError:
            return "went on"
        return "?"

    async with app.worker():
        run = await impatient.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await Clock(app.dsn).skip("1h")
        assert await run.result(10) == "went on"
        async with asyncio.timeout(30):
            await ended.wait()
        (child,) = await run.children()
        assert (await child.info()).state is State.CANCELLED
    types = await types_of(run)
    assert types == [
        "WorkflowStarted", "TimerScheduled", "TaskScheduled", "TimerFired", "TaskCancelled", "WorkflowCompleted",
    ]  # fmt: skip


async def test_a_child_workflow_gives_its_result(app: App) -> None:
    @app.step
    async def double(x: int) -> int:
        return 2 * x

    @app.workflow
    async def inner(x: int) -> int:
        await asyncio.sleep(0.01)
        return await double(x)

    @app.workflow
    async def outer(x: int) -> list[int]:
        return list(await asyncio.gather(*(inner(n) for n in range(x))))

    async with app.worker():
        run = await outer.start(5)
        assert await run.result(10) == [0, 2, 4, 6, 8]
    assert [(await child.info()).kind for child in await run.children()] == ["workflow"] * 5
    assert (await types_of(run)).count("ChildCompleted") == 5


async def test_a_child_workflow_that_fails_is_cancelled_or_expired_says_so(app: App) -> None:
    @app.workflow
    async def failing() -> None:
        raise LookupError("nothing there")

    @app.workflow
    async def sleeping() -> None:
        await asyncio.sleep(1_000_000)

    @app.workflow
    async def outer() -> list[str]:
        calls = (failing(), sleeping(), sleeping.options(queue="nobody", expires="1h")())
        ends = await asyncio.gather(*calls, return_exceptions=True)
        failed = ends[0]
        assert isinstance(failed, RunFailed)
        return [failed.type, failed.message, *(type(end).__name__ for end in ends)]

    async with app.worker(queues=["default"]):
        run = await outer.start()
        await has(run, "ChildFailed")
        _, second, _ = await run.children()
        await reaches(second, State.WAITING)
        await second.cancel()
        await has(run, "ChildFailed", 2)
        await Clock(app.dsn).skip("1h")
        assert await run.result(10) == ["LookupError", "nothing there", "RunFailed", "RunCancelled", "RunExpired"]


async def test_a_run_started_in_a_workflow_is_awaited_later(app: App) -> None:
    gate, begun = asyncio.Event(), asyncio.Event()

    @app.task
    async def add(a: int, b: int) -> int:
        begun.set()
        await gate.wait()
        return a + b

    @app.step
    async def let_go() -> None:
        gate.set()

    @app.step
    async def wait_for_the_begin() -> None:
        await begun.wait()

    @app.workflow
    async def ask() -> tuple[int, str]:
        run = await add.start(1, 2)
        await wait_for_the_begin()
        await let_go()
        return await run.result(), str(run.id)

    async with app.worker():
        run = await ask.start()
        result, child_id = await run.result(10)
        (child,) = await run.children()
        assert (result, child_id) == (3, str(child.id))
    types = await types_of(run)
    assert types.index("TaskScheduled") < types.index("StepCompleted") < types.index("TaskCompleted")


async def test_many_runs_are_started_in_a_workflow_at_once(app: App) -> None:
    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @app.workflow
    async def ask() -> list[int]:
        runs = await double.start_many([(n,) for n in range(10)])
        return [await run.result() for run in reversed(runs)]

    async with app.worker():
        assert await (await ask.start()).result(10) == list(range(18, -1, -2))


async def test_a_child_workflow_may_be_started_and_awaited_more_than_once(app: App) -> None:
    @app.workflow
    async def inner(x: int) -> int:
        await asyncio.sleep(0.01)
        if x < 0:
            raise ValueError("less than nothing")
        return x

    @app.workflow
    async def outer() -> list[Any]:
        good, bad = await inner.start(5), await inner.start(-1)
        twice = await asyncio.gather(good.result(), good.result(), bad.result(), return_exceptions=True)
        return [end if isinstance(end, int) else type(end).__name__ for end in twice]

    async with app.worker():
        assert await (await outer.start()).result(10) == [5, 5, "RunFailed"]


async def test_to_stop_waiting_for_a_started_run_does_not_cancel_it(app: App) -> None:
    gate = asyncio.Event()

    @app.task
    async def wait() -> int:
        await gate.wait()
        return 7

    @app.workflow
    async def ask() -> list[Any]:
        run = await wait.start()
        try:
            await run.result(timeout=0.05)
        except TimeoutError:
            first = "not yet"
        else:
            first = "?"
        return [first, await run.result()]

    async with app.worker():
        run = await ask.start()
        await has(run, "TimerFired")
        gate.set()
        assert await run.result(10) == ["not yet", 7]
    assert "TaskCancelled" not in await types_of(run)


async def test_a_started_run_outlives_a_workflow_that_does_not_wait_for_it(app: App) -> None:
    gate = asyncio.Event()

    @app.task
    async def wait() -> int:
        await gate.wait()
        return 7

    @app.workflow
    async def ask() -> str:
        return str((await wait.start()).id)

    async with app.worker():
        run = await ask.start()
        child = app.run(await run.result(10))
        assert (await child.info()).state in (State.PENDING, State.RUNNING)
        gate.set()
        assert await child.result(10) == 7


async def test_a_started_run_that_ends_by_chance_later_is_no_nondeterminism_when_told_again(app: App) -> None:
    """Its end is recorded though nobody waits for it yet; a worker that replays finds it where it was."""

    @app.task
    async def one() -> int:
        return 1

    @app.workflow
    async def ask() -> int:
        run = await one.start()
        await asyncio.sleep(3600)
        return await run.result()

    async with app.worker():
        run = await ask.start()
        await has(run, "TaskCompleted")
        await reaches(run, State.WAITING)
    async with app.worker():
        await Clock(app.dsn).skip("1h")
        assert await run.result(10) == 1


@pytest.mark.parametrize("verb", ["info", "cancel", "history", "signal", "children", "pause", "explain"])
async def test_other_verbs_of_a_run_are_refused_inside_a_workflow_with_the_remedy(app: App, verb: str) -> None:
    @app.task
    async def one() -> int:
        return 1

    @app.workflow
    async def ask(verb: str) -> str:
        run = await one.start()
        try:
            await (run.signal("x") if verb == "signal" else getattr(run, verb)())
        except NotDurable as error:
            return str(error)
        return "?"

    async with app.worker():
        told = await (await ask.start(verb)).result(10)
    assert "Do it in a step or a task" in told
    assert "test_children.py:" in told


async def test_a_task_that_may_lead_to_anothers_run_is_refused_inside_a_workflow(app: App) -> None:
    @app.task
    async def one() -> int:
        return 1

    @app.workflow
    async def ask() -> str:
        try:
            await one.options(unique=True)()
        except NotDurable as error:
            return str(error)
        return "?"

    async with app.worker():
        told = await (await ask.start()).result(10)
    assert "unique=" in told
    assert "Leave it out" in told


async def test_a_workflow_starts_runs_by_their_names_whether_or_not_it_has_their_code(app: App, dsn: str) -> None:
    elsewhere = App(dsn, lease=5, migrate=False)

    @elsewhere.task(name="far", queue="far")
    async def far(n: int) -> int:
        return n + 1

    @elsewhere.workflow(name="far_flow", queue="far")
    async def far_flow(n: int) -> int:
        return await far(n)

    @app.task(name="near")
    async def near(n: int) -> int:
        return n - 1

    @app.workflow
    async def ask() -> list[int]:
        runs = [await app.start("near", 1)]
        runs += [await app.definition(name).options(queue="far").start(1) for name in ("far", "far_flow")]
        return [await run.result() for run in runs]

    async with app.worker(), elsewhere.worker(queues=["far"]):
        assert await (await ask.start()).result(10) == [0, 2, 2]


async def test_a_child_with_a_key_is_found_by_it(app: App) -> None:
    @app.workflow
    async def inner() -> int:
        return await workflow.signal("go", int)

    @app.workflow
    async def outer() -> int:
        return await inner.options(key="inner-7")()

    async with app.worker():
        run = await outer.start()
        await has(run, "ChildStarted")
        await app.run(key="inner-7").signal("go", 9)
        assert await run.result(10) == 9


async def test_a_child_whose_key_is_taken_fails_and_says_whose_it_is(app: App) -> None:
    @app.task
    async def one(n: int) -> int:
        return n

    @app.workflow
    async def ask() -> str:
        try:
            await one.options(key="mine")(2)
        except RunFailed as error:
            return f"{error.type}: {error.message}"
        return "?"

    async with app.worker():
        first = await one.options(key="mine").start(1)
        assert await first.result(10) == 1
        told = await (await ask.start()).result(10)
    assert told.startswith("stepwell.KeyConflict: ")
    assert str(first.id) in told


async def test_a_family_of_workflows_knows_its_root(app: App) -> None:
    @app.workflow
    async def inner() -> list[str]:
        info = workflow.info()
        return [str(info.parent_id), str(info.root_id)]

    @app.workflow
    async def middle() -> list[str]:
        return [str(workflow.info().id), *await inner()]

    @app.workflow
    async def outer() -> list[str]:
        return [str(workflow.info().id), *await middle()]

    async with app.worker():
        run = await outer.start()
        own, middles, parent, root = await run.result(10)
    assert (own, root) == (str(run.id), str(run.id))
    assert middles == parent


async def test_two_hundred_children_at_once_are_all_told(app: App) -> None:
    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @app.workflow
    async def fan(n: int) -> int:
        return sum(await asyncio.gather(*(double(x) for x in range(n))))

    async with app.worker():
        run = await fan.start(200)
        assert await run.result(20) == sum(2 * x for x in range(200))
    types = await types_of(run)
    assert (types.count("TaskScheduled"), types.count("TaskCompleted")) == (200, 200)
