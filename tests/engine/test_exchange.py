"""What an exchange claims of rows that others have had in hand, or have."""

from __future__ import annotations

from datetime import timedelta

from stepwell.engine import runs
from stepwell.model.ids import WorkerId
from stepwell.store.pool import Database
from tests.engine.test_claim import exchanged
from tests.factory import a_start, a_worker, execute
from tests.waiting_for import until

LATER = timedelta(milliseconds=1)


async def a_committed_worker(database: Database) -> WorkerId:
    async with database.transaction() as tx:
        return await a_worker(tx)


async def taken(database: Database, worker: WorkerId, count: int) -> None:
    """So many come in by exchanges, none of which is a look. Where any transaction on this server that writes is older
    than what was locked, and is still open, an exchange steps over that: tests beside this one may have such."""
    claims = []

    async def all_of_them() -> bool:
        async with database.transaction() as tx:
            claims.extend(await exchanged(tx, worker, "late"))
        return len(claims) == count

    await until(all_of_them)


async def test_runs_that_were_delayed_are_claimed_by_an_exchange(database: Database) -> None:
    """Whoever made them due locked each of them, and their rows say so ever after: that lock is over."""
    worker = await a_committed_worker(database)
    async with database.transaction() as tx:
        await runs.start(tx, [a_start(queue="late", delay=LATER) for _ in range(7)])
    due: list[str] = []

    async def all_due() -> bool:
        async with database.transaction() as tx:
            due.extend(await runs.due(tx, limit=100))
        return len(due) == 7

    await until(all_due)
    async with database.transaction() as tx:
        locked = await execute(tx, "select from stepwell.runs where xmax <> '0'::xid")
        assert locked == "SELECT 7"
    await taken(database, worker, 7)


async def test_an_exchange_steps_over_what_another_transaction_holds_and_takes_it_when_that_is_over(
    database: Database,
) -> None:
    worker = await a_committed_worker(database)
    starts = [a_start(queue="late") for _ in range(7)]
    async with database.transaction() as tx:
        await runs.start(tx, starts)
    async with database.transaction() as holding:
        held = [start.id for start in starts[:3]]
        await execute(holding, "select from stepwell.runs where id = any($1::uuid[]) for update", held)
        async with database.transaction() as tx:
            claims = await exchanged(tx, worker, "late")
        assert {claim.id for claim in claims} == {start.id for start in starts[3:]}
    await taken(database, worker, 3)
