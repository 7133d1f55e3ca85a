"""A workflow that was started by its name alone: until its first write the tables take it for a task, and nobody else
may notice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import App, RunCancelled, State, WrongUse, workflow
from stepwell.engine import arrivals, pauses, runs, settle, turns, workers
from stepwell.engine.workers import Identity
from stepwell.model.events import Event, EventType
from stepwell.model.explanation import Why
from stepwell.model.ids import new_claim_id, new_run_id, new_worker_id
from stepwell.model.outcome import Failed
from stepwell.model.run import Claim, Error, Reason
from stepwell.model.turn import Advance, Consequences
from stepwell.replay.replay import LONG_AGO
from stepwell.store.pool import Transaction
from stepwell.testing import Clock
from tests.factory import a_start, claimed, execute
from tests.workflows.telling import reaches, types_of


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[App]:
    """It has none of the code."""
    async with App(dsn, migrate=False) as client:
        yield client


class Gate:
    """A workflow that stands in a step of its first turn until it is let through."""

    def __init__(self, app: App) -> None:
        self.begun, self.open, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

        @app.step
        async def stand() -> None:
            self.begun.set()
            try:
                await self.open.wait()
            finally:
                self.left.set()

        @app.workflow(name="gate")
        async def gate() -> str:
            await stand()
            return await workflow.signal("word", str)

    async def entered(self) -> None:
        async with asyncio.timeout(10):
            await self.begun.wait()


async def test_it_takes_a_signal_in_its_first_turn(app: App, client: App) -> None:
    gate = Gate(app)
    async with app.worker():
        run = await client.start("gate")
        await gate.entered()
        await run.signal("word", "hello")
        gate.open.set()
        assert await run.result(10) == "hello"
    assert await types_of(run) == ["WorkflowStarted", "StepCompleted", "SignalReceived", "WorkflowCompleted"]


async def test_it_is_paused_after_its_first_turn(app: App, client: App) -> None:
    gate = Gate(app)
    async with app.worker():
        run = await client.start("gate")
        await gate.entered()
        await run.pause()
        gate.open.set()
        await reaches(run, State.PAUSED)
        await run.signal("word", "hello")
        await run.resume()
        assert await run.result(10) == "hello"


async def test_it_is_cancelled_in_its_first_turn(app: App, client: App) -> None:
    gate = Gate(app)
    async with app.worker():
        run = await client.start("gate")
        await gate.entered()
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(10)
        async with asyncio.timeout(10):
            await gate.left.wait()


async def test_it_is_cancelled_before_its_first_turn_and_never_begins(app: App, client: App) -> None:
    gate = Gate(app)
    run = await client.start("gate")
    await run.cancel()
    async with app.worker():
        with pytest.raises(RunCancelled):
            await run.result(10)
    assert not gate.begun.is_set()


async def test_nobody_can_send_to_what_no_worker_knows(client: App) -> None:
    run = await client.start("gate")
    with pytest.raises(WrongUse, match="send again once a worker that has its code is running"):
        await run.signal("word", "hello")


async def test_explain_says_why_it_has_not_begun(app: App, client: App) -> None:
    Gate(app)
    run = await client.start("gate")
    assert Why.QUEUE_NOT_SERVED in {cause.code for cause in (await run.explain()).causes}
    async with app.worker():
        await reaches(run, State.RUNNING)
        assert {cause.code for cause in (await run.explain()).causes} == {Why.RUNNING}


async def test_the_timeout_of_a_tasks_attempt_is_none_of_a_turns(app: App, client: App) -> None:
    gate = Gate(app)
    async with app.worker():
        run = await client.definition("gate").options(timeout="10ms", deadline="1h").start()
        await gate.entered()
        assert not await _within(0.1, gate.left)
        gate.open.set()
        await run.signal("word", "hello")
        assert await run.result(10) == "hello"


async def _within(seconds: float, event: asyncio.Event) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


async def test_it_leaves_its_place_in_a_limited_queue_between_its_turns(app: App, client: App) -> None:
    gate = Gate(app)
    gate.open.set()

    @app.task(name="quick", queue="narrow")
    async def quick() -> int:
        return 1

    await app.queue("narrow").set(concurrency=1)
    async with app.worker():
        run = await client.definition("gate").options(queue="narrow").start()
        await reaches(run, State.WAITING)
        assert await (await quick.start()).result(10) == 1
        await run.signal("word", "hello")
        assert await run.result(10) == "hello"


async def test_it_is_kept_as_it_was_said(app: App, client: App, sql: asyncpg.Connection[Any]) -> None:
    gate = Gate(app)
    gate.open.set()
    async with app.worker():
        run = await client.definition("gate").options(keep="forever").start()
        await reaches(run, State.WAITING)
        await run.signal("word", "hello")
        await run.result(10)
    found = await sql.fetchrow("select kind, keep from stepwell.finished_runs where id = $1", run.id)
    assert tuple(found or ()) == ("workflow", "forever")


@pytest.mark.parametrize("known", [True, False])
async def test_a_delayed_one_that_was_paused_still_waits_for_its_time(
    app: App, client: App, dsn: str, known: bool
) -> None:
    gate = Gate(app)
    gate.open.set()
    who = app if known else client
    run = await who.definition("gate").options(delay="1h").start()
    await run.pause()
    await run.resume()
    assert (await run.info()).state is State.SCHEDULED
    async with app.worker():
        await Clock(dsn).skip("2h")
        await reaches(run, State.WAITING)


async def both_claimed(tx: Transaction) -> list[Claim]:
    """A workflow and a task, of a worker that knows which is which and has begun neither."""
    who = Identity(new_worker_id(), "tests", "host", 1, "0", None, 10, ["gate", "other"], {"gate": "1"})
    await workers.renew(tx, who, timedelta(seconds=60))
    return [await claimed(tx, a_start(name, queue="flows"), worker=who.id) for name in ("gate", "other")]


async def test_what_waits_for_its_first_turn_with_its_worker_takes_a_signal(tx: Transaction) -> None:
    gate, other = await both_claimed(tx)
    signal = Event(0, EventType.SIGNAL_RECEIVED, LONG_AGO, name="word", id=new_run_id())
    assert await arrivals.arrive(tx, gate.id, signal, after := Consequences())
    assert after.heard == [gate.id]
    assert (await turns.news(tx, [gate]))[gate.id].arrived == 1
    assert not await arrivals.arrive(tx, other.id, signal, Consequences())
    with pytest.raises(WrongUse, match=r"other .* is a task"):
        await arrivals.refuse_arrival(tx, other.id)


async def test_what_waits_for_its_first_turn_with_its_worker_is_paused_after_it(tx: Transaction) -> None:
    gate, other = await both_claimed(tx)
    assert (await pauses.pause(tx, [gate.id, other.id])).heard == [gate.id]
    done = Advance(gate, recorded=0, seen=0)
    after = await turns.advance(tx, [done], worker=new_worker_id(), claim_id=new_claim_id())
    assert after.turns[gate.id].state is State.PAUSED


async def test_a_lost_first_turn_is_a_lost_turn(tx: Transaction) -> None:
    """Ten in a row, and not three as of a task."""
    await both_claimed(tx)
    await execute(tx, "update stepwell.workers set lease_until = stepwell.now()")
    lost = await runs.lock_lost_claims(tx, limit=10, calm=timedelta(0))
    assert {claim.name: claim.turn for claim in lost} == {"gate": True, "other": False}
    gone = Failed(Error("WorkerLost", "", Reason.WORKER_LOST))
    for failures, ending, again in ((1, 0, 2), (8, 1, 1), (9, 2, 0)):
        for claim in lost:
            claim.failures = failures
        planned = settle.plan([(claim, gone) for claim in lost])
        tried = [each for batch in planned.batches.values() for each in batch.columns["ids"]]
        assert (len(planned.endings), len(tried)) == (ending, again)
