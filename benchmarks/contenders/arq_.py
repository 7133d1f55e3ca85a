"""arq: coroutines over a sorted set in Redis.

It has no batch API, so many starts are many coroutines over a pool of connections. The worker polls; the shipped half
second between two looks would make every figure a figure of that pause, so it is short here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from importlib.metadata import version
from typing import Any

from arq.connections import ArqRedis, RedisSettings, create_pool
from arq.constants import default_queue_name, job_key_prefix, result_key_prefix
from arq.jobs import Job, serialize_job, serialize_result
from arq.worker import Worker, func
from contender import TEXT, TO, Contender, main, store, tell

STARTERS = 32
POLL = 0.005
BATCH = 1000
DAY = 24 * 3_600_000
FAR = 30 * DAY


async def noop(ctx: dict[str, Any], to: str, number: int, text: str) -> None:
    return None


async def probe(ctx: dict[str, Any], to: str, number: int, text: str) -> None:
    tell(number)


def settings() -> RedisSettings:
    return RedisSettings.from_dsn(store())


class Arq(Contender):
    name = "arq"
    store = "redis"
    keeps = "result, 1 hour"
    version = version("arq")
    redis: ArqRedis

    async def open(self) -> None:
        self.redis = await create_pool(settings())

    async def close(self) -> None:
        await self.redis.aclose(close_connection_pool=True)

    async def start_bulk(self, count: int) -> None:
        numbers = iter(range(count))

        async def starter() -> None:
            for number in numbers:
                await self.redis.enqueue_job("noop", TO, number, TEXT)

        await asyncio.gather(*(starter() for _ in range(min(STARTERS, count))))

    async def start_one(self, number: int) -> Job:
        job = await self.redis.enqueue_job("probe" if self.probing else "noop", TO, number, TEXT)
        assert job is not None
        return job

    async def result(self, handle: Job) -> None:
        await handle.result(poll_delay=0.001)

    def worker(self) -> None:
        import uvloop

        uvloop.install()
        logging.disable(logging.INFO)
        # Ten jobs at once, as shipped: more of them were not faster.
        Worker([func(noop), func(probe)], redis_settings=settings(), max_jobs=10, poll_delay=POLL).run()

    async def left(self) -> int:
        """One transaction stores the result and takes the job off the queue; what is due later has a higher score."""
        return await self.redis.zcount(default_queue_name, "-inf", time.time() * 1000)

    async def fill_finished(self, count: int) -> None:
        """Kept for a day and not for an hour, or they would be gone before the last round."""
        now = int(time.time() * 1000)
        for begin in range(0, count, BATCH):
            async with self.redis.pipeline(transaction=False) as pipe:
                for number in range(begin, min(begin + BATCH, count)):
                    job_id = f"{number:032x}"
                    result = serialize_result(
                        "noop",
                        (TO, number, TEXT),
                        {},
                        1,
                        now,
                        True,
                        None,
                        now,
                        now,
                        f"{job_id}:noop",
                        default_queue_name,
                        job_id,
                    )
                    pipe.set(result_key_prefix + job_id, result, px=DAY)
                await pipe.execute()

    async def fill_scheduled(self, count: int) -> None:
        now = int(time.time() * 1000)
        for begin in range(0, count, BATCH):
            async with self.redis.pipeline(transaction=False) as pipe:
                for number in range(begin, min(begin + BATCH, count)):
                    job_id = f"{number:032x}"
                    job = serialize_job("noop", (TO, number, TEXT), {}, None, now)
                    pipe.psetex(job_key_prefix + job_id, FAR + DAY, job)
                    pipe.zadd(default_queue_name, {job_id: now + FAR})
                await pipe.execute()


main(Arq)
