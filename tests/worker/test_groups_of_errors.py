"""What a body raises in a TaskGroup counts as it would without one."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from stepwell import App, Fatal, Retry, RunFailed, Snooze, current


async def raises(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("executor", ["inline", "thread"])
async def test_fatal_in_a_group_of_one_ends_the_run(app: App, executor: str) -> None:
    async def grouped() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(raises(Fatal("give up")))

    def blocking() -> None:
        raise ExceptionGroup("all", [Fatal("give up")])

    body = app.task(name="body", retry=Retry(delay=60))(grouped if executor == "inline" else blocking)
    async with app.worker():
        with pytest.raises(RunFailed, match="give up") as failed:
            await (await body.start()).result(10)
    assert (failed.value.type, failed.value.reason, failed.value.attempt) == ("stepwell.Fatal", "gave_up", 1)


async def test_snooze_in_a_group_of_one_is_no_failure(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def body() -> int:
        if current.attempt == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(raises(Snooze(0)))
        return current.attempt

    async with app.worker():
        run = await body.start()
        assert await run.result(20) == 2
        assert (await run.info()).failures == 0


async def test_a_policy_covers_what_is_in_a_group_of_one(app: App) -> None:
    @app.task(retry=Retry(attempts=2, delay=0, on=ConnectionError))
    async def body() -> int:
        if current.attempt == 1:
            async with asyncio.TaskGroup() as group:
                group.create_task(raises(ConnectionError("not yet")))
        return current.attempt

    async with app.worker():
        assert await (await body.start()).result(10) == 2


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no.such.host.invalid"])
async def test_a_workflow_that_uses_httpx_is_told_that_it_cannot_and_what_to_do(app: App, host: str) -> None:
    @app.workflow
    async def fetches() -> int:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"http://{host}/")).status_code

    async with app.worker():
        with pytest.raises(RunFailed) as failed:
            await (await fetches.start()).result(10)
    assert failed.value.type == "stepwell.NotDurable"
    assert failed.value.message.startswith("A workflow cannot use ")
    assert "Do it in a step or a task, and await that." in failed.value.message
    assert "test_groups_of_errors.py" in failed.value.message


async def test_a_wrapper_of_what_a_workflow_cannot_do_is_told_behind_it(app: App) -> None:
    @app.workflow
    async def fetches() -> None:
        try:
            await asyncio.open_connection("127.0.0.1", 1)
        except Exception as error:
            raise ConnectionError("no connection") from error

    async with app.worker():
        with pytest.raises(RunFailed) as failed:
            await (await fetches.start()).result(10)
    assert failed.value.type == "stepwell.NotDurable"
    assert failed.value.message.endswith("It led to ConnectionError: no connection")
