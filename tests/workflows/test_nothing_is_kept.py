"""A worker keeps nothing of a workflow's turn that has ended, but the code of one that waits for its next."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
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


def resident() -> int:
    """Bytes of this process that are in memory."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_worker_needs_no_more_memory_after_twenty_thousand_workflows_than_after_two(app: App) -> None:
    logging.disable()  # pytest keeps every record
    try:
        kinds, chunk = Kinds(app), 50
        async with app.worker(queues=["default"]), app.worker(queues=[ELSEWHERE]):
            measured = []
            for rounds in (3, 26):  # of 700 workflows: after 2,100, and after 20,300
                for _ in range(rounds):
                    for name in NAMES:
                        await kinds.through(name, chunk)
                measured.append(resident())
    finally:
        logging.disable(logging.NOTSET)
    few, many = measured
    assert many <= 1.2 * few, f"{few / 2**20:.0f} MB after 2,100 workflows, {many / 2**20:.0f} MB after 20,300"
    print(f"{few / 2**20:.0f} MB after 2,100 workflows, {many / 2**20:.0f} MB after 20,300")
