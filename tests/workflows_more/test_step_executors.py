"""Steps that are plain functions, in a thread or in a process of their own: tried again, timed, killed on the way."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from stepwell import App, Retry, RunCancelled, State, StepFailed
from tests.waiting_for import until
from tests.workflows.telling import has, types_of
from tests.workflows_more import bodies

SOON = 30
ROOT = Path(__file__).parents[2]
AGAIN = Retry(attempts=3, backoff="fixed", delay=0.01, jitter=0)
BOTH = pytest.mark.parametrize("executor", ["thread", "process"])


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "notes")


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "gate"


async def begun(place: str, what: str, times: int = 1) -> int:
    """Where it was begun, once that has happened so often."""

    async def there() -> list[int]:
        found = bodies.pids(place, what)
        return found if len(found) >= times else []

    return int((await until(there, within=SOON))[-1])


async def gone(pid: int) -> bool:
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool((await asyncio.to_thread(select.select, [process], [], [], SOON))[0])
    finally:
        os.close(process)


@BOTH
async def test_it_runs_where_it_was_asked_to_once_and_its_result_is_recorded(
    app: App, executor: Any, place: str
) -> None:
    where = app.step(executor=executor)(bodies.where)

    @app.workflow
    async def twice() -> list[tuple[int, bool]]:
        return [await where(place), await where(place)]

    async with app.worker():
        run = await twice.start()
        (pid, is_main), second = await run.result(SOON)
    assert (pid == os.getpid(), is_main) == ((True, False) if executor == "thread" else (False, True))
    assert second == (pid, is_main)  # a process serves again
    assert len(bodies.pids(place, "where")) == 2
    assert await types_of(run) == ["WorkflowStarted", "StepCompleted", "StepCompleted", "WorkflowCompleted"]


@BOTH
async def test_what_it_raises_has_it_tried_again_as_its_policy_says(app: App, executor: Any, place: str) -> None:
    third_time = app.step(executor=executor, retry=AGAIN)(bodies.third_time)

    @app.workflow
    async def insist() -> int:
        return await third_time(place)

    async with app.worker():
        run = await insist.start()
        assert await run.result(SOON) == 3
    assert await types_of(run) == ["WorkflowStarted", "StepCompleted", "WorkflowCompleted"]


@BOTH
async def test_what_it_raises_at_last_is_told_with_its_type_and_line(app: App, executor: Any, place: str) -> None:
    refuses = app.step(executor=executor, retry=AGAIN)(bodies.refuses)

    @app.workflow
    async def ask() -> tuple[str, str, int]:
        try:
            await refuses(place)
        except StepFailed as error:
            return error.type, error.message, error.attempt
        raise AssertionError

    async with app.worker():
        run = await ask.start()
        assert await run.result(SOON) == ("ValueError", "no", 3)
    assert len(bodies.pids(place, "refuses")) == 3
    (failed,) = (event for event in await run.history() if event.type == "StepFailed")
    assert 'raise ValueError("no")' in failed.data["error"]["traceback"]


async def test_a_process_that_takes_too_long_is_killed_and_the_next_attempt_has_another(app: App, place: str) -> None:
    hangs_at_first = app.step(executor="process", retry=AGAIN, timeout=4)(bodies.hangs_at_first)

    @app.workflow
    async def insist() -> int:
        return await hangs_at_first(place)

    async with app.worker():
        assert await (await insist.start()).result(SOON) == 2
        first, second = bodies.pids(place, "hangs_at_first")
        assert first != second
        assert await gone(first)


async def test_a_process_that_is_killed_ends_its_attempt_and_no_other(app: App, place: str, gate: Path) -> None:
    dies_at_first = app.step(executor="process", retry=AGAIN)(bodies.dies_at_first)
    waits = app.step(executor="process")(bodies.waits)

    @app.workflow
    async def both() -> tuple[int, int]:
        other = asyncio.create_task(waits(place, str(gate)))
        times = await dies_at_first(place)
        return times, await other

    async with app.worker():
        run = await both.start()
        pid = await begun(place, "waits")
        await has(run, "StepCompleted")
        await asyncio.to_thread(gate.write_text, "")
        assert await run.result(SOON) == (2, pid)
    assert len(bodies.pids(place, "dies_at_first")) == 2


async def test_a_process_that_is_killed_with_no_attempt_left_is_told_by_its_signal(
    app: App, place: str, gate: Path
) -> None:
    waits = app.step(executor="process")(bodies.waits)

    @app.workflow
    async def ask() -> tuple[str, str]:
        try:
            await waits(place, str(gate))
        except StepFailed as error:
            return str(error.reason), error.message
        raise AssertionError

    async with app.worker():
        run = await ask.start()
        os.kill(await begun(place, "waits"), signal.SIGKILL)
        reason, message = await run.result(SOON)
    assert reason == "worker_lost"
    assert "SIGKILL" in message


async def test_cancelling_the_workflow_kills_the_process(app: App, place: str, gate: Path) -> None:
    waits = app.step(executor="process")(bodies.waits)

    @app.workflow
    async def patient() -> None:
        await waits(place, str(gate))

    async with app.worker():
        run = await patient.start()
        pid = await begun(place, "waits")
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(SOON)
        assert await gone(pid)


@BOTH
async def test_a_worker_that_stops_midway_leaves_the_step_to_the_next_which_repeats_nothing_else(
    app: App, executor: Any, place: str, gate: Path
) -> None:
    work = bodies.work(app, executor)
    async with app.worker():
        run = await work.start(place, str(gate))
        pid = await begun(place, "waits")
    assert (await run.info()).state is State.PENDING
    assert executor == "thread" or await gone(pid)
    async with app.worker():
        await begun(place, "waits", times=2)
        await asyncio.to_thread(gate.write_text, "")
        await run.result(SOON)
    assert len(bodies.pids(place, "where")) == 1
    assert len(bodies.pids(place, "waits")) == 2
    assert await types_of(run) == ["WorkflowStarted", "StepCompleted", "StepCompleted", "WorkflowCompleted"]


@BOTH
async def test_a_worker_that_is_killed_midway_takes_the_process_along_and_the_next_repeats_nothing_else(
    app: App, executor: Any, place: str, gate: Path
) -> None:
    work = bodies.work(app, executor)
    killed = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.workflows_more.bodies", app.dsn, executor), cwd=ROOT, start_new_session=True
    )
    try:
        run = await work.start(place, str(gate))
        pid = await begun(place, "waits")
        assert (pid == killed.pid) == (executor == "thread")
    finally:
        killed.kill()
        await killed.wait()
    assert await gone(pid)
    async with app.worker():
        await begun(place, "waits", times=2)
        await asyncio.to_thread(gate.write_text, "")
        assert await run.result(SOON) != pid
    assert len(bodies.pids(place, "where")) == 1
    assert len(bodies.pids(place, "waits")) == 2
