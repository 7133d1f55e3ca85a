"""Turns: who holds one writes, nobody else; and whoever takes the next goes on from what is written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from stepwell import App, ClaimLost, State, workflow
from stepwell.model.turn import Advance
from stepwell.testing import Clock
from stepwell.worker.direct import DirectLink
from tests.waiting_for import until
from tests.workflows.telling import has, reaches, types_of


async def test_two_workers_race_for_turns_and_every_history_is_whole(app: App) -> None:
    ran: list[str] = []

    @app.step
    async def step(label: str) -> str:
        ran.append(label)
        return label

    @app.task
    async def task(label: str) -> str:
        ran.append(label)
        return label

    @app.workflow
    async def work(n: int) -> list[str]:
        did = []
        for each in range(4):
            did.append(await (step if each % 2 else task)(f"{n}/{each}"))
            await workflow.signal("go")
        return did

    async with app.worker(slots=5), app.worker(slots=5):
        runs = [await work.start(n) for n in range(20)]

        async def go_on(run: Any) -> None:
            for _ in range(4):
                await run.signal("go")

        await asyncio.gather(*(go_on(run) for run in runs))
        results = [await run.result(30) for run in runs]
    assert results == [[f"{n}/{each}" for each in range(4)] for n in range(20)]
    assert sorted(ran) == sorted(f"{n}/{each}" for n in range(20) for each in range(4))
    for run in runs:
        types = await types_of(run)
        assert (types.count("SignalReceived"), types.count("WorkflowCompleted")) == (4, 1)


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Turns whose write was refused."""
    refused: list[UUID] = []
    advance = DirectLink.advance

    async def watched(link: DirectLink, advances: Sequence[Advance], *more: Any) -> Any:
        try:
            written = await advance(link, advances, *more)
        except ClaimLost as error:
            refused.append(error.run_id)
            raise
        refused.extend(each.claim.id for each in advances if each.claim.id not in written.turns)
        return written

    monkeypatch.setattr(DirectLink, "advance", watched)
    return refused


async def test_a_turn_whose_claim_is_lost_writes_nothing_and_the_next_holder_goes_on(
    app: App, sql: asyncpg.Connection[Any], refusals: list[UUID]
) -> None:
    begun, gate, ran = asyncio.Event(), asyncio.Event(), []

    @app.step
    async def first() -> str:
        ran.append("first")
        return "first"

    @app.step
    async def hold() -> str:
        ran.append("hold")
        begun.set()
        await gate.wait()
        return f"hold {len(ran)}"

    @app.task
    async def after(what: str) -> str:
        ran.append("after")
        return what

    @app.workflow
    async def work() -> list[str]:
        return [await first(), await after(await hold())]

    async with app.worker():
        run = await work.start()
        async with asyncio.timeout(30):
            await begun.wait()
        # As if it had been reaped: the claim is another worker's now, and ours has not heard of it.
        other = await sql.fetchval(
            "insert into stepwell.workers (id, name, host, pid, version, slots, lease_until)"
            " values (gen_random_uuid(), 'other', 'there', 1, '0', 1, now() + interval '1 hour') returning id"
        )
        await sql.execute(
            "update stepwell.runs set claim_id = gen_random_uuid(), claimed_by = $2 where id = $1", run.id, other
        )
        written = len(await run.history())
        gate.set()

        async def refused() -> bool:
            return run.id in refusals

        await until(refused)
        assert len(await run.history()) == written
        assert await run.children() == []
        await sql.execute(
            "update stepwell.runs set state = 'pending', claim_id = null, claimed_by = null, started_at = null,"
            " slot = null where id = $1",
            run.id,
        )
        assert await run.result(20) == ["first", "hold 3"]
    assert ran == ["first", "hold", "hold", "after"]
    assert len(await run.children()) == 1


async def test_workflows_beyond_the_cache_are_told_their_history_again(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.worker.turns.turns.Turns.__init__.__kwdefaults__", {"keep": 2})
    begins: list[int] = []
    ended: list[int] = []

    @app.step
    async def step(n: int) -> int:
        return n

    @app.workflow
    async def work(n: int) -> int:
        begins.append(n)
        try:
            total = 0
            for _ in range(3):
                total += await workflow.signal("n", int) + await step(1)
            return total
        finally:
            ended.append(n)

    async with app.worker():
        runs = [await work.start(n) for n in range(6)]
        for value in range(3):
            for run in runs:
                await reaches(run, State.WAITING)
                await run.signal("n", value)
                await has(run, "StepCompleted", value + 1)
        assert [await run.result(20) for run in runs] == [6] * 6
    # Told again more than once, and each of those coroutines was brought to its end.
    assert len(begins) > 6
    assert sorted(begins) == sorted(ended)


async def test_a_worker_that_has_never_seen_it_replays_a_long_history_in_pages(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.engine.workflows.PAGE", 7)
    ran: list[int] = []

    @app.step
    async def step(n: int) -> int:
        ran.append(n)
        return n

    @app.task
    async def task(n: int) -> int:
        ran.append(n)
        return n

    @app.workflow
    async def work() -> int:
        total = 0
        for n in range(20):
            total += await step(n)
        total += sum(await asyncio.gather(*(task(100 + n) for n in range(20))))
        return total + await workflow.signal("n", int)

    async with app.worker():
        run = await work.start()
        await has(run, "TaskCompleted", 20)
        await reaches(run, State.WAITING)
    assert len(await run.history()) == 61
    await run.signal("n", 1)
    async with app.worker():
        assert await run.result(20) == sum(range(20)) + sum(range(100, 120)) + 1
    assert sorted(ran) == [*range(20), *range(100, 120)]
    await types_of(run)


async def test_a_stopping_worker_gives_its_turns_back_at_once(app: App) -> None:
    begun = asyncio.Event()

    @app.step
    async def hold(label: str) -> str:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return label

    @app.workflow
    async def work() -> str:
        return await hold("done")

    run = await work.start()
    async with app.worker():
        async with asyncio.timeout(30):
            await begun.wait()
    assert (await run.info()).state is State.PENDING
    async with app.worker():
        assert await run.result(10) == "done"
    assert (await run.info()).failures == 0


async def test_turns_that_are_lost_with_their_workers_ten_times_in_a_row_fail_the_run(
    app: App, sql: asyncpg.Connection[Any]
) -> None:
    """A workflow whose turn kills its worker: it does not go round for ever."""

    @app.workflow
    async def work() -> None:
        await asyncio.sleep(3600)

    run = await work.start()
    clock = Clock(app.dsn)
    for _ in range(10):
        await sql.execute(
            "update stepwell.runs set state = 'running', attempt = attempt + 1, claim_id = gen_random_uuid(),"
            " claimed_by = gen_random_uuid(), started_at = stepwell.now(), due_at = null where id = $1",
            run.id,
        )
        async with app.worker(queues=["nobody"]):

            async def reaped() -> bool:
                return (await run.info()).state is not State.RUNNING

            await until(reaped, within=20)
        await clock.skip("2s", workers_live_on=False)
    info = await run.info()
    assert (info.state, info.error and info.error.reason) == (State.FAILED, "worker_lost")
    assert (await types_of(run))[-1] == "WorkflowFailed"
