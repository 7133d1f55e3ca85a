"""What turns write, beside others who write to the same runs."""

from __future__ import annotations

import asyncio

from stepwell.engine import turns, workflows
from stepwell.model.commands import Ended
from stepwell.model.events import Event, EventType
from stepwell.model.ids import new_claim_id, new_run_id, new_worker_id
from stepwell.model.states import State
from stepwell.model.turn import Advance, Consequences
from stepwell.store.pool import Database
from tests.engine.test_moves import LONG_AGO, a_run, as_workflow
from tests.waiting_for import until


async def test_a_signal_that_comes_as_its_workflow_completes_leaves_nothing_behind(database: Database) -> None:
    """Whoever completes it waits for the row that the signal has counted itself on, and does not see the signal."""
    async with database.transaction() as tx:
        run = await a_run(tx, State.RUNNING)
        await as_workflow(tx, run.claim)
    ended = Ended(EventType.WORKFLOW_COMPLETED, b"1")
    advance = Advance(run.claim, recorded=1, events=[Event(1, ended.type, LONG_AGO, value=b"1")], ended=ended)
    signal = Event(0, EventType.SIGNAL_RECEIVED, LONG_AGO, name="late", value=b"1", id=new_run_id())
    look = await database.connect()

    async def waits() -> bool:
        return bool(await look.fetchval("select exists (select from pg_locks where not granted)"))

    async with database.transaction() as tx:
        assert await workflows.arrive(tx, run.id, signal, Consequences())
        completing = asyncio.create_task(
            turns.advance(database, [advance], worker=new_worker_id(), claim_id=new_claim_id())
        )
        await until(waits)
    assert list((await completing).turns) == [run.id]
    assert await look.fetchval("select state from stepwell.finished_runs where id = $1", run.id) == "completed"
    assert await look.fetchval("select count(*) from stepwell.arrivals") == 0
    await look.close()
