"""heartbeat=: a body that gives no sign of life is taken for one that hangs."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from stepwell import App, InvalidSetting, Reason, Retry, RunFailed, current
from tests.inside import bodies

once = Retry(attempts=1)
let_go = threading.Event()


async def silence(run: Any, heartbeat: str = "0.3 s") -> RunFailed:
    with pytest.raises(RunFailed) as failed:
        await run.result(30)
    assert failed.value.reason == Reason.TIMED_OUT
    assert f"no sign of life for {heartbeat}" in failed.value.message
    return failed.value


async def test_an_async_body_that_hangs_is_ended(app: App) -> None:
    ended: list[str] = []

    @app.task(heartbeat="300ms", retry=once)
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("cleaned up")

    async with app.worker():
        run = await work.start()
        await silence(run)
    assert ended == ["cleaned up"]
    (attempt,) = await run.attempts()
    assert attempt.outcome == "failed"


async def test_a_thread_that_hangs_loses_its_attempt_and_keeps_its_slot(app: App) -> None:
    let_go.clear()

    @app.task(heartbeat="300ms", retry=once)
    def work() -> None:
        let_go.wait(20)
        assert current.cancelled

    async with app.worker() as worker:
        await silence(await work.start())
        assert worker._attempts.taken == 1
        let_go.set()


async def test_a_process_that_hangs_is_killed(app: App) -> None:
    task = bodies.define(app, bodies.hangs, heartbeat="300ms", retry=once)
    async with app.worker():
        await silence(await task.start())


async def test_it_is_tried_again_as_any_timeout_is(app: App) -> None:
    @app.task(heartbeat="200ms", retry=Retry(attempts=2, delay=0, on=TimeoutError))
    async def work() -> int:
        if current.attempt == 1:
            await asyncio.Event().wait()
        return current.attempt

    async with app.worker():
        assert await (await work.start()).result(10) == 2


@pytest.mark.parametrize("sign", ["heartbeat", "progress", "checkpoint"])
async def test_every_sign_of_life_counts(app: App, sign: str) -> None:
    @app.task(heartbeat="2s", retry=once)
    async def work() -> str:
        for step in range(10):
            await asyncio.sleep(0.25)
            match sign:
                case "heartbeat":
                    current.heartbeat()
                case "progress":
                    current.progress("rows", done=step)
                case _:
                    await current.checkpoint.save(step)
        return "ended"

    async with app.worker():
        assert await (await work.start()).result(10) == "ended"


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_signs_of_life_come_from_threads_and_processes(app: App, kind: str) -> None:
    # Long enough for a child to begin.
    task = bodies.define(app, bodies.beats, executor=kind, heartbeat="2s", retry=once)
    async with app.worker():
        assert await (await task.start(25)).result(20) == 25


async def test_a_body_that_stops_giving_them_is_ended_so_long_after_the_last(app: App) -> None:
    last: list[float] = []

    @app.task(heartbeat="2s", retry=once)
    async def work() -> None:
        for _ in range(8):
            await asyncio.sleep(0.3)
            current.heartbeat()
        last.append(time.monotonic())
        await asyncio.Event().wait()

    async with app.worker():
        await silence(await work.start(), "2 s")
    assert time.monotonic() - last[0] > 1.9


async def test_it_is_a_property_of_the_task_and_stays_with_its_options(app: App) -> None:
    @app.task(heartbeat="30s")
    async def work() -> None: ...

    assert work.heartbeat == work.options(priority=1).heartbeat == timedelta(seconds=30)


@pytest.mark.parametrize("heartbeat", [0, "soon", -1])
def test_a_heartbeat_is_a_duration(app: App, heartbeat: Any) -> None:
    with pytest.raises(InvalidSetting, match="heartbeat"):

        @app.task(heartbeat=heartbeat)
        async def work() -> None: ...
