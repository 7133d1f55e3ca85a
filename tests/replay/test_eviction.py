"""Eviction ends every coroutine, here and now, and none is left to the garbage collector."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import sys
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from stepwell.context.workflow import workflow
from stepwell.model.events import Event, EventType
from stepwell.replay.replay import Replay
from tests.replay.driver import BEGAN, NEVER, Driving, World, new_replay, step, task
from tests.replay.more_asyncio_workflows import CASES

said: list[str] = []
where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="outside")


@pytest.fixture(autouse=True)
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """No warning, and nothing that Python could not raise."""
    said.clear()
    unraisable: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lambda error: unraisable.append(error.exc_value))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield unraisable
        gc.collect()
    assert unraisable == []
    assert [str(each.message) for each in warned if issubclass(each.category, RuntimeWarning)] == []


def begun(fn: Callable[[], Awaitable[None]]) -> Replay:
    driving = Driving(World({"never": NEVER}), fn)
    driving.begin(None)
    assert driving.replay.ended is None
    return driving.replay


async def waits() -> None:
    try:
        await task("never")
    except asyncio.CancelledError:
        said.append("cancelled")
        raise
    except Exception:
        said.append("error")
        raise
    finally:
        said.append("finally")


async def awaits_in_finally() -> None:
    try:
        await task("never")
    finally:
        said.append("finally")
        await asyncio.sleep(0)
        said.append("slept")


async def awaits_again_and_again() -> None:
    try:
        try:
            try:
                await task("never")
            finally:
                said.append("finally")
                await asyncio.sleep(0)
        finally:
            await asyncio.Event().wait()
    finally:
        await task("undo")


async def makes_tasks_in_finally() -> None:
    try:
        await task("never")
    finally:
        said.append("finally")
        await asyncio.gather(task("undo"), step("undo"), asyncio.sleep(3))


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(waits())
        await asyncio.gather(waits(), *(asyncio.shield(asyncio.create_task(waits())) for _ in range(2)))


async def deep() -> None:
    async def down(n: int) -> None:
        async with asyncio.timeout(100), asyncio.Lock():
            await asyncio.wait_for(down(n - 1) if n else waits(), 50)

    await asyncio.gather(down(5), down(3))


async def generators() -> None:
    async def each() -> AsyncIterator[int]:
        try:
            yield 1
            await task("never")
            yield 2
        finally:
            said.append("finally")
            await asyncio.sleep(0)

    async def one() -> None:
        async for _ in each():
            pass

    async def two() -> None:
        async for _ in each():
            await waits()

    held = each()
    await anext(held)
    await asyncio.gather(one(), two())


async def with_contexts() -> None:
    @contextlib.asynccontextmanager
    async def around() -> AsyncIterator[None]:
        token = where.set("inside")
        try:
            yield
        finally:
            said.append("finally" if where.get() == "inside" else "elsewhere")
            where.reset(token)
            said.append("reset")

    async def one() -> None:
        async with around():
            await waits()

    await asyncio.gather(one(), one())


async def in_circles() -> None:
    me: list[Any] = []

    async def one() -> None:
        me.append(asyncio.current_task())
        await waits()

    me.append(asyncio.create_task(one()))
    me.append(me)
    await asyncio.gather(*(asyncio.create_task(one()) for _ in range(3)), me[0])


async def not_begun() -> None:
    made = [asyncio.create_task(waits()) for _ in range(3)]
    for each in made:
        each.add_done_callback(lambda _: said.append("called back"))
    await workflow.signal("go")


async def everything_catching() -> None:
    try:
        await task("never")
    except BaseException:
        said.append("finally")
        with contextlib.suppress(Exception):
            await task("more")
        raise


async def receives() -> None:
    await workflow.signal("go")


async def sleeps() -> None:
    await asyncio.sleep(3600)


async def rolls_back() -> None:
    workflow.on_rollback(waits)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.sleep, 5)
        await waits()


ALL = [
    waits, awaits_in_finally, awaits_again_and_again, makes_tasks_in_finally, in_a_group, deep, generators,
    with_contexts, in_circles, not_begun, everything_catching, rolls_back,
]  # fmt: skip


@pytest.mark.parametrize("fn", ALL, ids=lambda fn: fn.__name__)
def test_every_coroutine_ends_and_runs_its_finally_and_none_is_cancelled(fn: Callable[[], Awaitable[None]]) -> None:
    replay = begun(fn)
    coros = [task.get_coro() for task in replay.loop.tasks]
    tasks = [weakref.ref(task) for task in replay.loop.tasks]
    frames = [weakref.ref(coro) for coro in coros]
    said.clear()
    replay.evict()
    assert [inspect.getcoroutinestate(each) for each in coros] == ["CORO_CLOSED"] * len(coros)  # type: ignore[arg-type]
    assert replay.loop.tasks == []
    assert replay.take() == []
    assert "finally" in said
    assert not {"cancelled", "error", "called back", "elsewhere", "slept"} & set(said)
    del coros
    gc.collect()
    assert [each() for each in tasks if each() is not None] == []
    assert [each() for each in frames if each() is not None] == []
    assert replay.ended is None


@pytest.mark.parametrize("fn", [waits, sleeps, receives], ids=lambda fn: fn.__name__)
def test_what_is_evicted_is_freed_at_once_and_waits_for_no_collection(fn: Callable[[], Awaitable[None]]) -> None:
    gc.collect()
    gc.disable()
    try:
        replay = begun(fn)
        left = [weakref.ref(replay), weakref.ref(replay.loop), *(weakref.ref(task) for task in replay.loop.tasks)]
        replay.evict()
        del replay
        assert [each() for each in left if each() is not None] == []
    finally:
        gc.enable()


HELD_BY_TRACEBACKS = {
    "a_failing_member_cancels_its_group", "two_errors_make_a_group", "the_first_of_a_group_ends_it",
    "as_they_complete_for_so_long", "an_error_as_it_completes", "sleeps_for_ever_beside",
    "what_is_cancelled_at_once_was_never_asked", "what_is_left_behind_ends_with_it",
    "a_generator_left_behind_is_closed",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES.keys() - HELD_BY_TRACEBACKS))
def test_what_has_ended_is_freed_at_once_and_waits_for_no_collection(name: str) -> None:
    case = CASES[name]
    history = case.world.run(case.fn, check=False).history
    gc.collect()
    gc.disable()
    try:
        replay = new_replay(case.fn)
        replay.recorded(history)
        left = [weakref.ref(replay), weakref.ref(replay.loop)]
        replay.evict()
        del replay
        assert [each() for each in left if each() is not None] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("name", CASES)
def test_no_workflow_leaves_anything_wherever_it_stands(name: str) -> None:
    case = CASES[name]
    told = case.world.run(case.fn, check=False)
    for place in range(1, len(told.history)):
        replay = new_replay(case.fn)
        replay.recorded(told.history[:place], more=True)
        left = [weakref.ref(task) for task in replay.loop.tasks]
        replay.evict()
        del replay
        if place % 7 == 0:
            gc.collect()
            assert [each() for each in left if each() is not None] == []


def test_a_context_is_the_tasks_own_also_at_its_end() -> None:
    replay = begun(with_contexts)
    said.clear()
    replay.evict()
    assert said.count("reset") == 2


def test_evicted_twice_and_after_its_end() -> None:
    replay = begun(waits)
    replay.evict()
    replay.evict()
    case = CASES["sleeps"]
    ended = case.world.run(case.fn).replay
    ended.evict()
    assert ended.ended is not None


async def sleeps_in_parallel() -> None:
    await asyncio.gather(*(asyncio.sleep(1000 + i) for i in range(3)))


def calls_for(workflows: int) -> int:
    """How many functions are called to begin and to evict so many at once."""
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        alive = []
        for number in range(workflows):
            alive.append(new_replay(sleeps_in_parallel, UUID(int=number << 64 | number * 7919)))
            alive[-1].delivered(Event(1, EventType.WORKFLOW_STARTED, BEGAN))
        for replay in alive:
            replay.evict()
    finally:
        sys.setprofile(None)
    return calls


def test_many_workflows_alive_at_once_cost_no_more_each() -> None:
    few, many = calls_for(100), calls_for(1000)
    assert many <= few * 10.5


async def asks_again() -> None:
    await task("never")


async def waits_again() -> None:
    await workflow.signal("never")


async def shows_it_again() -> None:
    workflow.publish("here")
    await step("never")


@pytest.mark.parametrize("ask", [asks_again, waits_again, shows_it_again])
def test_code_that_catches_everything_and_asks_again_is_left_to_itself(
    ask: Callable[[], Awaitable[None]], silence: list[Any]
) -> None:
    async def catches_everything() -> None:
        for _ in range(10_000):  # for ever, but for this test
            with contextlib.suppress(BaseException):
                await ask()
        said.append("for ever")

    begun(catches_everything).evict()
    assert said == []
    gc.collect()
    silence.clear()  # Python says that it does not end
