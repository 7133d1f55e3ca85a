"""Stepwell, through what its users have: an app, `start`, `start_many`, `result`, and `stepwell worker`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import asyncpg
from contender import TEXT, TO, Contender, main, store, tell

from stepwell import App, Run
from stepwell.version import VERSION

CHUNK = 20_000
WORKER = ("--log-level", "warning")

# Found by indexes: beside a million scheduled runs, a look must not read them.
LEFT = """
select (select count(*) from stepwell.runs where state = 'pending' and limit_key is null)
     + (select count(*) from stepwell.runs where claimed_by is not null) /* look */
"""
# A worker finds the day's partition; so do these, which finished just now.
FINISHED = """
insert into stepwell.finished_runs (
           id, kind, name, queue, priority, state, input, result, retry, attempt, failures,
           claim_id, claimed_by, started_at, created_at, finished_at
       )
select uuidv7(), 'task', 'bench.noop', 'default', 50, 'completed',
       jsonb_build_object('to', $2::text, 'number', number, 'text', $3::text), 'null', '{}', 1, 0,
       gen_random_uuid(), gen_random_uuid(), stepwell.now(), stepwell.now(), stepwell.now()
  from generate_series(1, $1::int) number
"""
SCHEDULED = """
insert into stepwell.runs (id, name, queue, priority, state, input, retry, due_at)
select uuidv7(), 'bench.noop', 'default', 50, 'scheduled',
       jsonb_build_object('to', $2::text, 'number', number, 'text', $3::text), '{}',
       stepwell.now() + interval '1 day' + number * interval '1 second'
  from generate_series(1, $1::int) number
"""
STATEMENTS = """
select coalesce(sum(calls), 0)::bigint from pg_stat_statements
 where dbid = (select oid from pg_database where datname = current_database())
"""

app = App(os.environ.get("BENCH_STORE") or None)


@app.task(name="bench.noop")
async def noop(to: str, number: int, text: str) -> None:
    return None


@app.task(name="bench.probe")
async def probe(to: str, number: int, text: str) -> None:
    tell(number)


class Stepwell(Contender):
    name = "Stepwell"
    store = "postgres"
    keeps = "result"
    version = VERSION

    def setup(self) -> None:
        async def migrate() -> None:
            async with app:
                pass

        asyncio.run(migrate())

    async def open(self) -> None:
        await app.__aenter__()
        self.eye = await asyncpg.connect(
            store(), server_settings={"enable_seqscan": "off", "max_parallel_workers_per_gather": "0"}
        )

    async def close(self) -> None:
        await self.eye.close()
        await app.__aexit__()

    async def start_bulk(self, count: int) -> None:
        for first in range(0, count, CHUNK):
            await noop.start_many([(TO, number, TEXT) for number in range(first, min(first + CHUNK, count))])

    async def start_one(self, number: int) -> Run[None]:
        return await (probe if self.probing else noop).start(TO, number, TEXT)

    async def result(self, handle: Any) -> None:
        await handle.result()

    def worker(self) -> None:
        os.execv(sys.executable, [sys.executable, "-m", "stepwell", "worker", f"{__file__}:app", *WORKER])

    async def left(self) -> int:
        return int(await self.eye.fetchval(LEFT))

    async def statements(self) -> int:
        return int(await self.eye.fetchval(STATEMENTS))

    async def fill_finished(self, count: int) -> None:
        await self.eye.execute(FINISHED, count, TO, TEXT)

    async def fill_scheduled(self, count: int) -> None:
        await self.eye.execute(SCHEDULED, count, TO, TEXT)


if __name__ == "__main__":
    main(Stepwell)
