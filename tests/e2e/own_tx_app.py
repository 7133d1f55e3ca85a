"""Bodies that write into the database in `current.tx()`: how often a row is there is how often it was done."""

from __future__ import annotations

import asyncio

from stepwell import App, Retry, current

app = App()


@app.task(retry=Retry(attempts=1000, delay=0.02, max_delay=0.2))
async def deposit(n: int) -> int:
    async with current.tx() as conn:
        await conn.execute("insert into deposits (n, attempt) values ($1, $2)", n, current.attempt)
        await asyncio.sleep(0.02)
        await count.options(tx=conn).start(n)
    await asyncio.sleep(0.02)
    return n


@app.task
async def count(n: int) -> int:
    return n
