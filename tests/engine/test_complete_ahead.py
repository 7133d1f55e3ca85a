"""An outcome whose word goes ahead of it: the same move, and whoever heard the word waits for its commit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from stepwell.engine import lone, reads
from stepwell.model.outcome import Completed
from stepwell.model.states import MOVES, State
from stepwell.model.word import Word
from stepwell.store.pool import Database
from tests.factory import Made, a_run, another_claim, row_of, state_of
from tests.waiting_for import until

CHANNEL = "stepwell_finished"
DONE = Completed(b"1")
LOCKS = """select count(*) from pg_locks
            where locktype = 'advisory'
              and database = (select oid from pg_database where datname = current_database())
              and (classid::bigint << 32 | objid::bigint) = uuid_hash_extended($1, 1400006)"""


async def made_in(database: Database, state: State) -> Made:
    async with database.transaction() as tx:
        return await a_run(tx, state)


async def complete(database: Database, made: Made, **other: Any) -> bool:
    """Whether it moved."""
    exchanged = await lone.complete_ahead(database, other.get("claim", made.claim), DONE, Word(CHANNEL, made.id.hex))
    assert exchanged.lost in (set(), {made.id})
    return not exchanged.lost


@pytest.fixture
async def heard(dsn: str) -> AsyncIterator[list[object]]:
    connection = await asyncpg.connect(dsn)
    words: list[object] = []
    await connection.add_listener(CHANNEL, lambda *said: words.append(said[-1]))
    yield words
    await connection.close()


@pytest.mark.parametrize("state", list(State))
async def test_it_goes_where_the_table_says_or_nothing_happens(database: Database, state: State) -> None:
    made = await made_in(database, state)
    async with database.transaction() as tx:
        before = await row_of(tx, made.id)
    moved = await complete(database, made)
    async with database.transaction() as tx:
        after = await row_of(tx, made.id)
        now = await state_of(tx, made.id)
    if allowed := MOVES["complete_run_ahead"].get(state):
        assert moved
        assert {now} == allowed
    else:
        assert not moved
        assert after == before


async def test_it_leaves_what_complete_runs_leaves(database: Database) -> None:
    ahead, plain = await made_in(database, State.RUNNING), await made_in(database, State.RUNNING)
    await complete(database, ahead)
    await lone.complete(database, [(plain.claim, DONE)])
    own = {"id", "queue", "claim_id", "claimed_by", "created_at", "started_at", "finished_at"}
    async with database.transaction() as tx:
        rows = [await row_of(tx, each.id) for each in (ahead, plain)]
    first, second = ({name: value for name, value in row.items() if name not in own} for row in rows)
    assert first == second


async def test_by_another_claim_it_is_refused_and_made_twice_it_moves_once(database: Database) -> None:
    made = await made_in(database, State.RUNNING)
    assert not await complete(database, made, claim=another_claim(made.claim))
    assert await complete(database, made)
    assert not await complete(database, made)


async def test_its_commit_waits_for_the_disk_though_that_of_its_word_does_not(database: Database, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute(
        """create table waits_for_the_disk (setting text);
           create function note() returns trigger language plpgsql as $$ begin
               insert into waits_for_the_disk values (current_setting('synchronous_commit'));
               return null;
           end $$;
           create constraint trigger note after insert on stepwell.finished_runs
               deferrable initially deferred for each row execute function note()"""
    )
    made = await made_in(database, State.RUNNING)
    assert await complete(database, made)
    assert [tuple(row) for row in await connection.fetch("select * from waits_for_the_disk")] == [("on",)]
    await connection.close()


async def test_it_is_on_the_disk_when_it_is_answered(database: Database) -> None:
    looking = await database.connect()
    for _ in range(10):
        made = await made_in(database, State.RUNNING)
        before = await looking.fetchval("select pg_current_wal_insert_lsn()")
        assert await complete(database, made)
        assert await looking.fetchval("select pg_current_wal_flush_lsn() > $1", before)
    await looking.close()


async def test_it_is_heard_of_before_it_is_there_and_who_heard_waits_for_it(
    database: Database, dsn: str, heard: list[object]
) -> None:
    made = await made_in(database, State.RUNNING)
    holder = await asyncpg.connect(dsn)
    patience = "alter function stepwell.awaited_result set lock_timeout to '{}'"
    await holder.execute(patience.format("30s"))  # a slow machine is not what is tested
    try:
        async with holder.transaction():
            await holder.execute("select from stepwell.runs where id = $1 for update", made.id)
            completing = asyncio.create_task(complete(database, made))

            async def word() -> bool:
                return made.id.hex in heard

            async def locked() -> Any:
                return await holder.fetchval(f"{LOCKS} and granted", made.id)

            await until(word)
            await until(locked)
            waiting = asyncio.create_task(reads.awaited(database, made.id))

            async def waits() -> Any:
                return await holder.fetchval(f"{LOCKS} and not granted", made.id)

            await until(waits)
            assert not waiting.done()
            assert not completing.done()
        assert await completing
        finished = await waiting
        assert finished is not None
        assert (finished.state, finished.result) == (State.COMPLETED, b"1")
    finally:
        await holder.execute(patience.format("100ms"))
        await holder.close()


async def test_who_heard_does_not_wait_for_long(database: Database, dsn: str) -> None:
    """What the outcome waits for may take a while: a session is not given to that."""
    made = await made_in(database, State.RUNNING)
    holder = await asyncpg.connect(dsn)
    async with holder.transaction():
        await holder.execute("select pg_advisory_xact_lock(uuid_hash_extended($1, 1400006))", made.id)
        async with asyncio.timeout(20):
            assert await reads.awaited(database, made.id) is None
    await holder.close()
