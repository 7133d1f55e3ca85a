"""Partitions are made beside concurrent writers: no write fails for it, and none waits for long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg
import pytest

from stepwell.engine import retention
from stepwell.services.partitions import SOON, Partitions
from stepwell.store.pool import Database
from stepwell.testing import Clock
from tests.waiting_for import until

Sql: TypeAlias = "asyncpg.Connection[Any]"

pytestmark = pytest.mark.timeout(60)

ATTEMPT = """
insert into stepwell.attempts (run_id, attempt, outcome, claim_id, claimed_by, started_at, ended_at)
select stepwell.id_at(at + n * interval '1 millisecond'), 1, 'released', gen_random_uuid(), gen_random_uuid(), at, at
  from (select stepwell.now() + $1 * interval '1 day', (random() * 1e7)::int) a (at, n)
"""
FINISHED = """
insert into stepwell.finished_runs (
    id, kind, name, queue, priority, state, input, retry, attempt, failures, created_at, finished_at
)
select stepwell.new_run_id(), 'task', 'n', 'q', 50, 'cancelled', '{}', '{}', 0, 0, at, at
  from (select stepwell.now() + $1 * interval '1 day') a (at)
"""
WRITES = {"attempts": ATTEMPT, "finished_runs": FINISHED}
PARTS = """
select count(*) from pg_inherits i join pg_class c on c.oid = i.inhrelid
 where i.inhparent = $1::regclass and right(c.relname, 8) >= to_char(stepwell.now() at time zone 'UTC', 'YYYYMMDD')
   and c.relname ~ '\\d{8}$'
"""
TRANSACTIONS = """
select count(distinct xmin::text) from pg_class
 where relname ~ '^attempts_\\d{8}$' and right(relname, 8) >= to_char(stepwell.now() at time zone 'UTC', 'YYYYMMDD')
"""
WAITS = "select exists (select from pg_stat_activity where pid = $1 and wait_event_type = 'Lock')"
PATIENCE = 0.1
"""The seconds that `make_partition` waits for a lock."""


@asynccontextmanager
async def connections(database: Database, count: int) -> AsyncIterator[list[Sql]]:
    opened = [await database.connect() for _ in range(count)]
    try:
        yield opened
    finally:
        for each in opened:
            await each.close()


async def write_until(stop: asyncio.Event, connection: Sql, failed: list[Exception]) -> None:
    """Write attempts and finished runs of the days ahead, and take them back: with a row in the default partition, its
    day would stay there."""
    while not stop.is_set():
        transaction = connection.transaction()
        await transaction.start()
        try:
            for sql in random.sample(list(WRITES.values()), 2):
                await connection.execute(sql, random.randint(1, retention.AHEAD))
        except asyncpg.PostgresError as error:
            failed.append(error)
        finally:
            await transaction.rollback()


async def test_no_write_fails_while_partitions_are_made_after_days_without_any(database: Database, dsn: str) -> None:
    failed: list[Exception] = []
    async with connections(database, 7) as (looking, *writing):
        for _ in range(6):
            await Clock(dsn).skip("12d")
            stop = asyncio.Event()
            made = asyncio.create_task(retention.make_partitions(database))
            await asyncio.gather(
                *(write_until(stop, each, failed) for each in writing),
                _then_stop(made, stop),
            )
            while not await retention.make_partitions(database):
                pass
            assert await looking.fetchval(PARTS, "stepwell.events") == retention.AHEAD + 1
    assert failed == []


async def _then_stop(made: asyncio.Task[bool], stop: asyncio.Event) -> None:
    await made
    stop.set()


@pytest.mark.parametrize("table", WRITES)
async def test_a_write_that_waits_while_its_day_is_attached_is_written_to_it(
    database: Database, dsn: str, table: str
) -> None:
    await Clock(dsn).skip("12d")
    async with connections(database, 3) as (making, writing, looking):
        transaction = making.transaction()
        await transaction.start()
        day = await making.fetchval("select (stepwell.now() at time zone 'UTC')::date + 1")
        assert await making.fetchval("select stepwell.make_partition($1, $2)", table, day)
        write = asyncio.create_task(writing.execute(WRITES[table], 1))
        await until(lambda: looking.fetchval(WAITS, writing.get_server_pid()))
        await transaction.commit()
        await write
        assert await looking.fetchval(f"select count(*) from stepwell.{table}_{day:%Y%m%d}") == 1


async def test_a_table_in_use_is_left_for_the_next_pass_and_holds_up_no_writer_for_long(
    database: Database, dsn: str
) -> None:
    await Clock(dsn).skip("12d")
    partitions = Partitions(database, keep=None)
    async with connections(database, 3) as (holding, writing, looking):
        async with holding.transaction():
            await holding.execute(ATTEMPT, 0)
            making = asyncio.create_task(partitions.run_once())
            longest = 0.0
            while not making.done():
                began = time.monotonic()
                await writing.execute(FINISHED, 3)
                await writing.execute(ATTEMPT, 3)
                longest = max(longest, time.monotonic() - began)
            assert await making == SOON
            assert await looking.fetchval(PARTS, "stepwell.attempts") == 0
            assert await looking.fetchval(PARTS, "stepwell.progress") == retention.AHEAD + 1
        assert longest < 10 * PATIENCE, "one try waits for each of two locks, and there is one try for a table"
        assert await partitions.run_once() > SOON
        assert await looking.fetchval(PARTS, "stepwell.attempts") == retention.AHEAD - 1, "but for days with rows"


@pytest.mark.parametrize("table", WRITES)
async def test_a_day_whose_rows_are_in_the_default_partition_stays_there_and_the_others_are_made(
    database: Database, dsn: str, table: str
) -> None:
    await Clock(dsn).skip("12d")
    async with connections(database, 1) as (sql,):
        await sql.execute(WRITES[table], 2)
        assert await retention.make_partitions(database), "there is nothing left to try again"
        assert await sql.fetchval(PARTS, f"stepwell.{table}") == retention.AHEAD
        await sql.execute(WRITES[table], 2)
        assert await sql.fetchval(f"select count(*) from stepwell.{table}_default") == 2


async def test_a_partition_is_committed_before_the_next_is_made(database: Database, dsn: str) -> None:
    """Else the lock on its table would be kept meanwhile."""
    await Clock(dsn).skip("12d")
    async with connections(database, 1) as (sql,):
        await retention.make_partitions(database)
        assert await sql.fetchval(TRANSACTIONS) == retention.AHEAD + 1
