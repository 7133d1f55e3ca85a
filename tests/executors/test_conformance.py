"""What every executor keeps to: the built-in three, and one that an app has registered (that of the guide)."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from uuid import uuid4

import executor_bodies as bodies
import pytest
from executor_bodies import Definition, defined

from stepwell import App, InvalidSetting, Retry, RunFailed, current
from stepwell.context.current import Running, running
from stepwell.executors import Body, Executor, ProcessDied, RemoteError
from stepwell.executors.base import traceback_text, type_names
from stepwell.executors.registry import BUILT_IN, Executors
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.run import Claim
from tests.waiting_for import until

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "executors.md"
NAMES = [*BUILT_IN, "pool"]
SOON = 30


def pool_executor(**options: Any) -> Any:
    """The executor of the guide."""
    found = re.search(r"```python file=pools\.py\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pools.py"
        path.write_text(found[1])
        spec = spec_from_file_location("pools", path)
        assert spec is not None
        assert spec.loader is not None
        pools = module_from_spec(spec)
        spec.loader.exec_module(pools)
    return pools.PoolExecutor(**options)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@pytest.fixture
async def executor(name: str) -> AsyncIterator[Executor]:
    async with Executors({"pool": pool_executor(threads=2)}).opened(2) as executors:
        yield executors[name]


@pytest.fixture
def body(name: str) -> Callable[[str], Definition]:
    """A body by its name, of the kind that the executor takes."""
    return lambda called: defined(getattr(bodies, f"{called}_async" if name == "inline" else called))


@pytest.fixture
def claim() -> Iterator[Claim]:
    """The claim of an attempt around the body."""
    claim = Claim.bare(RunId(uuid4()), ClaimId(uuid4()), "default", 1)
    token = running.set(Running(claim))
    yield claim
    running.reset(token)


async def test_a_body_gets_its_input_and_its_result_comes_back(executor: Executor, body: Any) -> None:
    add = body("add")
    assert json.loads(await executor.run(add, add.input(2, 3))) == 5


async def test_what_a_body_raises_is_raised_with_its_type_and_the_users_line(executor: Executor, body: Any) -> None:
    decline = body("decline")
    with pytest.raises(Exception, match="too poor") as raised:
        await executor.run(decline, decline.input("too poor"))
    assert type_names(raised.value)[0] == "executor_bodies.Declined"
    assert "# the user's line" in traceback_text(raised.value)


async def test_a_body_that_exits_fails_alone(executor: Executor, body: Any) -> None:
    leave, add = body("leave"), body("add")
    with pytest.raises(Exception, match="SystemExit: 3"):
        await executor.run(leave, leave.input(3))
    assert json.loads(await executor.run(add, add.input(1, 1))) == 2


async def test_a_body_has_begun_once_there_is_room_for_it(executor: Executor, body: Any) -> None:
    add, begun = body("add"), []
    await executor.run(add, add.input(1, 1), lambda: begun.append(asyncio.get_running_loop()))
    await asyncio.sleep(0)
    assert begun == [asyncio.get_running_loop()]


async def test_a_cancelled_call_ends_at_once_and_leaves_room_for_the_next(
    executor: Executor, body: Any, fifo: Callable[[str], Path], tmp_path: Path
) -> None:
    add, hang = body("add"), body("begin_and_wait")
    begun, gate = tmp_path / "begun", fifo("gate")
    call = asyncio.create_task(executor.run(hang, hang.input(str(begun), str(gate))))
    await until(lambda: asyncio.to_thread(begun.exists))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(SOON):
            await call
    assert json.loads(await executor.run(add, add.input(1, 1))) == 2

    async def is_free() -> bool:
        return executor.stuck == 0

    opened = os.open(gate, os.O_RDWR)
    await until(is_free)
    os.close(opened)


@pytest.mark.parametrize("name", ["process", "pool"])
async def test_an_executor_reports_what_a_body_took(executor: Executor, body: Any, claim: Claim) -> None:
    add, decline = body("add"), body("decline")
    await executor.run(add, add.input(1, 1))
    assert claim.usage is not None
    assert claim.usage.cpu is not None
    claim.usage = None
    with pytest.raises(Exception, match="too poor"):
        await executor.run(decline, decline.input("too poor"))
    assert claim.usage is not None


async def test_an_executor_of_the_app_serves_one_worker_after_the_other() -> None:
    executors, add = Executors({"pool": pool_executor(threads=1)}), defined(bodies.add)
    for _ in range(2):
        async with executors.opened(2) as opened:
            assert json.loads(await opened["pool"].run(add, add.input(1, 1))) == 2


async def test_an_executor_of_the_app_is_closed_after_its_last_worker() -> None:
    closed: list[str] = []

    class Closing(type(pool_executor(threads=1))):  # type: ignore[misc]
        async def close(self, grace: float = 0.0) -> None:
            closed.append("closed")
            await super().close(grace)

    executors = Executors({"pool": Closing(threads=1)})
    async with executors.opened(1):
        async with executors.opened(1):
            pass
        assert closed == []
    assert closed == ["closed"]


# -- through an app


async def test_a_task_and_a_step_run_on_the_executor_that_they_name(dsn: str) -> None:
    app = App(dsn, executors={"gpu": pool_executor(threads=1)})

    @app.task(executor="gpu")
    def double(x: int) -> tuple[int, int]:
        return 2 * x, current.attempt

    @app.step(executor="gpu")
    def plus_one(x: int) -> int:
        return x + 1

    @app.workflow
    async def work(x: int) -> int:
        return await plus_one(x)

    async with app, app.worker():
        run = await double.start(4)
        assert await run.result(SOON) == (8, 1)
        assert await (await work.start(1)).result(SOON) == 2
        (attempt,) = await run.attempts()
        assert attempt.usage is not None


async def test_a_task_on_an_executor_of_the_app_has_a_timeout(dsn: str) -> None:
    gate = threading.Event()
    app = App(dsn, executors={"gpu": pool_executor(threads=1)})

    @app.task(executor="gpu", timeout=0.2, retry=Retry(attempts=1))
    def hang() -> None:
        gate.wait(SOON)

    async with app, app.worker():
        run = await hang.start()
        with pytest.raises(RunFailed, match="longer than its timeout"):
            await run.result(SOON)
        gate.set()


class FarExecutor:
    """An executor whose bodies run elsewhere, and end there by an error or not at all."""

    stuck = 0

    def __init__(self, error: Exception) -> None:
        self._error = error

    def refuses(self, fn: Callable[..., Any]) -> str | None:
        return None

    async def run(self, body: Body, input: bytes, begun: Callable[[], None] = lambda: None) -> bytes:
        begun()
        raise self._error

    async def close(self, grace: float = 0.0) -> None: ...


@pytest.mark.parametrize(
    ("error", "type", "reason"),
    [
        (RemoteError("shop.Declined", ("shop.Declined", "Exception"), "too poor", "File …"), "shop.Declined", "raised"),
        (ProcessDied(exit_code=3, signal=None), "stepwell.executors.base.ProcessDied", "worker_lost"),
    ],
    ids=["raised", "died"],
)
async def test_an_executor_whose_bodies_run_elsewhere_tells_how_they_failed(
    dsn: str, error: Exception, type: str, reason: str
) -> None:
    app = App(dsn, executors={"far": FarExecutor(error)})

    @app.task(executor="far", retry=Retry(attempts=1))
    async def work() -> None: ...

    async with app, app.worker():
        with pytest.raises(RunFailed) as failed:
            await (await work.start()).result(SOON)
    assert (failed.value.type, failed.value.reason) == (type, reason)


def test_an_unknown_executor_is_refused_by_the_decorator_with_the_name_that_was_meant() -> None:
    app = App("postgresql://nowhere/x", executors={"gpu": pool_executor(threads=1)})
    with pytest.raises(
        InvalidSetting, match=r"Did you mean 'process'\? Known are 'gpu', 'inline', 'process', 'thread'"
    ):
        app.task(executor="proces")(bodies.add)
    with pytest.raises(InvalidSetting, match="Did you mean 'gpu'"):
        app.step(executor="gpus")(bodies.add)


def test_an_executor_says_at_the_decorator_which_functions_it_refuses() -> None:
    app = App("postgresql://nowhere/x", executors={"gpu": pool_executor(threads=1)})
    with pytest.raises(InvalidSetting, match="a pool takes def, not async def"):
        app.task(executor="gpu")(bodies.add_async)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"thread": None}, "a built-in executor has this name"),
        ({"gpu": object()}, "it lacks refuses, run, stuck, close"),
        ({"gpu": dict}, "it is a class: pass an object of it"),
        ({"": None}, "must be some printable text"),
        (["gpu"], "a mapping of names to executors"),
    ],
)
def test_what_is_no_executor_is_refused_where_it_is_registered(given: Any, why: str) -> None:
    with pytest.raises(InvalidSetting, match=why):
        App("postgresql://nowhere/x", executors=given)
