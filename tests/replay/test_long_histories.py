"""A history twice as long costs twice as much to tell again, whatever it is made of.

Measured on Python 3.11, two cores, seconds of processor time for 10,000 and for 20,000 events:

    tasks one by one      0.13   0.26        tasks side by side    0.21   0.42
    steps one by one      0.18   0.36        each with a timeout   0.17   0.34
    10,000 and 20,000 tasks begun and cancelled in one turn         0.38   0.77
    5,000, 10,000 and 20,000 workflows with four timers each: alive 2.7, 5.4, 10.1; all evicted 0.2, 0.4, 0.8
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

import pytest

from stepwell.context.workflow import workflow
from stepwell.replay import replay as replays
from tests.replay.driver import World, child, new_replay, signal, step, task


async def one_by_one(count: int) -> None:
    for number in range(count):
        await task("t", number)


async def steps(count: int) -> None:
    for number in range(count):
        await step("t", number)


async def side_by_side(count: int) -> None:
    await asyncio.gather(*(child("t") for _ in range(count)))


async def in_a_group_that_fails(count: int) -> None:
    async def fails() -> None:
        await asyncio.sleep(1)
        raise ValueError

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(asyncio.sleep(100))
                group.create_task(workflow.signal("never"))
            group.create_task(fails())
    except* ValueError:
        pass


async def all_cancelled_at_once(count: int) -> None:
    made = [asyncio.create_task(task("t")) for _ in range(count)]
    await asyncio.sleep(0)
    for each in made:
        each.cancel()
    await asyncio.gather(*made, return_exceptions=True)


async def timeouts(count: int) -> None:
    for _ in range(count):
        async with asyncio.timeout(50):
            await step("t")
            workflow.publish("x")


async def as_they_complete(count: int) -> None:
    for each in asyncio.as_completed([task("t") for _ in range(count)]):
        await each


async def signals_first(count: int) -> None:
    await asyncio.sleep(1)
    for _ in range(count):
        await workflow.signal("go")


async def patched_each(count: int) -> None:
    for number in range(count):
        workflow.patched(f"p{number}")
        await task("t")


ALL = [
    one_by_one, steps, side_by_side, in_a_group_that_fails, all_cancelled_at_once, timeouts, as_they_complete,
    signals_first, patched_each,
]  # fmt: skip


def lines_to_tell(fn: Callable[..., Awaitable[Any]], count: int) -> int:
    """How many lines of Python it takes. A loop inside of C is not seen: for that there are the times above."""
    with patch.object(replays, "STRETCH", None):  # in parts, some of it would be heard of and some not
        told = World(arrives=[(0.5, signal("go"))] * count if fn is signals_first else ()).run(fn, count, check=False)
    replay = new_replay(fn)
    seen = 0

    def trace(_frame: Any, event: str, _arg: Any) -> Any:
        nonlocal seen
        seen += 1
        return trace

    gc.disable()  # what earlier tests left behind ends in Python lines, too
    sys.settrace(trace)
    try:
        replay.recorded(told.history)
    finally:
        sys.settrace(None)
        gc.enable()
    assert replay.ended == told.ended
    return seen


@pytest.mark.parametrize("fn", ALL, ids=lambda fn: fn.__name__)
def test_twice_the_events_cost_twice_as_much(fn: Callable[..., Awaitable[Any]]) -> None:
    few, many = lines_to_tell(fn, 150), lines_to_tell(fn, 300)
    assert many < few * 2.1


def test_ten_thousand_tasks_side_by_side() -> None:
    told = World().run(side_by_side, 5_000, check=False)
    assert len(told.history) == 10_002
    replay = new_replay(side_by_side)
    replay.recorded(told.history)
    assert replay.ended == told.ended
