"""Tasks and futures that are made without asking the loop: `asyncio.Task(coro, loop=loop)`, `asyncio.Future()`."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import random
import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell.model.events import EventType
from stepwell.replay.replay import Replay
from tests.replay.driver import NEVER, Driving, Takes, World, event_by_event, step, task, told_again, whole

ANSWERS = {"a": Takes(3, "a"), "b": Takes(1, "b"), "c": Takes(2, "c"), "never": NEVER}
EAGER = pytest.mark.skipif(sys.version_info < (3, 12), reason="tasks can begin at once from Python 3.12 on")

said: list[str] = []
where: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="outside")


def bare(coro: Any, **more: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=asyncio.get_running_loop(), **more)


class Own(asyncio.Task):  # type: ignore[type-arg]
    """A library's own class of tasks."""


async def holds() -> None:
    token = where.set("inside")
    try:
        await task("never")
    except asyncio.CancelledError:
        said.append("cancelled")
        raise
    finally:
        said.append(where.get())
        where.reset(token)
        said.append("released")
        await task("release")


def begun(fn: Callable[[], Awaitable[Any]]) -> Replay:
    said.clear()
    driving = Driving(World(ANSWERS), fn)
    driving.begin(None)
    return driving.replay


@pytest.mark.parametrize("kind", [asyncio.Task, Own, asyncio.tasks._PyTask])  # type: ignore[attr-defined]
def test_a_bare_task_is_ended_with_the_others_when_the_workflow_is_evicted(kind: Any) -> None:
    async def workflow() -> None:
        kind(holds(), loop=asyncio.get_running_loop())
        await task("never")

    replay = begun(workflow)
    coros = [each.get_coro() for each in replay.loop.tasks]
    assert len(coros) == 2
    replay.evict()
    assert said == ["inside", "released"]
    assert {inspect.getcoroutinestate(each) for each in coros} == {"CORO_CLOSED"}  # type: ignore[arg-type]
    assert replay.take() == []
    assert replay.loop.tasks == []
    gc.collect()
    assert said == ["inside", "released"]


def test_a_bare_task_that_is_left_behind_ends_with_the_workflow() -> None:
    async def workflow() -> str:
        bare(holds())
        return str(await task("b"))

    said.clear()
    told = World(ANSWERS).run(workflow, check=False)
    assert told.result == "b"
    assert said == ["cancelled", "inside", "released"]
    assert told.commands(EventType.TASK_SCHEDULED) == ["b", "never", "release"]
    told_again(told)


def scattered(seed: int) -> list[Any]:
    """Memory in which the next tasks and futures get their places in no order."""
    chance = random.Random(seed)
    places = [[bytes(size) for _ in range(200)] for size in range(100, 300, 16)]
    for of_a_size in places:
        chance.shuffle(of_a_size)
        del of_a_size[:100]
    return places


def told_elsewhere(fn: Callable[..., Awaitable[Any]], **answers: Any) -> Any:
    told = World({**ANSWERS, **answers}).run(fn, check=False)
    for seed in range(10):
        held = scattered(seed)
        whole(told)
        event_by_event(told)
        del held
    return told.result


NAMES = ["one", "two", "three", "four", "five", "six"]


def test_bare_tasks_come_from_wait_in_the_order_in_which_they_were_made() -> None:
    async def named(name: str) -> str:
        await asyncio.sleep(1)
        return name

    async def workflow() -> list[str]:
        made = {bare(named(name)) for name in NAMES}
        done, pending = await asyncio.wait(made)
        assert not pending
        return [await step(each.result()) for each in done] + [each.result() for each in done]

    assert told_elsewhere(workflow) == NAMES + NAMES


def test_bare_futures_come_from_wait_in_the_given_order() -> None:
    async def workflow() -> Any:
        made: list[asyncio.Future[str]] = [asyncio.Future() for _ in NAMES]
        done, pending = await asyncio.wait(made, timeout=1)
        assert not done
        for each, name in zip(made, NAMES, strict=True):
            each.set_result(await step(name))
        done, _ = await asyncio.wait(pending)
        found = [await step(each.result()) for each in done]
        first = done.pop()
        return [found, first.result(), len(done), first in done, [await step(each.result()) for each in done]]

    assert told_elsewhere(workflow) == [NAMES, "one", 5, False, NAMES[1:]]


def test_a_set_of_bare_futures_in_no_order_is_refused_and_named() -> None:
    async def workflow() -> None:
        await asyncio.wait({asyncio.Future(), asyncio.Future()})  # type: ignore[type-var]

    error = World().run(workflow).error
    assert error.type == "NotDurable"
    assert "a set of bare futures" in error.message
    assert "create_future()" in error.message
    assert "test_bare_tasks.py" in error.message


def test_bare_tasks_are_cancelled_in_the_order_in_which_they_were_made() -> None:
    async def undone(name: str) -> None:
        try:
            await task("never")
        finally:
            await step(name)

    async def workflow() -> int:
        for name in NAMES:
            bare(undone(name))
        await task("b")
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for each in asyncio.all_tasks():
            if each is not asyncio.current_task():
                each.cancel()
        await asyncio.gather(*sorted(others, key=lambda each: each.get_name()), return_exceptions=True)
        return len(others)

    assert told_elsewhere(workflow) == 6


def test_tasks_are_named_and_numbered_as_asyncio_does() -> None:
    async def nothing() -> None:
        pass

    async def workflow(*, calls: bool = True) -> list[str]:
        call: Any = task if calls else lambda _: nothing()
        made = [asyncio.create_task(nothing()), asyncio.create_task(call("b")), bare(nothing())]
        made += [asyncio.create_task(nothing(), name="mine"), asyncio.create_task(nothing(), name="")]
        made += [asyncio.create_task(nothing(), name=7), asyncio.create_task(call("b"), name=8)]  # type: ignore[arg-type]
        made += [bare(nothing(), name="own"), asyncio.ensure_future(nothing())]
        await asyncio.gather(*made)
        first = int(made[0].get_name().removeprefix("Task-")) - 1
        made[-2].set_name(9)
        names = [each.get_name() for each in made]
        assert all(repr(name) in repr(each) for name, each in zip(names, made, strict=True) if "Call" not in repr(each))
        return [re.sub(r"Task-(.*)", lambda found: f"Task-{int(found[1]) - (0 if calls else first)}", n) for n in names]

    names = asyncio.run(workflow(calls=False))
    assert names[:8] == ["Task-1", "Task-2", "Task-3", "mine", "", "7", "8", "9"]
    assert told_elsewhere(workflow) == names
    assert told_elsewhere(workflow) == names, "they count anew in every run"


def test_what_create_task_does_not_know_is_refused() -> None:
    async def workflow() -> None:
        loop: Any = asyncio.get_running_loop()
        calling = holds()
        try:
            await loop.create_task(calling, when="later")
        finally:
            calling.close()

    error = World().run(workflow).error
    assert error.type == "TypeError"
    assert "when" in error.message


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="it is honoured there")
def test_a_task_that_is_to_begin_at_once_is_refused_where_python_cannot() -> None:
    async def workflow() -> None:
        loop: Any = asyncio.get_running_loop()
        calling = task("b")
        try:
            await loop.create_task(calling, eager_start=True)
        finally:
            calling.close()

    error = World().run(workflow).error
    assert error.type == "TypeError"
    assert "Python 3.12" in error.message


@EAGER
@pytest.mark.parametrize("by", ["create_task", "factory", "bare"])
def test_a_task_may_begin_at_once(by: str) -> None:
    order: list[str] = []

    async def one(name: str) -> str:
        order.append(f"{name} begins in {asyncio.current_task().get_name()}")  # type: ignore[union-attr]
        if name == "at once":
            return name
        return str(await task(name))

    async def workflow() -> Any:
        loop: Any = asyncio.get_running_loop()
        make: Any = {
            "create_task": lambda coro: loop.create_task(coro, eager_start=True),
            "factory": lambda coro: asyncio.eager_task_factory(loop, coro),  # type: ignore[attr-defined]
            "bare": lambda coro: bare(coro, eager_start=True),
        }[by]
        order.clear()
        made = [make(one("a")), make(one("b")), make(one("at once"))]
        order.append("made")
        return [made[2].done(), [each.partition(" in ")[0] for each in order], await asyncio.gather(*made)]

    begun = ["a begins", "b begins", "at once begins", "made"]
    assert told_elsewhere(workflow) == [True, begun, ["a", "b", "at once"]]


@EAGER
def test_a_call_may_begin_at_once() -> None:
    async def workflow() -> Any:
        loop: Any = asyncio.get_running_loop()
        made = [loop.create_task(task("a")), loop.create_task(task("b"), eager_start=True)]
        return await asyncio.gather(*made)

    told = World(ANSWERS).run(workflow)
    assert told.result == ["a", "b"]
    assert told.commands(EventType.TASK_SCHEDULED) == ["b", "a"]


@EAGER
def test_a_bare_task_that_began_at_once_and_waits_for_anything_is_ended_too() -> None:
    async def awaits(future: Any) -> None:
        try:
            await future
        finally:
            said.append("released")

    async def workflow() -> None:
        future = asyncio.get_running_loop().create_future()
        bare(awaits(future), eager_start=True)
        await task("never")

    replay = begun(workflow)
    replay.evict()
    assert said == ["released"]


def test_an_error_in_a_bare_task_is_its_own() -> None:
    async def workflow() -> str:
        failing = bare(fails())
        try:
            await failing
        except ValueError as error:
            return str(error)
        return "no error"

    async def fails() -> None:
        await task("b")
        raise ValueError("mine")

    assert told_elsewhere(workflow) == "mine"
