"""Celery over Redis, for the queue and for the results.

It has no batch API (a group publishes one message after another), so many starts are many sends by one producer, from
an app without a result backend: with one, Celery subscribes to a channel for every task that it starts.
"""

from __future__ import annotations

import datetime
import json
import uuid
from importlib.metadata import version

import redis
from celery import Celery
from celery.result import AsyncResult
from contender import TEXT, TO, Contender, Lacking, main, store, tell

QUEUE = "celery"
PREFETCH = 64
BATCH = 1000
DAY = 24 * 3600
MOST_SCHEDULED = 20_000


def noop(to: str, number: int, text: str) -> None:
    return None


def probe(to: str, number: int, text: str) -> None:
    tell(number)


def results() -> str:
    """A database of its own for the results: its size is their number."""
    return store().rpartition("/")[0] + "/1"


def make(backend: str | None) -> Celery:
    app = Celery("benchmark", broker=store(), backend=backend, set_as_current=False)
    app.conf.update(
        # As the others do: a message is acknowledged when its result is stored, not before its body runs.
        task_acks_late=True,
        worker_prefetch_multiplier=PREFETCH,
        worker_enable_remote_control=False,
        worker_disable_rate_limits=True,
        broker_connection_retry_on_startup=True,
    )
    return app


class CeleryContender(Contender):
    name = "Celery"
    store = "redis"
    keeps = "result, 1 day"
    version = version("celery")
    blocking = True
    total: int | None = None

    def connect(self) -> None:
        self.app = make(results())
        self.noop = self.app.task(noop, name="noop")
        self.probe = self.app.task(probe, name="probe")

    async def open(self) -> None:
        self.connect()
        self.starter = make(None)
        self.queue = redis.Redis.from_url(store())
        self.results = redis.Redis.from_url(results())

    async def close(self) -> None:
        self.starter.close()
        self.app.close()

    async def start_bulk(self, count: int) -> None:
        with self.starter.producer_or_acquire() as producer:
            for number in range(count):
                self.starter.send_task("noop", (TO, number, TEXT), producer=producer)

    async def start_one(self, number: int) -> AsyncResult:
        return (self.probe if self.probing else self.noop).delay(TO, number, TEXT)

    async def result(self, handle: AsyncResult) -> None:
        handle.get(timeout=60)

    def worker(self) -> None:
        self.connect()
        quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
        self.app.worker_main(["--quiet", "worker", "--pool", "solo", *quiet])

    async def left(self) -> int:
        """By the results: a message is neither in the queue nor among the unacknowledged while a worker takes it."""
        stored = self.results.dbsize()
        if self.total is None:
            self.total = stored + self.queue.llen(QUEUE) + self.queue.hlen("unacked")
        return self.total - stored

    async def fill_finished(self, count: int) -> None:
        for begin in range(0, count, BATCH):
            with self.results.pipeline(transaction=False) as pipe:
                for _ in range(begin, min(begin + BATCH, count)):
                    task_id = str(uuid.uuid4())
                    meta = self.app.backend._get_result_meta(None, "SUCCESS", None, None) | {
                        "children": [],
                        "task_id": task_id,
                    }
                    pipe.set(self.app.backend.get_key_for_task(task_id), self.app.backend.encode(meta), ex=DAY)
                pipe.execute()

    async def fill_scheduled(self, count: int) -> None:
        """Copies of one real message. They lie in the one queue, and a worker takes all of them into its memory."""
        if count > MOST_SCHEDULED:
            raise Lacking("scheduled tasks lie in the same queue: a worker takes all into its memory before the rest")
        when = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=30)
        handle = self.noop.apply_async((TO, 0, TEXT), eta=when)
        real = self.queue.lindex(QUEUE, 0).decode()
        tag = json.loads(real)["properties"]["delivery_tag"]
        for begin in range(1, count, BATCH):
            copies = [
                real.replace(handle.id, str(uuid.uuid4())).replace(tag, str(uuid.uuid4()))
                for _ in range(begin, min(begin + BATCH, count))
            ]
            self.queue.lpush(QUEUE, *copies)


main(CeleryContender)
