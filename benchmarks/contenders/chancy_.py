"""Chancy: its asyncio executor with eager polling, and outcomes written every 10 ms instead of every second.

Leadership and recovery are on, as shipped; metrics, workflows and pruning are not, because no other peer has them on.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version

import psycopg
import uvloop
from chancy import Chancy, Job, Queue, Reference, Worker
from chancy.plugins.leadership import Leadership
from chancy.plugins.recovery import Recovery
from contender import TEXT, TO, Contender, main, store, tell
from psycopg.types.json import Json

CONCURRENCY = 1_000
FLUSH = 0.01
# How often a caller asks for its job; as shipped every second.
ASK = 0.005

FINISHED = """
insert into chancy_jobs (id, queue, func, kwargs, state, attempts, taken_by, claim_id, started_at, completed_at,
                         scheduled_at)
select gen_random_uuid(), 'default', 'chancy_.noop', %(kwargs)s, 'succeeded', 1, 'filler', gen_random_uuid(), now(),
       now(), now()
from generate_series(1, %(count)s)"""
SCHEDULED = """
insert into chancy_jobs (id, queue, func, kwargs, scheduled_at)
select gen_random_uuid(), 'default', 'chancy_.noop', %(kwargs)s,
       now() + interval '300 days' + number * interval '1 second'
from generate_series(1, %(count)s) number"""
LEFT = """
select (select count(*) from chancy_jobs where queue = 'default' and state in ('pending', 'retrying')
        and attempts < 1 and scheduled_at <= now())
     + (select count(*) from chancy_jobs where queue = 'default' and state = 'running')"""


async def noop(to: str, number: int, text: str) -> None:
    return None


async def probe(to: str, number: int, text: str) -> None:
    tell(number)


def job(number: int, task: str = "noop") -> Job:
    return Job(func=f"chancy_.{task}", kwargs={"to": TO, "number": number, "text": TEXT})


def app() -> Chancy:
    # It writes a line for every job; a quiet logger spares it that.
    quiet = logging.getLogger("chancy.quiet")
    quiet.setLevel(logging.WARNING)
    plugins = [Leadership(), Recovery()]
    return Chancy(
        store(),
        plugins=plugins,
        no_default_plugins=True,
        log=quiet,
        min_connection_pool_size=2,
        max_connection_pool_size=10,
    )


class ChancyContender(Contender):
    name = "Chancy"
    store = "postgres"
    keeps = "status, no result"
    version = version("chancy")

    def setup(self) -> None:
        asyncio.run(self._install())

    async def _install(self) -> None:
        async with app() as chancy:
            await chancy.migrate()
            queue = Queue(
                name="default",
                executor=Chancy.Executor.Async,
                concurrency=CONCURRENCY,
                polling_interval=1,
                eager_polling=True,
            )
            await chancy.declare(queue, upsert=True)

    async def open(self) -> None:
        self._chancy = app()
        await self._chancy.pool.open()
        # Counting must not become a scan of the table while the planner's statistics are stale.
        self._look = await psycopg.AsyncConnection.connect(store(), autocommit=True, options="-c enable_seqscan=off")

    async def close(self) -> None:
        await self._chancy.pool.close()
        await self._look.close()

    async def start_bulk(self, count: int) -> None:
        async def start(numbers: range) -> None:
            async for _ in self._chancy.push_many([job(number) for number in numbers]):
                pass

        await asyncio.gather(start(range(0, count, 2)), start(range(1, count, 2)))

    async def start_one(self, number: int) -> Reference:
        return await self._chancy.push(job(number, "probe" if self.probing else "noop"))

    async def result(self, handle: Reference) -> None:
        done = await self._chancy.wait_for_job(handle, interval=ASK)
        if done is None or done.state != done.State.SUCCEEDED:
            raise RuntimeError(f"{handle} is {done}")

    def worker(self) -> None:
        uvloop.run(work())

    async def left(self) -> int:
        cursor = await self._look.execute(LEFT)
        return (await cursor.fetchone())[0]

    async def fill_finished(self, count: int) -> None:
        await self._look.execute(FINISHED, {"count": count, "kwargs": Json(job(0).kwargs)})

    async def fill_scheduled(self, count: int) -> None:
        await self._look.execute(SCHEDULED, {"count": count, "kwargs": Json(job(0).kwargs)})


async def work() -> None:
    async with app() as chancy:
        worker = Worker(chancy)
        worker.send_outgoing_interval = FLUSH
        await worker.start()
        await worker.wait_for_shutdown()


if __name__ == "__main__":
    main(ChancyContender)
