"""A worker of which a part fails ends, and nobody's run has to pay for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell import App, Retry, Run, RunFailed, Snooze, State
from stepwell.worker.worker import Worker
from tests.waiting_for import until
from tests.worker import bodies


async def _open(worker: Worker) -> bool:
    return worker._lanes._open


async def _runs(run: Run[Any]) -> bool:
    return (await run.info()).state is State.RUNNING


def _watch(worker: Worker, fails: Callable[..., Awaitable[None]]) -> None:
    worker._watch.compare = fails  # type: ignore[method-assign]
    worker._watch.look.set()


def _lease(worker: Worker, fails: Callable[..., Awaitable[None]]) -> None:
    worker._lease._renew = fails  # type: ignore[method-assign]


@pytest.mark.parametrize("breaks", [_watch, _lease], ids=["watch", "lease"])
async def test_a_worker_of_which_a_part_fails_gives_back_what_it_runs(app: App, breaks: Callable[..., None]) -> None:
    """A right that is revoked for a moment, say: the bodies are not to blame."""
    began = asyncio.Event()

    @app.task(retry=Retry(attempts=1))
    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    async def fails(*_args: object, **_values: object) -> None:
        raise RuntimeError("permission denied for table runs")

    run = await wait.start()
    with pytest.raises(RuntimeError):
        async with asyncio.timeout(20), app.worker() as worker:
            await began.wait()
            breaks(worker, fails)
            await asyncio.Event().wait()
    assert (await run.info()).state is State.PENDING
    assert [each.outcome for each in await run.attempts()] == ["released"]


async def test_a_worker_of_which_a_part_fails_records_what_has_ended(app: App) -> None:
    """Also what was on its way to the tables with an exchange."""
    leaving = asyncio.Event()

    @app.task(retry=Retry(attempts=1))
    async def work() -> int:
        return 1

    async def fails(*_args: object, **_values: object) -> None:
        raise RuntimeError("permission denied for table runs")

    with pytest.raises(RuntimeError):
        async with asyncio.timeout(20), app.worker() as worker:
            await until(lambda: _open(worker))
            exchange = worker._link.exchange

            async def slow(completed: Any, order: Any) -> Any:
                if completed:
                    leaving.set()
                    await asyncio.Event().wait()
                return await exchange(completed, order)

            worker._link.exchange = slow  # type: ignore[method-assign]
            run = await work.start()
            await leaving.wait()
            _watch(worker, fails)
            await asyncio.Event().wait()
    assert (await run.info()).state is State.COMPLETED


async def test_a_ledger_that_fails_leaves_no_other_outcome_behind(app: App) -> None:
    gate = asyncio.Event()

    @app.task(retry=Retry(attempts=1))
    async def wait() -> None:
        await gate.wait()

    @app.task(retry=Retry(attempts=2, delay=60))
    async def fail() -> None:
        raise ValueError("no")

    async def fails(*_args: object, **_values: object) -> None:
        raise RuntimeError("permission denied for table runs")

    with pytest.raises(RuntimeError):
        async with asyncio.timeout(20), app.worker() as worker:
            await until(lambda: _open(worker))
            waits = await wait.start()
            await until(lambda: _runs(waits))
            settle, calls = worker._ledger._settle, []

            async def broken(group: Any, **values: Any) -> None:
                if calls:
                    return await settle(group, **values)
                calls.append(group)
                await fails()

            worker._ledger._settle = broken  # type: ignore[method-assign]
            failed = await fail.start()
            await asyncio.Event().wait()
    assert (await waits.info()).state is State.PENDING
    assert (await failed.info()).state is State.SCHEDULED


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_a_snooze_whose_delay_was_spoiled_fails_its_attempt_and_nobody_else(app: App, kind: str) -> None:
    async def odd() -> None:
        snooze = Snooze(1)
        snooze.delay = "soon"  # type: ignore[assignment]
        raise snooze

    tasks = {"async": app.task(odd), "thread": app.task(bodies.snoozes, name="snoozes")}
    tasks["process"] = bodies.define(app)["snoozes"]

    @app.task
    async def fine() -> int:
        return 1

    async with app.worker():
        run = await tasks[kind].options(retry=Retry(attempts=1)).start()
        with pytest.raises(RunFailed):
            await run.result(20)
        assert await (await fine.start()).result(10) == 1
