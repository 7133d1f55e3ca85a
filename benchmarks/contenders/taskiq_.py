"""Taskiq: coroutines over a Redis stream, results as keys.

It has no batch API, so many starts are many coroutines over a pool of connections. Its worker keeps up to a hundred
tasks going at once, reads the stream a hundred at a time and acknowledges when the result is saved.
"""

from __future__ import annotations

import asyncio
import datetime
from importlib.metadata import version
from typing import Any

from contender import TEXT, TO, Contender, main, store, tell
from redis.asyncio import Redis
from taskiq import AsyncTaskiqTask, ScheduledTask, TaskiqResult
from taskiq.cli.common_args import LogLevel
from taskiq.cli.worker.args import WorkerArgs
from taskiq.cli.worker.run import start_listen
from taskiq.serializers import ORJSONSerializer
from taskiq_redis import ListRedisScheduleSource, RedisAsyncResultBackend, RedisStreamBroker

STARTERS = 32
CONNECTIONS = 32
TASKS = 100
BATCH = 1000
FAR = datetime.timedelta(days=30)


async def noop(to: str, number: int, text: str) -> None:
    return None


async def probe(to: str, number: int, text: str) -> None:
    tell(number)


class Taskiq(Contender):
    name = "Taskiq"
    store = "redis"
    keeps = "result, stream entry"
    version = f"{version('taskiq')}, taskiq-redis {version('taskiq-redis')}"

    def connect(self) -> None:
        self.results: RedisAsyncResultBackend[Any] = RedisAsyncResultBackend(
            store(), max_connection_pool_size=CONNECTIONS, serializer=ORJSONSerializer()
        )
        # From the first entry on: by default a group sees only what comes after it was made.
        broker = RedisStreamBroker(store(), max_connection_pool_size=CONNECTIONS, consumer_id="0")
        self.broker = broker.with_result_backend(self.results).with_serializer(ORJSONSerializer())
        self.noop = self.broker.register_task(noop, "noop")
        self.probe = self.broker.register_task(probe, "probe")

    async def open(self) -> None:
        self.connect()
        await self.broker.startup()
        self.redis = Redis(connection_pool=self.broker.connection_pool)

    async def close(self) -> None:
        await self.broker.shutdown()

    async def start_bulk(self, count: int) -> None:
        numbers = iter(range(count))

        async def starter() -> None:
            for number in numbers:
                await self.noop.kiq(TO, number, TEXT)

        await asyncio.gather(*(starter() for _ in range(min(STARTERS, count))))

    async def start_one(self, number: int) -> AsyncTaskiqTask[None]:
        return await (self.probe if self.probing else self.noop).kiq(TO, number, TEXT)

    async def result(self, handle: AsyncTaskiqTask[None]) -> None:
        await handle.wait_result(check_interval=0.001)

    def worker(self) -> None:
        self.connect()
        start_listen(
            WorkerArgs(
                self.broker,
                [],
                configure_logging=False,
                log_level=LogLevel.ERROR,
                no_parse=True,
                max_async_tasks=TASKS,
                max_threadpool_threads=1,
            )
        )

    async def left(self) -> int:
        """Not yet read by the group, and read but not acknowledged, which comes after the result is saved."""
        (group,) = await self.redis.xinfo_groups(self.broker.queue_name)
        return group["lag"] + group["pending"]

    async def fill_finished(self, count: int) -> None:
        """The result, and the stream's entry, which stays after it was acknowledged."""
        value = TaskiqResult(is_err=False, return_value=None, execution_time=0.0, error=None)
        packed = self.results.serializer.dumpb(value.model_dump(mode="json"))
        queue, group = self.broker.queue_name, self.broker.consumer_group_name
        for begin in range(0, count, BATCH):
            async with self.redis.pipeline(transaction=False) as pipe:
                for number in range(begin, min(begin + BATCH, count)):
                    message = self.noop.kicker()._prepare_message(TO, number, TEXT)
                    pipe.xadd(queue, {"data": self.broker.formatter.dumps(message).message})
                    pipe.set(message.task_id, packed)
                ids = (await pipe.execute())[::2]
            await self.redis.xreadgroup(group, "filler", {queue: ">"}, count=len(ids))
            await self.redis.xack(queue, group, *ids)

    async def fill_scheduled(self, count: int) -> None:
        """Schedules are read by a process of its own (`taskiq scheduler`); the worker does not see them."""
        source = ListRedisScheduleSource(store(), serializer=ORJSONSerializer())
        when = datetime.datetime.now(datetime.UTC) + FAR
        list_key = source._get_time_key(when)
        for begin in range(0, count, BATCH):
            async with self.redis.pipeline(transaction=False) as pipe:
                for number in range(begin, min(begin + BATCH, count)):
                    message = self.noop.kicker()._prepare_message(TO, number, TEXT)
                    schedule = ScheduledTask(
                        schedule_id=message.task_id,
                        task_name=message.task_name,
                        labels={},
                        args=message.args,
                        kwargs={},
                        time=when,
                    )
                    packed = source._serializer.dumpb(schedule.model_dump(mode="json"))
                    pipe.set(source._get_data_key(message.task_id), packed)
                    pipe.rpush(list_key, message.task_id)
                await pipe.execute()


main(Taskiq)
