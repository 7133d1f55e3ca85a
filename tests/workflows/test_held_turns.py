"""A turn stays for tasks that its own worker runs: their end and what follows from it are one commit."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from stepwell import App, Retry, RunFailed, StepFailed, current, workflow
from stepwell.engine import ends
from stepwell.model.turn import Consequences
from stepwell.replay import loop
from stepwell.store.pool import Tx
from stepwell.worker.turns import children, run_turn
from tests.waiting_for import until

SOON = 30


async def test_tasks_of_a_workflow_run_where_its_turn_is_and_it_is_claimed_once(app: App) -> None:
    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    @app.workflow
    async def count(to: int) -> int:
        total = 0
        for number in range(to):
            total = await add(total, number)
        return total

    async with app, app.worker():
        run = await count.start(20)
        assert await run.result(timeout=SOON) == 190
        assert (await run.info()).attempt == 1
        assert [(await child.info()).attempt for child in await run.children()] == [1] * 20


async def test_with_one_slot_a_workflow_and_its_tasks_do_not_wait_for_each_other(app: App) -> None:
    @app.task
    async def double(x: int) -> int:
        await asyncio.sleep(0)
        return 2 * x

    @app.workflow
    async def doubled(x: int) -> list[int]:
        return list(await asyncio.gather(*(double(x + each) for each in range(5))))

    async with app, app.worker(slots=1):
        runs = await doubled.start_many([(each,) for each in range(10)])
        results = [await run.result(timeout=SOON) for run in runs]
    assert results == [[2 * (x + each) for each in range(5)] for x in range(10)]


async def test_whatever_a_workflow_starts_and_its_worker_ends_is_written_with_what_follows_from_it(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what was claimed as anything is, since there was no slot for it when it was started."""
    monkeypatch.setattr(children, "HOLD", SOON)
    told: list[UUID] = []
    tell = ends.tell_parents

    async def tell_parents(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
        told.extend(ids)
        await tell(tx, ids, after)

    monkeypatch.setattr(ends, "tell_parents", tell_parents)

    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @app.workflow
    async def all_doubled(count: int) -> int:
        return sum(await asyncio.gather(*(double(x) for x in range(count))))

    async with app, app.worker(slots=5):
        run = await all_doubled.start(300)
        assert await run.result(timeout=SOON) == 300 * 299
        assert (await run.info()).attempt == 1
    assert told == []


async def test_a_turn_that_waits_for_its_own_runs_from_its_first_step_on_needs_no_slot(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim told that there is nothing for it: it waits for nothing before."""
    monkeypatch.setattr(children, "HOLD", 10 * SOON)

    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @app.workflow
    async def eightfold(x: int) -> int:
        return await double(await double(await double(x)))

    async with app, app.worker(slots=2):
        runs = await eightfold.start_many([(x,) for x in range(20)])
        assert [await run.result(timeout=SOON) for run in runs] == [8 * x for x in range(20)]


async def test_a_task_that_takes_long_lets_the_turn_go(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "HOLD", 0.05)
    monkeypatch.setattr(run_turn, "LOOK", 0.1)
    go = asyncio.Event()

    @app.task
    async def slow() -> str:
        await go.wait()
        return "done"

    @app.workflow
    async def patient() -> str:
        return await slow()

    async with app, app.worker():
        run = await patient.start()

        async def waits() -> bool:
            return (await run.info()).state == "waiting"

        await until(waits)
        go.set()
        assert await run.result(timeout=SOON) == "done"


async def test_a_task_that_fails_here_is_tried_again_and_its_workflow_hears_of_the_last(app: App) -> None:
    seen: list[int] = []

    @app.task(retry=Retry(attempts=3, delay=0))
    async def picky(good_at: int) -> int:
        seen.append(current.attempt)
        if current.attempt < good_at:
            raise ValueError("not yet")
        return current.attempt

    @app.workflow
    async def tries() -> list[Any]:
        first = await picky(2)
        try:
            await picky(9)
        except RunFailed as error:
            return [first, error.attempt, error.type]
        return []

    async with app, app.worker():
        assert await (await tries.start()).result(timeout=SOON) == [2, 3, "ValueError"]
    assert seen == [1, 2, 1, 2, 3]


async def test_a_paused_queue_is_respected_by_a_turn_that_would_run_its_tasks_at_once(app: App) -> None:
    @app.task(queue="slow lane")
    async def task() -> int:
        return 7

    @app.workflow
    async def workflow() -> int:
        return await task()

    async with app, app.worker():
        await app.queue("slow lane").pause()
        run = await workflow.start()
        children = await until(run.children)
        assert (await children[0].info()).state == "pending"
        await app.queue("slow lane").resume()
        assert await run.result(timeout=SOON) == 7


async def test_what_a_step_writes_in_its_transaction_is_there_exactly_once_with_its_record(
    app: App, sql: asyncpg.Connection[Any]
) -> None:
    await sql.execute("create table written (value int)")

    @app.step
    async def write(value: int) -> int:
        async with current.tx() as connection:
            await connection.execute("insert into written values ($1)", value)
        if value == 99:
            raise ValueError("not this one")
        return value

    @app.workflow
    async def writes() -> str:
        await asyncio.gather(*(write(each) for each in range(5)))
        try:
            await write(99)
        except StepFailed as error:
            return error.type
        return ""

    async with app, app.worker():
        assert await (await writes.start()).result(timeout=SOON) == "ValueError"
    assert sorted(row["value"] for row in await sql.fetch("select value from written")) == [0, 1, 2, 3, 4]


async def test_a_step_whose_turn_was_lost_leaves_nothing_behind_in_its_transaction(
    app: App, sql: asyncpg.Connection[Any]
) -> None:
    await sql.execute("create table written (value int)")
    attempts: list[int] = []

    @app.step
    async def write() -> int:
        async with current.tx() as connection:
            await connection.execute("insert into written values ($1)", len(attempts))
        attempts.append(1)
        if len(attempts) == 1:
            await sql.execute(
                "update stepwell.runs set state = 'pending', claim_id = null, claimed_by = null, started_at = null"
            )
        return len(attempts)

    @app.workflow
    async def writes() -> int:
        return await write()

    async with app, app.worker():
        assert await (await writes.start()).result(timeout=SOON) == 2
    assert [row["value"] for row in await sql.fetch("select value from written")] == [1]


async def test_code_that_loops_for_ever_in_the_middle_of_a_turn_blocks_its_run_where_it_was_written(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events that the turn had written before are still counted: what follows is not written over them."""
    monkeypatch.setattr(loop, "MANY", 10_000)
    broken = True

    @app.step
    async def one() -> int:
        return 1

    @app.workflow
    async def spins() -> int:
        total = await one() + await one()
        while broken:  # noqa: ASYNC110  # which is just what is wrong with it
            await asyncio.sleep(0)
        return total + await one()

    async with app, app.worker():
        run = await spins.start()

        async def blocked() -> bool:
            return any(cause.code == "blocked" for cause in (await run.explain()).causes)

        await until(blocked, within=20)
        recorded = len(await run.history())
        assert recorded == 2  # the second step is recorded with what follows from it, and nothing did
    broken = False
    async with app, app.worker():
        assert await run.result(timeout=90) == 3


async def test_a_turn_whose_run_is_locked_by_a_users_transaction_keeps_no_other_from_being_written(
    app: App, sql: asyncpg.Connection[Any]
) -> None:
    @app.step
    async def one() -> int:
        return 1

    @app.workflow
    async def waits() -> int:
        await workflow.signal("go", int)
        return await one()

    async with app, app.worker():
        runs = await waits.start_many([()] * 20)

        async def all_wait() -> bool:
            return all([(await run.info()).state == "waiting" for run in runs])

        await until(all_wait)
        holding = sql.transaction()
        await holding.start()
        await runs[0].signal("go", 1)
        await sql.execute("select from stepwell.runs where id = $1 for update", runs[0].id)
        for run in runs[1:]:
            await run.signal("go", 1)
        assert [await run.result(timeout=SOON) for run in runs[1:]] == [1] * 19
        await holding.rollback()
        assert await runs[0].result(timeout=SOON) == 1
