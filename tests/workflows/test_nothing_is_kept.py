"""A worker keeps nothing of a workflow's turn that has ended, but the code of one that waits for its next."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stepwell import App
from tests.waiting_for import until
from tests.workflows.kinds import ELSEWHERE, NAMES, Kinds, goal

FEW = 5
OF_TURNS = {"Turn", "Replay", "Loop", "Draft", "RunningAttempt", "CallTask", "DurableTask", "Inbox", "TurnSteps"}


def alive() -> dict[int, str]:
    """What there is of turns, by the identity of each object."""
    gc.collect()
    return {id(each): name for each in gc.get_objects() if (name := type(each).__name__) in OF_TURNS}


@asynccontextmanager
async def kept(worker: Any) -> AsyncIterator[Counter[str]]:
    """What there is of turns after the block, and was not before, once the worker has nothing to do."""
    left: Counter[str] = Counter()
    before = alive()

    async def is_at_rest() -> bool:
        return not worker._turns._under_way and not worker._ledger.known

    yield left
    await until(is_at_rest)
    left.update(name for identity, name in alive().items() if identity not in before)


@pytest.mark.parametrize("kind", NAMES)
async def test_nothing_of_an_ended_turn_is_reachable(app: App, kind: str) -> None:
    kinds = Kinds(app)
    async with app.worker(queues=["default"]) as worker, app.worker(queues=[ELSEWHERE]):
        await kinds.through(kind, 1)
        async with kept(worker) as left:
            runs = await kinds.through(kind, FEW)
        assert [(await run.info()).state for run in runs] == [goal(kind)] * FEW
    assert left == {}


async def test_nothing_is_reachable_of_a_turn_that_was_told_of_an_end_elsewhere(app: App) -> None:
    """It stayed for a run that this worker might have claimed, and another did."""
    ended = asyncio.Event()

    @app.task(queue="both")
    async def first() -> None:
        await ended.wait()

    @app.task(queue="both")
    async def second() -> None:
        ended.set()

    @app.workflow
    async def work() -> None:
        ended.clear()
        await asyncio.gather(first(), first(), second())

    async with app.worker(queues=["default", "both"], slots=1) as worker, app.worker(queues=["both"]):
        await (await work.start()).result(60)
        async with kept(worker) as left:
            for _ in range(FEW):
                await (await work.start()).result(60)
    assert left == {}
