"""A workflow is asked to end: it may clean up, and even refuse; what it started ends with it."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from stepwell import App, Retry, RunCancelled, RunFailed, State, workflow
from tests.waiting_for import until
from tests.workflows.telling import has, reaches, types_of


async def test_a_cancelled_workflow_gets_a_cancelled_error_and_may_clean_up_with_tasks(app: App) -> None:
    undone = []

    @app.task
    async def undo(what: str) -> None:
        undone.append(what)

    @app.workflow
    async def work() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            await undo("sleep")
            raise

    async with app.worker():
        run = await work.start()
        await reaches(run, State.WAITING)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(10)
    assert undone == ["sleep"]
    assert await types_of(run) == [
        "WorkflowStarted", "TimerScheduled", "CancelRequested", "TaskScheduled", "TaskCompleted", "WorkflowCancelled",
    ]  # fmt: skip


async def test_a_workflow_may_refuse_to_be_cancelled(app: App) -> None:
    @app.workflow
    async def work() -> str:
        try:
            await workflow.signal("never")
        except asyncio.CancelledError:
            return "no, done"
        return "?"

    async with app.worker():
        run = await work.start()
        await reaches(run, State.WAITING)
        await run.cancel()
        assert await run.result(10) == "no, done"
    assert (await run.info()).state is State.COMPLETED


async def test_children_follow_a_cancelled_workflow(app: App) -> None:
    begun, ended, cleaned = asyncio.Event(), asyncio.Event(), []

    @app.task
    async def wait_for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.task
    async def clean(what: str) -> None:
        cleaned.append(what)

    @app.workflow
    async def inner() -> None:
        try:
            await wait_for_ever()
        finally:
            await clean("inner")

    @app.workflow
    async def outer() -> None:
        started = await inner.start()
        await asyncio.gather(inner(), started.result())

    async with app.worker():
        run = await outer.start()
        async with asyncio.timeout(30):
            await begun.wait()
        for child in await run.children():
            await has(child, "TaskScheduled")
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(10)
        for child in await run.children():
            await reaches(child, State.CANCELLED)
            for grandchild in (await child.children())[:1]:
                await reaches(grandchild, State.CANCELLED)
        async with asyncio.timeout(30):
            await ended.wait()
    assert cleaned == ["inner", "inner"]


async def test_a_run_given_up_in_the_turn_that_started_it_is_cancelled(app: App) -> None:
    """The first turn of the child finds both: that it begins, and that it is to end."""

    @app.task
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    @app.workflow(queue="later")
    async def inner() -> str:
        try:
            await wait_for_ever()
        except asyncio.CancelledError:
            return "no"
        return "?"

    @app.workflow
    async def outer() -> str:
        try:
            async with asyncio.timeout(0.05):
                return await inner()
        except TimeoutError:
            return "late"

    async with app.worker(queues=["default"]):
        run = await outer.start()
        assert await run.result(10) == "late"
        (child,) = await run.children()
        async with app.worker(queues=["later"]):
            await until(child.history)
            (grandchild,) = await until(child.children)
            await reaches(child, State.COMPLETED)
            await reaches(grandchild, State.CANCELLED)


async def test_a_workflow_cancelled_before_its_first_turn_never_begins(app: App) -> None:
    ran = []

    @app.workflow
    async def work() -> None:
        ran.append(1)

    run = await work.start()
    await run.cancel()
    assert (await run.info()).state is State.CANCELLED
    async with app.worker():
        with pytest.raises(RunCancelled):
            await run.result(10)
    assert ran == []
    assert await types_of(run) == ["WorkflowCancelled"]


async def test_a_workflow_in_a_turn_hears_that_it_is_cancelled(app: App) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.step
    async def wait_for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.workflow
    async def work() -> None:
        await wait_for_ever()

    async with app.worker():
        run = await work.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(10)
        async with asyncio.timeout(30):
            await ended.wait()
    assert await types_of(run) == ["WorkflowStarted", "CancelRequested", "WorkflowCancelled"]


async def test_a_cancel_with_no_worker_alive_is_heard_by_the_next(app: App) -> None:
    @app.workflow
    async def work() -> None:
        await workflow.signal("never")

    async with app.worker():
        run = await work.start()
        await reaches(run, State.WAITING)
    await run.cancel()
    assert (await run.info()).state is State.PENDING
    async with app.worker():
        with pytest.raises(RunCancelled):
            await run.result(10)


async def test_force_asks_nobody(app: App) -> None:
    cleaned, begun = [], asyncio.Event()

    @app.task
    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.workflow
    async def stubborn() -> None:
        while True:
            try:
                await wait_for_ever()
            except asyncio.CancelledError:
                cleaned.append(1)

    async with app.worker():
        run = await stubborn.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await reaches(run, State.WAITING)
        await run.cancel(force=True)
        with pytest.raises(RunCancelled):
            await run.result(10)
        (child,) = await run.children()
        await reaches(child, State.CANCELLED)
    assert cleaned == []
    assert (await types_of(run))[-1] == "WorkflowCancelled"


async def test_force_ends_a_workflow_in_a_turn(app: App) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.step
    async def wait_for_ever() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.workflow
    async def work() -> None:
        await wait_for_ever()

    async with app.worker():
        run = await work.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await run.cancel(force=True)
        assert (await run.info()).state is State.CANCELLED
        async with asyncio.timeout(30):
            await ended.wait()
    assert await types_of(run) == ["WorkflowStarted", "WorkflowCancelled"]


async def test_a_workflow_blocked_by_other_code_is_cancelled_by_force(app: App, dsn: str) -> None:
    run = await _blocked(app, dsn)
    await run.cancel()  # asked; the code that could answer does not fit
    assert (await run.info()).state is State.WAITING
    await run.cancel(force=True)
    assert (await run.info()).state is State.CANCELLED


async def _blocked(app: App, dsn: str) -> Any:
    async def one() -> int:
        return 1

    async def two() -> int:
        return 2

    async def old() -> int:
        await app.definitions.named("one")()
        return await workflow.signal("go", int)

    app.task(name="one")(one)
    app.workflow(name="work")(old)
    async with app.worker():
        run = await app.start("work")
        await reaches(run, State.WAITING)
    other = App(dsn, lease=5, migrate=False)
    second = other.task(name="two")(two)

    async def new() -> int:
        return await second()

    other.workflow(name="work")(new)
    async with other, other.worker():
        await run.signal("go", 1)

        async def blocked() -> bool:
            return "does not fit" in str(await run.explain())

        await until(blocked)
    return run


async def test_compensations_run_backwards_when_a_workflow_fails(app: App) -> None:
    did: list[str] = []

    @app.task
    async def book(what: str) -> str:
        did.append(f"book {what}")
        if what == "car":
            raise LookupError("no car")
        return what

    @app.task
    async def release(what: str) -> None:
        did.append(f"release {what}")

    @app.step
    async def note(what: str) -> None:
        did.append(f"note {what}")

    @app.workflow
    async def trip() -> None:
        for what in ("flight", "hotel", "car"):
            workflow.on_rollback(release, await book.options(retry=Retry(attempts=1))(what))
            workflow.on_rollback(note, what)

    async with app.worker():
        run = await trip.start()
        with pytest.raises(RunFailed, match="no car"):
            await run.result(10)
    assert did == [
        "book flight", "book hotel", "book car", "note hotel", "release hotel", "note flight", "release flight",
    ]  # fmt: skip
    assert (await types_of(run))[-1] == "WorkflowFailed"


async def test_compensations_run_when_a_workflow_is_cancelled_and_not_when_it_succeeds(app: App) -> None:
    did: list[str] = []

    @app.step
    async def undo(what: str) -> None:
        did.append(what)

    @app.workflow
    async def work(what: str) -> str:
        workflow.on_rollback(undo, what)
        return await workflow.signal("go", str)

    async with app.worker():
        good, bad = await work.start("good"), await work.start("bad")
        await reaches(bad, State.WAITING)
        await good.signal("go", "fine")
        await bad.cancel()
        assert await good.result(10) == "fine"
        with pytest.raises(RunCancelled):
            await bad.result(10)
    assert did == ["bad"]


async def test_a_compensation_that_fails_does_not_keep_the_others_from_it(app: App) -> None:
    did: list[str] = []

    @app.step
    async def undo(what: str) -> None:
        did.append(what)
        if what == "second":
            raise ValueError("cannot")

    @app.workflow
    async def work() -> None:
        for what in ("first", "second", "third"):
            workflow.on_rollback(undo, what)
        raise LookupError("lost")

    async with app.worker():
        run = await work.start()
        with pytest.raises(RunFailed, match="LookupError"):
            await run.result(10)
    assert did == ["third", "second", "first"]


async def test_rolling_back_goes_on_after_the_worker_ended_in_the_middle(app: App) -> None:
    did: list[str] = []
    gate, begun = asyncio.Event(), asyncio.Event()

    @app.step
    async def undo(what: str) -> None:
        begun.set()
        if what == "first":
            await gate.wait()
        did.append(what)

    @app.workflow
    async def work() -> None:
        for what in ("first", "second"):
            workflow.on_rollback(undo, what)
        raise LookupError("lost")

    run = await work.start()
    async with app.worker():
        await has(run, "StepCompleted")
    gate.set()
    async with app.worker():
        with pytest.raises(RunFailed, match="LookupError"):
            await run.result(10)
    assert did == ["second", "first"]


async def test_a_cancel_in_a_users_transaction_asks_when_it_commits(app: App, sql: asyncpg.Connection[Any]) -> None:
    @app.workflow
    async def work() -> None:
        await workflow.signal("never")

    async with app.worker():
        run = await work.start()
        await reaches(run, State.WAITING)
        async with sql.transaction():
            await run.cancel(tx=sql)
            assert (await run.info()).state is State.WAITING
        with pytest.raises(RunCancelled):
            await run.result(10)
