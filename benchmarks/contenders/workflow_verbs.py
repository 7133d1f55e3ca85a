"""The verbs for those who have workflows: what their steps and waits cost, on one worker.

SHAPES of workflows, each so many steps or tasks long:

    steps    no-op steps, one after another
    lone     the same; the body of the first tells 0, and behind the last one tells the length
    tasks    no-op tasks on the same worker, one after another
    fan      no-op tasks, all of them by one gather
    asleep   a day's sleep
    parked   so many events, by steps and tasks; then it waits to be woken, and ends

Only the standard library, as everything here that is not a contender.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from looks import rate_of, watch
from processes import Workers
from telling import PATIENCE, listening, told

if TYPE_CHECKING:
    from contender import Contender

WARM = 20
LONG = 1_000
"""Seconds for what is made once, and for what shall not be cut short."""
CALM = 3.0
"""Seconds in which a worker gives back what it needed on the way."""


async def steps(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """Many workflows of some steps each, all there before the worker is: steps that the store holds, a second."""

    async def stored() -> int:
        return await contender.recorded(chosen.shape)

    await contender.start_workflows(chosen.shape, chosen.count, chosen.length)
    with Workers(1) as workers:
        looks = await watch(stored, workers, until=chosen.count * chosen.length, gap=0.02, most=chosen.most)
    return {**rate_of(looks)}


async def bare(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """The rows of so many steps, so many to a commit, with nothing around them."""
    await contender.write_steps(chosen.group, chosen.group)
    begin = time.perf_counter()
    await contender.write_steps(chosen.count, chosen.group)
    return {"seconds": time.perf_counter() - begin}


async def lone(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """One long workflow: from the body of its first step to that of the one behind its last.

    By the bodies' own clock, so that neither starting it nor hearing of its end counts.
    """
    with listening() as ear, Workers(1) as workers:
        for length in (WARM, chosen.length):
            await contender.start_workflows("lone", 1, length)
            begin, end = await told(ear, 0), await told(ear, length)
            workers.check()
    return {"seconds": end - begin}


async def whole(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """One workflow at a time, from the call of start to its result in the caller's hands."""
    seconds = []
    with Workers(1) as workers:
        await _through(contender, chosen.shape, WARM)
        for _ in range(chosen.times):
            begin = time.perf_counter()
            await _through(contender, chosen.shape, chosen.length)
            seconds.append(time.perf_counter() - begin)
            workers.check()
    return {"seconds": seconds}


async def asleep(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """The memory of a worker when a fifth of the workflows are asleep, which is more than it keeps alive, and all."""
    sizes = []
    with Workers(1) as workers:
        for count in (chosen.count // 5, chosen.count):
            await contender.start_workflows("asleep", count - (chosen.count // 5 if sizes else 0), 1)
            await _until(contender.parked, count, workers)
            await asyncio.sleep(CALM)
            sizes.append(workers.resident())
    return {"few": sizes[0], "all": sizes[1]}


async def park(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """Make a workflow with a long history that waits."""
    parked = await contender.parked()
    with Workers(1) as workers:
        await contender.start_workflows("parked", 1, chosen.length)
        await _until(contender.parked, parked + 1, workers)
    return {}


async def wake(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """From the signal to the result, by a worker that has to be told the whole history first."""
    with Workers(1) as workers:
        await _through(contender, "steps", WARM)
        begin = time.perf_counter()
        await asyncio.wait_for(contender.result(await contender.wake(chosen.length)), PATIENCE)
        seconds = time.perf_counter() - begin
        workers.check()
    return {"seconds": seconds}


async def _through(contender: Contender, shape: str, length: int) -> None:
    (handle,) = await contender.start_workflows(shape, 1, length)
    await asyncio.wait_for(contender.result(handle), PATIENCE)


async def _until(asked: Callable[[], Awaitable[int]], count: int, workers: Workers) -> None:
    deadline = time.monotonic() + LONG
    while await asked() < count:
        workers.check()
        if time.monotonic() > deadline:
            raise RuntimeError(f"only {await asked()} of {count} got there in {LONG} s\n{workers.words()}")
        await asyncio.sleep(0.1)


WORKFLOW_VERBS = {each.__name__: each for each in (steps, bare, lone, whole, asleep, park, wake)}
