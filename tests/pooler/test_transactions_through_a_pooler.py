"""`tx=` and `current.tx()` need no more of a session than the transaction that they are part of."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg

from stepwell import App, current


async def test_a_start_in_the_users_transaction_works_through_a_pooler(app: App, pooled: str, dsn: str) -> None:
    @app.task(name="echo")
    async def echo(what: str) -> str:
        return what

    async with app.worker(slots=1):
        theirs = await asyncpg.connect(pooled, statement_cache_size=0)
        for n in range(5):
            async with theirs.transaction():
                run = await echo.options(tx=theirs, key=f"k{n}").start("a")
            assert await run.result(timeout=10) == "a"
        await theirs.close()
        with psycopg.connect(pooled, prepare_threshold=None) as conn:
            other = echo.options(tx=conn).sync.start("b")._run
        assert await other.result(timeout=10) == "b"


async def test_a_bodys_own_transaction_works_through_a_pooler_and_leaves_nothing_there(app: App, dsn: str) -> None:
    sql = await asyncpg.connect(dsn)
    await sql.execute("create table ledger (n int)")
    await sql.close()

    @app.task(name="deposit")
    async def deposit(n: int) -> Any:
        async with current.tx() as conn:
            await conn.execute("insert into ledger values ($1)", n)
            return [
                await conn.fetchval("show enable_seqscan"),
                await conn.fetchval("select count(*) from pg_prepared_statements where statement like '%ledger%'"),
                await conn.fetchval("select count(*) from ledger"),
            ]

    async with app.worker(slots=1):
        for n in range(1, 6):
            assert await (await deposit.start(n)).result(timeout=10) == ["on", 0, n]


async def test_bodies_in_their_own_transactions_do_not_starve_the_rest_of_a_pool_of_two(app: App, dsn: str) -> None:
    """Each holds a session of the pooler's for as long as its block lasts, and waits there for one more: its start."""
    sql = await asyncpg.connect(dsn)
    await sql.execute("create table written (n int primary key)")

    @app.task
    async def small() -> None: ...

    @app.task
    async def write(n: int) -> int:
        async with current.tx() as conn:
            await conn.execute("insert into written values ($1)", n)
            await small.start()
        return n

    runs = await write.start_many([(n,) for n in range(40)])
    async with app.worker(slots=8):
        assert await asyncio.gather(*(run.result(40) for run in runs)) == list(range(40))
    assert await sql.fetchval("select count(*) from written") == 40
    await sql.close()
