"""Procrastinate over psycopg: a pool that commits by itself, and several workers in a process.

A worker fetches one job at a time, so a process with one worker mostly waits. The pool is a given one, as its
documentation allows: the pool that it makes asks the database a question before every statement.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from importlib.metadata import version

import psycopg
import uvloop
from contender import TEXT, TO, Contender, main, store, tell
from procrastinate import App, PsycopgConnector
from psycopg.types.json import Jsonb
from psycopg_pool import AsyncConnectionPool

WORKERS = 4
CONCURRENCY = 16
CALLERS = 10
CHUNK = 1_000

FINISHED = """
with job as (
    insert into procrastinate_jobs (queue_name, task_name, args, status, attempts)
    select 'default', 'noop', %(args)s, 'succeeded', 1 from generate_series(1, %(count)s) returning id)
insert into procrastinate_events (job_id, type)
select id, type::procrastinate_job_event_type from job, unnest(array['deferred', 'started', 'succeeded']) type"""
SCHEDULED = """
with job as (
    insert into procrastinate_jobs (queue_name, task_name, args, scheduled_at)
    select 'default', 'noop', %(args)s, now() + interval '300 days' + number * interval '1 second'
    from generate_series(1, %(count)s) number returning id, scheduled_at)
insert into procrastinate_events (job_id, type, at)
select id, type::procrastinate_job_event_type, case type when 'scheduled' then scheduled_at else now() end
from job, unnest(array['deferred', 'scheduled']) type"""
LEFT = """
select count(*) from procrastinate_jobs
where status in ('todo', 'doing') and (scheduled_at is null or scheduled_at <= now())"""


def arguments(number: int) -> dict[str, str | int]:
    return {"to": TO, "number": number, "text": TEXT}


async def noop(to: str, number: int, text: str) -> None:
    return None


async def probe(to: str, number: int, text: str) -> None:
    tell(number)


def app() -> App:
    # It warns of tasks in a main module, which the contenders are.
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    made = App(connector=PsycopgConnector())
    made.task(name="noop", queue="default")(noop)
    made.task(name="probe", queue="default")(probe)
    return made


async def commit_alone(connection: psycopg.AsyncConnection) -> None:
    await connection.set_autocommit(True)


def pool(size: int) -> AsyncConnectionPool:
    return AsyncConnectionPool(store(), min_size=size, max_size=size, open=False, configure=commit_alone)


class ProcrastinateContender(Contender):
    name = "Procrastinate"
    store = "postgres"
    keeps = "status and events, no result"
    version = version("procrastinate")
    can_result = False

    def setup(self) -> None:
        with App(connector=PsycopgConnector(conninfo=store())).open() as opened:
            opened.schema_manager.apply_schema()

    async def open(self) -> None:
        self._app = app()
        self._pool = pool(CALLERS)
        await self._pool.open(wait=True)
        await self._app.open_async(self._pool)
        # Counting must not become a scan of the table while the planner's statistics are stale.
        self._look = await psycopg.AsyncConnection.connect(store(), autocommit=True, options="-c enable_seqscan=off")

    async def close(self) -> None:
        await self._pool.close()
        await self._look.close()

    async def start_bulk(self, count: int) -> None:
        chunks = [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]
        # Two at a time: the next chunk is encoded while the database writes the one before.
        for first in range(0, len(chunks), 2):
            pair = chunks[first : first + 2]
            await asyncio.gather(*(self._app.tasks["noop"].batch_defer_async(*map(arguments, each)) for each in pair))

    async def start_one(self, number: int) -> int:
        return await self._app.tasks["probe" if self.probing else "noop"].defer_async(**arguments(number))

    def worker(self) -> None:
        uvloop.run(work())

    async def left(self) -> int:
        cursor = await self._look.execute(LEFT)
        return (await cursor.fetchone())[0]

    async def fill_finished(self, count: int) -> None:
        await self._fill(FINISHED, count)

    async def fill_scheduled(self, count: int) -> None:
        await self._fill(SCHEDULED, count)

    async def _fill(self, statement: str, count: int) -> None:
        """With the triggers off: they write the events, and notify, row by row."""
        async with self._look.transaction():
            await self._look.execute("alter table procrastinate_jobs disable trigger user")
            await self._look.execute(statement, {"count": count, "args": Jsonb(arguments(0))})
            await self._look.execute("alter table procrastinate_jobs enable trigger user")


async def work() -> None:
    async with pool(WORKERS + 6) as connections:
        opened = app()
        await opened.open_async(connections)
        workers = [
            asyncio.create_task(opened.run_worker_async(concurrency=CONCURRENCY, install_signal_handlers=False))
            for _ in range(WORKERS)
        ]
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        stop = asyncio.create_task(ended.wait())
        await asyncio.wait([stop, *workers], return_when=asyncio.FIRST_COMPLETED)
        for worker in workers:
            worker.cancel()
        await asyncio.wait(workers)


if __name__ == "__main__":
    main(ProcrastinateContender)
