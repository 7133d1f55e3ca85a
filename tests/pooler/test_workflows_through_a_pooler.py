"""A workflow needs no session of its own either: turns, steps, children, signals, and a fan-out that is copied."""

from __future__ import annotations

import asyncio

import asyncpg

from stepwell import App, current, workflow


async def test_a_workflow_with_all_it_can_do_works_through_a_pooler_with_two_sessions(app: App, dsn: str) -> None:
    sql = await asyncpg.connect(dsn)
    await sql.execute("create table written (value int)")

    @app.task
    async def double(x: int) -> int:
        return 2 * x

    @app.step
    async def write(value: int) -> int:
        async with current.tx() as connection:
            await connection.execute("insert into written values ($1)", value)
        return value

    @app.workflow
    async def child(x: int) -> int:
        return await double(x)

    @app.workflow
    async def all_of_it(x: int) -> list[int]:
        first = await write(x)
        second = await child(first)
        await asyncio.sleep(0.1)
        third = await workflow.signal("go", int, timeout=20)
        workflow.publish({"third": third})
        return [second, third, sum(await asyncio.gather(*(double(each) for each in range(300))))]

    async with app.worker(slots=20):
        runs = await all_of_it.start_many([(1,), (2,)])
        for run in runs:
            await run.signal("go", 7)
        assert [await run.result(timeout=40) for run in runs] == [[2, 7, 89_700], [4, 7, 89_700]]
        assert await runs[0].state() == {"third": 7}
    assert sorted(row["value"] for row in await sql.fetch("select value from written")) == [1, 2]
    await sql.close()
