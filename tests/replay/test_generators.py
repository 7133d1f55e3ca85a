"""Async generators: those of a workflow are its loop's, those of everyone else whoever's they were before."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from stepwell.model.events import EventType
from stepwell.replay import generators
from stepwell.replay.loop import Loop
from tests.replay.driver import Driving, Takes, World, task


async def walks(told: list[str], name: str) -> AsyncIterator[int]:
    try:
        for number in range(10):
            yield number
    finally:
        told.append(f"{name} ended on {type(asyncio.get_running_loop()).__name__}")


async def lets_go() -> list[str]:
    told: list[str] = []
    async for _ in walks(told, "mine"):
        await task("a")
        break
    await task("b")
    return told


async def fails_with_two(told: list[str]) -> None:
    async def first() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await task("closes the first")

    async def second() -> AsyncIterator[int]:
        try:
            yield 2
        finally:
            told.append("the second is closed")
            await asyncio.sleep(0)
            told.append("and goes on, elsewhere")

    one, two = first(), second()
    await anext(one)
    await anext(two)
    raise ValueError


@pytest.fixture
def hooks() -> Any:
    before = sys.get_asyncgen_hooks()
    yield before
    sys.set_asyncgen_hooks(*before)


def test_the_hooks_are_set_once_however_many_events_a_workflow_is_told(hooks: Any) -> None:
    sys.set_asyncgen_hooks(None, None)
    World().run(lets_go)
    ours = sys.get_asyncgen_hooks()
    assert type(ours.firstiter) is generators.Begins
    World().run(lets_go)
    assert sys.get_asyncgen_hooks() == ours


def test_a_generator_that_a_workflow_lets_go_of_ends_on_its_loop(hooks: Any) -> None:
    before = dict(generators._of)  # of workflows of other tests, which nobody has evicted
    assert World().run(lets_go).result == ["mine ended on Loop"]
    assert generators._of == before, "nothing is held of a workflow that has ended"


def test_generators_of_the_outer_loop_are_still_its_own_once_a_workflow_has_run_there() -> None:
    told: list[str] = []

    async def main() -> None:
        early = walks(told, "early")
        assert await anext(early) == 0
        World().run(lets_go)
        late = walks(told, "late")
        assert await anext(late) == 0
        del early, late
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)
        left = walks(told, "left")
        assert await anext(left) == 0
        kept.append(left)

    kept: list[Any] = []
    asyncio.run(main())
    # The last one was closed with its loop, by whoever shuts generators down.
    assert [line.split()[0] for line in told] == ["early", "late", "left"]
    assert not any("on Loop" in line for line in told)


def test_a_second_loop_of_the_same_thread_hears_of_its_own() -> None:
    told: list[str] = []

    async def main(name: str) -> None:
        World().run(lets_go)
        walking = walks(told, name)
        assert await anext(walking) == 0
        del walking
        gc.collect()
        for _ in range(3):
            await asyncio.sleep(0)

    for name in ("first", "second"):
        asyncio.run(main(name))
    assert [line.split()[0] for line in told] == ["first", "second"]


def test_a_generator_that_outlives_its_evicted_workflow_is_closed_and_runs_nowhere() -> None:
    """It is held by the error that ended the code, while another that stands before it is still being closed."""
    told: list[str] = []
    gc.collect()  # what other tests have left
    before = dict(generators._of)

    async def main() -> None:
        driving = Driving(World(answers={"closes the first": Takes(1000, None)}), lambda: fails_with_two(told))
        driving.begin(None)
        assert driving.replay.ended is None
        driving.replay.evict()
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)

    asyncio.run(main())
    assert told == ["the second is closed"]
    assert generators._of == before


def test_where_nobody_hears_of_generators_they_are_closed_as_python_does(hooks: Any) -> None:
    sys.set_asyncgen_hooks(None, None)
    World().run(lets_go)
    told: list[str] = []

    async def walk() -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            told.append("closed")

    walking = walk()
    with pytest.raises(StopIteration):
        anext(walking).send(None)  # type: ignore[attr-defined]
    del walking
    gc.collect()
    assert told == ["closed"]


async def leaves_circles() -> None:
    async def broken_off(name: str) -> None:
        async def each() -> AsyncIterator[Any]:
            try:
                yield me
            finally:
                await task(name)

        me = [each()]
        async for _ in me[0]:
            break

    await task("a")
    for number in range(3):
        await broken_off(f"undo {number}")


def test_a_workflow_ends_with_its_generators_whenever_garbage_is_collected_meanwhile() -> None:
    """At each call that winding up makes, in turn: a look that is taken twice finds less the second time."""
    winding_up = Loop.wind_up.__code__
    calls = 0

    def collect_at(frame: Any, event: str, _: Any) -> None:
        nonlocal calls
        if event not in ("call", "c_call") or not any(code is winding_up for code in codes_of(frame)):
            return
        calls += 1
        if calls == at:
            gc.collect()

    for at in range(1, 300):
        calls = 0
        before = sys.getprofile()
        gc.collect()
        gc.disable()
        sys.setprofile(collect_at)
        try:
            told = World().run(leaves_circles, check=False)
        finally:
            sys.setprofile(before)
            gc.enable()
        assert told.commands(EventType.TASK_SCHEDULED) == ["a", "undo 0", "undo 1", "undo 2"]
        if calls < at:
            break
    assert 3 < at < 299, "each of the calls had its turn"


def codes_of(frame: Any) -> Iterator[Any]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back
