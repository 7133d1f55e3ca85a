"""Errors that nobody asks for are logged once, with their run; and no exit of the code passes for a crash."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from stepwell import App, Retry, RunFailed, State, UpdateFailed, UpdateRejected, workflow
from tests.workflows.telling import has, reaches


async def fails() -> None:
    raise ValueError("forgotten")


async def forgets() -> None:
    asyncio.create_task(fails())  # noqa: RUF006  # that nobody keeps it is the point


async def calls_back() -> None:
    asyncio.get_running_loop().call_soon(lambda: 1 / 0)


async def calls_back_when_done() -> None:
    asyncio.create_task(asyncio.sleep(0)).add_done_callback(lambda _: 1 / 0)


async def forgets_one_of_many() -> None:
    many = [asyncio.create_task(asyncio.sleep(0.001 * (number % 5))) for number in range(150)]
    asyncio.create_task(fails())  # noqa: RUF006  # that nobody keeps it is the point
    await asyncio.gather(*many)


WAYS = {
    "a task": (forgets, "forgotten"),
    "a callback": (calls_back, "division by zero"),
    "a callback of a task": (calls_back_when_done, "division by zero"),
    "one of many tasks": (forgets_one_of_many, "forgotten"),
}


def told(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "stepwell" and record.exc_info]


@pytest.mark.parametrize(("way", "error"), WAYS.values(), ids=WAYS)
async def test_an_error_of_which_nobody_hears_is_logged_once_and_never_in_a_replay(
    app: App, caplog: pytest.LogCaptureFixture, way: Any, error: str
) -> None:
    @app.step
    async def nothing() -> None: ...

    @app.workflow(name="shop.forgetful")
    async def forgetful() -> None:
        await way()
        await nothing()
        await workflow.signal("end")

    async with app.worker():
        run = await forgetful.start()
        await reaches(run, State.WAITING)
        (record,) = told(caplog)
        assert "shop.forgetful" in record.getMessage()
        assert str(run.id) in record.getMessage()
        assert record.exc_info is not None
        assert error in str(record.exc_info[1])
        assert record.exc_info[2] is not None
    async with app.worker():  # which tells it again
        await run.signal("end")
        await run.result(10)
    assert len(told(caplog)) == 1


async def test_a_task_that_failed_and_is_never_awaited_is_logged_at_the_end(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.workflow
    async def forgetful() -> None:
        background = asyncio.create_task(fails())
        await workflow.signal("end")
        assert background.done()

    async with app.worker():
        run = await forgetful.start()
        await reaches(run, State.WAITING)
        assert told(caplog) == [], "it may yet be awaited"
    async with app.worker():
        await run.signal("end")
        await run.result(10)
    assert len(told(caplog)) == 1


async def test_a_failed_call_that_nobody_awaits_is_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(retry=Retry(attempts=1))
    async def charge() -> None:
        raise ValueError("no money")

    @app.workflow
    async def forgetful() -> None:
        asyncio.create_task(charge())  # noqa: RUF006  # that nobody keeps it is the point
        await workflow.signal("end")

    async with app.worker():
        run = await forgetful.start()
        await has(run, "TaskFailed")
        await reaches(run, State.WAITING)
        await run.signal("end")
        await run.result(10)
    (record,) = [each for each in told(caplog) if str(run.id) in each.getMessage()]
    assert "no money" in str(record.exc_info and record.exc_info[1])


async def test_nothing_is_logged_of_errors_that_are_heard(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(retry=Retry(attempts=1))
    async def charge() -> None:
        raise ValueError("no money")

    @app.workflow
    async def careful() -> str:
        started = await charge.start()  # a run of its own: it tells its failure itself
        late = asyncio.create_task(fails())
        both = await asyncio.gather(fails(), charge(), return_exceptions=True)
        await workflow.signal("end")
        try:
            await late
        except ValueError:
            return f"{len(both)} {started.id is not None}"
        return "never"

    async with app.worker():
        run = await careful.start()
        await has(run, "TaskFailed", 2)
        await reaches(run, State.WAITING)
    async with app.worker():
        await run.signal("end")
        assert await run.result(10) == "2 True"
    assert told(caplog) == []


EXITS = [KeyboardInterrupt("enough"), SystemExit("enough")]


@pytest.mark.parametrize("error", EXITS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("kind", ["task", "workflow", "task of a workflow"])
async def test_an_exit_fails_its_run_at_once_whatever_its_kind(app: App, error: BaseException, kind: str) -> None:
    @app.task(name="body", retry=Retry(attempts=1))
    async def task() -> None:
        raise type(error)("enough")

    @app.workflow(name="flow")
    async def flow() -> None:
        if kind == "workflow":
            raise type(error)("enough")
        async with asyncio.TaskGroup() as group:
            group.create_task(task.fn())

    async with app.worker():
        run = await (task if kind == "task" else flow).start()
        with pytest.raises(RunFailed) as failed:
            await run.result(10)
        assert await app.workers()
    assert (failed.value.reason, failed.value.attempt) == ("raised", 1)
    assert failed.value.message == f"{type(error).__name__}: enough"
    assert failed.value.type == "stepwell.executors.base.BodyExited"


@pytest.mark.parametrize("error", EXITS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("where", ["answer", "validator"])
async def test_an_update_that_exits_is_answered_and_others_go_on(app: App, error: BaseException, where: str) -> None:
    @app.workflow
    async def flow() -> str:
        @workflow.update
        async def leave(now: bool) -> str:
            if now and where == "answer":
                raise type(error)("enough")
            return "stays"

        @leave.validator
        def check(now: bool) -> None:
            if now and where == "validator":
                raise type(error)("enough")

        return await workflow.signal("end", str)

    async with app.worker():
        run = await flow.start()
        with pytest.raises(UpdateFailed if where == "answer" else UpdateRejected, match="enough"):
            await run.update("leave", True)
        assert await run.update("leave", False) == "stays"
        await run.signal("end", "done")
        assert await run.result(10) == "done"
