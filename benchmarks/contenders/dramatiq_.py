"""Dramatiq: threads over lists in Redis.

It has no batch API (a group sends one message after another), so many starts are many sends. The worker's idle pause
is short, because a message that comes into it waits for its end.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from importlib.metadata import version

import dramatiq
from contender import TEXT, TO, Contender, main, store, tell
from dramatiq.brokers.redis import RedisBroker
from dramatiq.common import dq_name
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

THREADS = 4
PREFETCH = 128
IDLE = 10
QUEUE = "default"
BATCH = 1000
DAY = 24 * 3_600_000


def noop(to: str, number: int, text: str) -> None:
    return None


def probe(to: str, number: int, text: str) -> None:
    tell(number)


class Dramatiq(Contender):
    name = "Dramatiq"
    store = "redis"
    keeps = "result, 10 minutes"
    version = version("dramatiq")
    blocking = True

    def connect(self) -> None:
        self.broker = RedisBroker(url=store())
        self.results = RedisBackend(client=self.broker.client)
        self.broker.add_middleware(Results(backend=self.results, store_results=True))
        self.noop = dramatiq.actor(noop, queue_name=QUEUE, broker=self.broker)
        self.probe = dramatiq.actor(probe, queue_name=QUEUE, broker=self.broker)

    async def open(self) -> None:
        self.connect()

    async def close(self) -> None:
        self.broker.close()

    async def start_bulk(self, count: int) -> None:
        send = self.noop.send
        for number in range(count):
            send(TO, number, TEXT)

    async def start_one(self, number: int) -> dramatiq.Message:
        return (self.probe if self.probing else self.noop).send(TO, number, TEXT)

    async def result(self, handle: dramatiq.Message) -> None:
        handle.get_result(backend=self.results, block=True, timeout=60_000)

    def worker(self) -> None:
        ended = threading.Event()
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: ended.set())
        self.connect()
        worker = dramatiq.Worker(self.broker, worker_threads=THREADS, worker_timeout=IDLE)
        worker.queue_prefetch = PREFETCH
        worker.start()
        ended.wait()
        worker.stop()
        self.broker.close()

    async def left(self) -> int:
        """A message is taken out of this hash only after its result is stored; delayed ones are in another hash."""
        return self.broker.client.hlen(f"{self.broker.namespace}:{QUEUE}.msgs")

    async def fill_finished(self, count: int) -> None:
        """Kept for a day and not for ten minutes, or they would be gone before the last round."""
        for begin in range(0, count, BATCH):
            with self.broker.client.pipeline(transaction=False) as pipe:
                for number in range(begin, min(begin + BATCH, count)):
                    key = self.results.build_message_key(self.noop.message(TO, number, TEXT))
                    pipe.lpush(key, self.results.encoder.encode(None))
                    pipe.pexpire(key, DAY)
                pipe.execute()

    async def fill_scheduled(self, count: int) -> None:
        queue = f"{self.broker.namespace}:{dq_name(QUEUE)}"
        eta = int(time.time() * 1000) + 6 * DAY
        for begin in range(0, count, BATCH):
            messages = {}
            for number in range(begin, min(begin + BATCH, count)):
                own = str(uuid.uuid4())
                message = self.noop.message(TO, number, TEXT)
                options = {"redis_message_id": own, "eta": eta}
                messages[own] = message.copy(queue_name=dq_name(QUEUE), options=options).encode()
            with self.broker.client.pipeline(transaction=False) as pipe:
                pipe.hset(f"{queue}.msgs", mapping=messages)
                pipe.rpush(queue, *messages)
                pipe.execute()


main(Dramatiq)
