"""Steps: run inline, once, and recorded."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from stepwell import App, InvalidSetting, Retry, RunFailed, State, StepFailed, current
from tests.workflows.telling import has, types_of


async def test_a_step_runs_in_the_workers_loop_and_its_result_is_recorded(app: App) -> None:
    ran = []

    @app.step
    async def double(x: int) -> int:
        ran.append((x, current.run_id))
        await asyncio.sleep(0)
        return 2 * x

    @app.workflow
    async def calc(x: int) -> int:
        return await double(await double(x))

    async with app.worker():
        run = await calc.start(1)
        assert await run.result(10) == 4
    assert ran == [(1, run.id), (2, run.id)]
    assert await types_of(run) == ["WorkflowStarted", "StepCompleted", "StepCompleted", "WorkflowCompleted"]
    assert [event.data.get("value") for event in await run.history()] == [None, 2, 4, 4]


async def test_a_step_that_is_a_plain_def_runs_in_a_thread(app: App) -> None:
    @app.step
    def where() -> bool:
        return threading.current_thread() is threading.main_thread()

    @app.workflow
    async def ask() -> bool:
        return await where()

    async with app.worker():
        run = await ask.start()
        assert await run.result(10) is False


async def test_steps_of_a_gather_run_at_the_same_time(app: App) -> None:
    both = asyncio.Barrier(3)

    @app.step
    async def meet(n: int) -> int:
        async with asyncio.timeout(30):
            await both.wait()
        return n

    @app.workflow
    async def all_of_them() -> list[int]:
        return list(await asyncio.gather(*(meet(n) for n in range(3))))

    async with app.worker():
        assert await (await all_of_them.start()).result(10) == [0, 1, 2]


async def test_a_step_is_tried_again_as_its_policy_says(app: App) -> None:
    tries = []

    @app.step(retry=Retry(attempts=3, delay=0.01))
    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return len(tries)

    @app.workflow
    async def insist() -> int:
        return await flaky()

    async with app.worker():
        run = await insist.start()
        assert await run.result(10) == 3
    assert await types_of(run) == ["WorkflowStarted", "StepCompleted", "WorkflowCompleted"]


async def test_a_step_that_fails_for_the_last_time_is_recorded_and_raised(app: App) -> None:
    tries = []

    @app.step
    async def refuse(why: str) -> None:
        tries.append(why)
        raise ValueError(why)

    @app.workflow
    async def ask() -> str:
        try:
            await refuse.options(retry=Retry(attempts=2, delay=0.01))("no")
        except StepFailed as error:
            return f"{error.type}: {error.message} ({error.attempt})"
        return "?"

    async with app.worker():
        run = await ask.start()
        assert await run.result(10) == "ValueError: no (2)"
    assert tries == ["no", "no"]
    assert await types_of(run) == ["WorkflowStarted", "StepFailed", "WorkflowCompleted"]


async def test_a_failed_step_that_nobody_catches_fails_the_workflow(app: App) -> None:
    @app.step
    async def refuse() -> None:
        raise ValueError("no")

    @app.workflow
    async def ask() -> None:
        await refuse()

    async with app.worker():
        run = await ask.start()
        with pytest.raises(RunFailed, match="ValueError: no") as raised:
            await run.result(10)
    assert raised.value.type == "stepwell.StepFailed"
    assert await types_of(run) == ["WorkflowStarted", "StepFailed", "WorkflowFailed"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_a_step_that_takes_too_long_has_failed(app: App, kind: str) -> None:
    begun = []

    @app.step(timeout=0.05)
    async def wait_for_ever() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    @app.step(timeout=0.05)
    def sleep_long() -> None:
        begun.append(1)
        time.sleep(0.5)

    @app.workflow
    async def ask(kind: str) -> str:
        try:
            await (wait_for_ever if kind == "async" else sleep_long)()
        except StepFailed as error:
            return f"{error.type} ({error.reason}): {error.message}"
        return "?"

    async with app.worker():
        told = await (await ask.start(kind)).result(10)
    assert told == "TimeoutError (timed_out): the attempt took longer than its timeout of 0.05 s"
    assert begun == [1]


async def test_what_a_step_waits_for_a_thread_is_not_of_its_time(app: App) -> None:
    @app.step(timeout=2)
    def nap() -> None:
        time.sleep(0.5)

    @app.workflow
    async def many() -> int:
        return len(await asyncio.gather(*(nap() for _ in range(6))))

    async with app.worker(slots=1):
        assert await (await many.start()).result(30) == 6


async def test_a_step_is_given_up_when_nobody_waits_for_it_any_more(app: App) -> None:
    ended = asyncio.Event()

    @app.step
    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    @app.workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(0.5):
                await wait_for_ever()
        except TimeoutError:
            return "went on"
        return "?"

    async with app.worker():
        run = await impatient.start()
        assert await run.result(10) == "went on"
        async with asyncio.timeout(30):
            await ended.wait()
    assert await types_of(run) == ["WorkflowStarted", "TimerScheduled", "TimerFired", "WorkflowCompleted"]


async def test_a_step_recorded_is_never_run_again_whoever_goes_on(app: App) -> None:
    ran: list[int | str] = []
    hangs = asyncio.Event()

    @app.step
    async def effect(n: int) -> int:
        ran.append(n)
        return n

    @app.step
    async def hang() -> None:
        ran.append("hang")
        hangs.set()
        if len(ran) == 3:
            await asyncio.Event().wait()

    @app.workflow
    async def work() -> int:
        total = await effect(1) + await effect(2)
        await hang()
        return total

    run = await work.start()
    async with app.worker():
        await has(run, "StepCompleted", 2)
        await hangs.wait()
    assert (await run.info()).state is State.PENDING
    async with app.worker():
        assert await run.result(10) == 3
    assert ran == [1, 2, "hang", "hang"]


async def test_the_result_of_a_step_that_cannot_be_stored_fails_it(app: App) -> None:
    @app.step
    async def odd() -> object:
        return object()

    @app.workflow
    async def ask() -> str:
        try:
            await odd()
        except StepFailed as error:
            return error.type
        return "?"

    async with app.worker():
        assert await (await ask.start()).result(10) == "stepwell.NotEncodable"


async def test_a_step_that_cannot_run_in_another_process_is_refused_when_it_is_registered(app: App) -> None:
    with pytest.raises(InvalidSetting, match="inside another function"):

        @app.step(executor="process")
        def compute() -> int:
            return 1


async def test_outside_of_a_workflow_a_step_is_its_bare_function(app: App) -> None:
    @app.step
    async def double(x: int) -> int:
        return 2 * x

    @app.step
    def treble(x: int) -> int:
        return 3 * x

    assert (await double(2), await treble(2)) == (4, 6)
