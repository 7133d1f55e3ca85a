"""What turns write, beside others who write to the same runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from stepwell.engine import arrivals, ends, settle, turns
from stepwell.model.commands import Ended
from stepwell.model.events import Event, EventType
from stepwell.model.ids import new_claim_id, new_run_id, new_worker_id
from stepwell.model.outcome import Completed
from stepwell.model.states import State
from stepwell.model.turn import Advance, Consequences
from stepwell.store import history as stored
from stepwell.store.pool import Database, Transaction
from tests.engine.test_moves import LONG_AGO, a_run, as_workflow
from tests.factory import Made, execute
from tests.waiting_for import until


async def test_a_signal_that_comes_as_its_workflow_completes_leaves_nothing_behind(database: Database) -> None:
    """Whoever completes it waits for the row that the signal has counted itself on, and does not see the signal."""
    async with database.transaction() as tx:
        run = await a_run(tx, State.RUNNING)
        await as_workflow(tx, run.claim)
    ended = Ended(EventType.WORKFLOW_COMPLETED, b"1")
    advance = Advance(run.claim, recorded=1, events=[Event(1, ended.type, LONG_AGO, value=b"1")], ended=ended).leave()
    signal = Event(0, EventType.SIGNAL_RECEIVED, LONG_AGO, name="late", value=b"1", id=new_run_id())
    look = await database.connect()

    async def waits() -> bool:
        return bool(await look.fetchval("select exists (select from pg_locks where not granted)"))

    async with database.transaction() as tx:
        assert await arrivals.arrive(tx, run.id, signal, Consequences())
        completing = asyncio.create_task(
            turns.advance(database, [advance], worker=new_worker_id(), claim_id=new_claim_id())
        )
        await until(waits)
    assert list((await completing).turns) == [run.id]
    assert await look.fetchval("select state from stepwell.finished_runs where id = $1", run.id) == "completed"
    assert await look.fetchval("select count(*) from stepwell.arrivals") == 0
    await look.close()


async def advanced(tx: Transaction, *advances: Advance) -> Consequences:
    return await turns.advance(tx, advances, worker=new_worker_id(), claim_id=new_claim_id())


def recording(run: Made, *events: Event, seen: int = 0) -> Advance:
    return Advance(run.claim, recorded=len(events), seen=seen, events=list(events), to="stay").leave()


async def a_turn(tx: Transaction) -> Made:
    run = await a_run(tx, State.RUNNING)
    await execute(tx, "update stepwell.runs set kind = 'workflow', arrived = 0, recorded = 0 where id = $1", run.id)
    return run


async def take_away(tx: Transaction, run: Made) -> None:
    await execute(tx, "update stepwell.runs set claim_id = gen_random_uuid() where id = $1", run.id)


@pytest.mark.parametrize("year", [1970, 1999, 2000, 2026, 2280])
@pytest.mark.parametrize("microsecond", [0, 1, 999_999])
async def test_the_time_of_an_event_is_kept_to_the_microsecond(tx: Transaction, year: int, microsecond: int) -> None:
    """It is what a workflow is told when it asks for the time: another one told again would be another answer."""
    run = await a_turn(tx)
    at = datetime(year, 7, 3, 5, 6, 7, microsecond, UTC)
    await advanced(tx, recording(run, Event(1, EventType.STEP_COMPLETED, at, 1, "charge", value=b"1")))
    (event,) = [stored.event(row) for row in await tx.rows("history", id=run.id, after=0, limit=10)]
    assert (event.at, event.command, event.name, event.value) == (at, 1, "charge", b"1")


async def test_turns_that_record_together_each_have_their_own(tx: Transaction) -> None:
    """Some of several events, one that has lost its claim, one that has not heard of all, and one to be paused."""
    plain, lost, heard, pausing = [await a_turn(tx) for _ in range(4)]
    await take_away(tx, lost)
    await execute(tx, "update stepwell.runs set arrived = 3 where id = $1", heard.id)
    await execute(tx, "update stepwell.runs set pausing = true where id = $1", pausing.id)
    told = {
        run.id: [
            Event(idx, EventType.STEP_COMPLETED, LONG_AGO, idx, f"step {run.id}", value=b"%d" % idx)
            for idx in range(1, count + 1)
        ]
        for run, count in ((plain, 3), (lost, 2), (heard, 1), (pausing, 2))
    }
    seen = {heard.id: 2}
    of_each = [recording(run, *told[run.id], seen=seen.get(run.id, 0)) for run in (pausing, heard, lost, plain)]
    after = await advanced(tx, *of_each)
    assert set(after.turns) == {plain.id, heard.id, pausing.id}
    assert {run_id for run_id, each in after.turns.items() if each.arrived > seen.get(run_id, 0)} == {heard.id}
    assert {run_id for run_id, each in after.turns.items() if each.pausing} == {pausing.id}
    for run in (plain, lost, heard, pausing):
        rows = await tx.rows("history", id=run.id, after=0, limit=10)
        expected = [] if run is lost else [(each.idx, each.name, each.value) for each in told[run.id]]
        assert [(each.idx, each.name, each.value) for each in map(stored.event, rows)] == expected


async def test_parts_are_completed_in_pages_each_with_its_own_result(
    tx: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "PAGE_BYTES", 20)
    parts = [await a_run(tx, State.RUNNING) for _ in range(7)]
    await take_away(tx, parts[3])
    ended = [(part.claim, Completed(b'"%s"' % (b"x" * place * 3))) for place, part in enumerate(parts)]
    planned = settle.plan(ended[::-1])
    assert (await settle.apply(tx, planned)).moved == {part.id for part in parts} - {parts[3].id}
    found = {
        row["id"]: row["result"] for row in await tx.connection.fetch("select id, result from stepwell.finished_runs")
    }
    assert found == {claim.id: outcome.result for claim, outcome in ended if claim.id != parts[3].id}
