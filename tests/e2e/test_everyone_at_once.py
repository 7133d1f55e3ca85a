"""Many who do the same at the same time, and callers who go away in the middle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, TypeAlias

import asyncpg
import pytest
from e2e_processes import eventually

from stepwell import App, Call
from stepwell.dispatch.postgres import PostgresWakes
from stepwell.engine import ends, runs, settle
from stepwell.model.errors import Unavailable
from stepwell.model.ids import new_claim_id
from stepwell.model.outcome import Completed, Failed, Outcome, Released, Snoozed
from stepwell.model.run import Claim, Wanted
from stepwell.services.due import Due
from stepwell.services.reaper import Reaper
from stepwell.store.pool import Database
from stepwell.store.sessions import SESSION
from stepwell.telemetry import Telemetry
from tests.factory import BOOM, a_start, a_worker

Sql: TypeAlias = "asyncpg.Connection[Any]"


async def claimed(database: Database, count: int, *, lease: float = 60.0) -> list[Claim]:
    await runs.start(database, [a_start() for _ in range(count)])
    worker = await a_worker(database, lease=lease)  # type: ignore[arg-type]  # a verb of one statement
    taken = await runs.claim(database, Wanted(worker, ["default"], ["tests.task"], count, alone=True), new_claim_id())
    return taken.claims


async def test_many_leaders_over_the_same_rows_count_every_loss_once(database: Database, sql: Sql) -> None:
    """Reaper and Due from six places each, while workers claim and lose what they claimed."""
    wakes, telemetry = PostgresWakes(database), Telemetry()
    reaped: list[Any] = []
    telemetry.listen(lambda _name, facts: reaped.extend(facts["claims"]))
    for _ in range(3):
        lost = await claimed(database, 200)
        await sql.execute("update stepwell.workers set lease_until = now() - interval '1s'")
        await sql.execute("update stepwell.runs set due_at = now() where state = 'scheduled'")
        reapers = [Reaper(database, wakes, telemetry, calm=timedelta(0)) for _ in range(6)]
        dues = [Due(database, wakes) for _ in range(6)]
        await asyncio.gather(*(each.run_once() for each in [*reapers, *dues]))
        while (await reapers[0].reap())[0]:
            pass
        assert not await sql.fetchval("select count(*) from stepwell.runs where state = 'running'")
        assert len(lost) == 200
    await wakes.close()
    assert len(reaped) == len({(claim.id, claim.claim_id) for claim in reaped}) == 600
    assert (
        await sql.fetchval("select count(*) from stepwell.attempts")
        + await sql.fetchval("select count(*) from stepwell.finished_runs")
        == 600
    )


OUTCOMES: list[Outcome] = [Completed(b"1"), Failed(BOOM), Released(), Snoozed(timedelta(1))]


async def test_settles_and_cancels_over_shuffled_overlapping_batches_move_every_row_once(
    dsn: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 settlers and cancellers over 20 rows. A settling of several statements may be taken back by the server to
    end a circle: then nothing of it was written, it comes out as Unavailable, and is asked again, as the ledger does.
    """
    monkeypatch.setitem(SESSION, "lock_timeout", "60s")  # a circle takes a second to be seen, and there may be several
    database = Database(dsn, "stepwell")
    await database.open()
    noise = random.Random(7)
    claims = await claimed(database, 20)
    moved: list[Any] = []
    cancelled: list[Any] = []

    async def settler() -> None:
        batch = noise.sample(claims, 12)
        planned = settle.plan([(claim, noise.choice(OUTCOMES)) for claim in batch])
        for _ in range(10):
            try:
                async with database.transaction() as tx:
                    done = await settle.apply(tx, planned)
                moved.extend(done.moved)
                return
            except Unavailable:
                continue
        pytest.fail("ten times in a circle")

    async def canceller() -> None:
        moved, _ = await ends.cancel(database, [claim.id for claim in noise.sample(claims, 12)])
        cancelled.extend(moved)

    work: list[Coroutine[Any, Any, None]] = [settler() if n % 4 else canceller() for n in range(64)]
    results = await asyncio.gather(*work, return_exceptions=True)
    await database.close()
    assert [result for result in results if result is not None] == []
    assert len(moved) == len(set(moved))
    assert len(cancelled) == len(set(cancelled))
    rows = await sql.fetch("select id, state from stepwell.all_runs")
    assert len(rows) == 20
    assert {row["state"] for row in rows} <= {"completed", "failed", "pending", "scheduled", "cancelled"}


async def idle_in_transaction(sql: Sql) -> int:
    asked = """select count(*) from pg_stat_activity
                where datname = current_database() and pid <> pg_backend_pid() and state like 'idle in transaction%'"""
    return int(await sql.fetchval(asked))


async def _none_idle(sql: Sql) -> bool:
    return await idle_in_transaction(sql) == 0


async def cancelled_at(step: int, call: Coroutine[Any, Any, Any]) -> bool:
    """Cancel a call after so many turns of the loop; whether it was still under way."""
    task = asyncio.create_task(call)
    for _ in range(step):
        await asyncio.sleep(0)
        if task.done():
            break
    task.cancel()
    await asyncio.wait({task})
    return task.cancelled()


@pytest.mark.parametrize("how", ["start", "start_many with keys", "retry"])
async def test_a_call_cancelled_at_any_step_leaves_no_transaction_open(dsn: str, sql: Sql, how: str) -> None:
    app = App(dsn)

    @app.task(name="add")
    async def add(n: int) -> int:
        return n

    async with app:
        finished = await add.start(0)
        await finished.cancel()
        cancels, step, misses = 0, 0, 0
        while misses < 25:
            match how:
                case "start":
                    call: Coroutine[Any, Any, Any] = add.start(step)
                case "retry":
                    call = finished.retry()
                case _:
                    call = add.start_many([Call((n,), options={"key": f"{step}-{n}"}) for n in range(3)])
            # The loop turns much faster than the server answers: steps grow, to reach the end of the call.
            hit = await cancelled_at(step, call)
            cancels, misses, step = cancels + hit, 0 if hit else misses + 1, step + 1 + step // 8
            # A backend whose client hung up notices it a moment later.
            await eventually(lambda: _none_idle(sql))
        assert cancels > 10
        print(f"\n{how}: cancelled at {cancels} different steps")
        # All ten connections of the pool still work.
        await asyncio.gather(*(add.start(n) for n in range(30)))
        async with app.worker():
            pass
    states = await sql.fetch("select state, count(*) from stepwell.all_runs group by 1")
    assert {row["state"] for row in states} <= {"pending", "cancelled", "completed", "running"}
