"""Stepwell, through what its users have: an app, `start`, `start_many`, `result`, and `stepwell worker`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any
from uuid import UUID

import asyncpg
from contender import TEXT, TO, Contender, main, store, tell

from stepwell import App, Run, workflow
from stepwell.version import VERSION

CHUNK = 20_000
WORKER = ("--log-level", "warning")

# Found by indexes, and from the first run of this drain on: beside a million scheduled runs a look must not read them,
# nor what is left of those that ended before and cannot be cleaned away.
FIRST = """
select r.id from stepwell.runs r
 where r.state = 'pending' and r.limit_key is null and r.queue = 'default' order by r.priority, r.id limit 1 /* look */
"""
LEFT = """
select (select count(*) from stepwell.runs r
         where r.state = 'pending' and r.limit_key is null and r.queue = 'default' and (r.priority, r.id) >= (50, $1))
     + (select count(*) from stepwell.runs r
         where r.claimed_by = any(array(select w.id from stepwell.workers w
                                         where w.stopped_at is null and w.lease_until > stepwell.now()))) /* look */
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
RECORDED = "select count(*) from stepwell.events where type = $1 /* look */"
PARKED = """
select count(*) from stepwell.runs
 where kind = 'workflow' and state = 'waiting' and waits_for -> 'runs' = '[]' /* look */
"""
EVENTS = {"steps": "StepCompleted", "tasks": "TaskCompleted"}
NIL = UUID(int=0)
STEPS_IN_A_HUNDRED, TASKS_IN_A_HUNDRED = 50, 25

app = App(os.environ.get("BENCH_STORE") or None)


@app.task(name="bench.noop")
async def noop(to: str, number: int, text: str) -> None:
    return None


@app.task(name="bench.probe")
async def probe(to: str, number: int, text: str) -> None:
    tell(number)


@app.step(name="bench.step")
async def step(number: int) -> None:
    return None


@app.step(name="bench.mark")
async def mark(number: int) -> None:
    tell(number)


@app.workflow(name="bench.steps")
async def steps(to: str, length: int, text: str) -> None:
    for number in range(length):
        await step(number)


@app.workflow(name="bench.lone")
async def lone(to: str, length: int, text: str) -> None:
    await mark(0)
    for number in range(1, length):
        await step(number)
    await mark(length)


@app.workflow(name="bench.tasks")
async def tasks(to: str, length: int, text: str) -> None:
    for number in range(length):
        await noop(to, number, text)


@app.workflow(name="bench.fan")
async def fan(to: str, length: int, text: str) -> None:
    await asyncio.gather(*(noop(to, number, text) for number in range(length)))


@app.workflow(name="bench.asleep")
async def asleep(to: str, length: int, text: str) -> None:
    await asyncio.sleep(length * 86_400)


@app.workflow(name="bench.parked")
async def parked(to: str, length: int, text: str) -> None:
    """A step is one event, a task two."""
    for _ in range(length // 100):
        for number in range(STEPS_IN_A_HUNDRED):
            await step(number)
        await asyncio.gather(*(noop(to, number, text) for number in range(TASKS_IN_A_HUNDRED)))
    await workflow.signal("wake")


SHAPES = {"steps": steps, "lone": lone, "tasks": tasks, "fan": fan, "asleep": asleep}


class Stepwell(Contender):
    name = "Stepwell"
    store = "postgres"
    keeps = "result"
    version = VERSION
    first: UUID | None = None
    """The first run that was pending."""

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
        if self.first is None:
            self.first = await self.eye.fetchval(FIRST)
        return int(await self.eye.fetchval(LEFT, self.first or NIL))

    async def statements(self) -> int:
        return int(await self.eye.fetchval(STATEMENTS))

    async def fill_finished(self, count: int) -> None:
        await self.eye.execute(FINISHED, count, TO, TEXT)

    async def fill_scheduled(self, count: int) -> None:
        await self.eye.execute(SCHEDULED, count, TO, TEXT)

    async def start_workflows(self, shape: str, count: int, length: int) -> list[Run[None]]:
        if shape == "parked":
            return [await parked.options(key=f"parked {length}").start(TO, length, TEXT)]
        return await SHAPES[shape].start_many([(TO, length, TEXT)] * count)

    async def recorded(self, shape: str) -> int:
        return int(await self.eye.fetchval(RECORDED, EVENTS[shape]))

    async def parked(self) -> int:
        return int(await self.eye.fetchval(PARKED))

    async def wake(self, length: int) -> Run[Any]:
        run = app.run(f"parked {length}")
        await run.signal("wake")
        return run


if __name__ == "__main__":
    main(Stepwell)
