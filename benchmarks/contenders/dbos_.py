"""DBOS: a queue polled every 10 ms instead of every second, and results asked for as often.

Many starts go through `dbos.enqueue_workflow`, its SQL function, which is several times faster than its client.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import psycopg
from contender import TEXT, TO, Contender, main, store, tell
from dbos import DBOS, DBOSClient, DBOSConfig

NAME = "bench"
POLL = 0.01
CONCURRENCY = 500
THREADS = 16
CALLERS = 32
CHUNK = 500
INPUT = json.dumps({"positionalArgs": [TO, 0, TEXT], "namedArgs": {}})

BULK = """
select dbos.enqueue_workflow(%(body)s, %(name)s, named_args => given, application_name => %(name)s)
from unnest(%(given)s::json[]) given"""
# The shape of a real one: the row itself, its input and its output.
FINISHED = """
with made as (
    insert into dbos.workflow_status
        (workflow_uuid, status, name, executor_id, created_at, updated_at, application_version, recovery_attempts,
         queue_name, started_at_epoch_ms, serialization, completed_at, application_name, creator_xid)
    select gen_random_uuid(), 'SUCCESS', 'noop', '0', at, at, '1', 1, %(name)s, at, 'portable_json', at, %(name)s,
           gen_random_uuid()
    from generate_series(1, %(count)s), (select (extract(epoch from now()) * 1000)::bigint at) clock
    returning workflow_uuid, created_at),
input as (
    insert into dbos.workflow_input select workflow_uuid, %(input)s, created_at from made)
insert into dbos.workflow_output select workflow_uuid, 'null', null, created_at from made"""
SCHEDULED = """
with made as (
    insert into dbos.workflow_status
        (workflow_uuid, status, name, created_at, updated_at, recovery_attempts, queue_name, serialization,
         delay_until_epoch_ms, application_name, owner_xid)
    select gen_random_uuid(), 'DELAYED', 'noop', at, at, 0, %(name)s, 'portable_json', at + 26000000000 + number,
           %(name)s, gen_random_uuid()
    from generate_series(1, %(count)s) number, (select (extract(epoch from now()) * 1000)::bigint at) clock
    returning workflow_uuid, created_at)
insert into dbos.workflow_input select workflow_uuid, %(input)s, created_at from made"""
LEFT = "select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING') and queue_name = %s"


class DBOSContender(Contender):
    name = "DBOS"
    store = "postgres"
    keeps = "result"
    version = version("dbos")
    blocking = True

    def setup(self) -> None:
        launch()
        DBOS.register_queue(NAME, worker_concurrency=CONCURRENCY, polling_interval_sec=POLL)
        DBOS.destroy()

    async def open(self) -> None:
        self._client = DBOSClient(system_database_url=store(), system_database_pool_size=CALLERS, application_name=NAME)
        # Counting must not become a scan of the table while the planner's statistics are stale.
        self._look = psycopg.connect(store(), autocommit=True, options="-c enable_seqscan=off")

    async def close(self) -> None:
        self._client.destroy()
        self._look.close()

    async def start_bulk(self, count: int) -> None:
        for first in range(0, count, CHUNK):
            self._enqueue("noop", range(first, min(first + CHUNK, count)))

    def _enqueue(self, body: str, numbers: Iterable[int]) -> list[Any]:
        given = [json.dumps({"to": TO, "number": number, "text": TEXT}) for number in numbers]
        return [row[0] for row in self._look.execute(BULK, {"body": body, "name": NAME, "given": given})]

    async def start_one(self, number: int) -> Any:
        options: Any = {"workflow_name": "probe" if self.probing else "noop", "queue_name": NAME}
        return self._client.enqueue(options, TO, number, TEXT)

    async def result(self, handle: Any) -> None:
        handle.get_result(polling_interval_sec=POLL)

    def worker(self) -> None:
        ended = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        launch()
        ended.wait()
        DBOS.destroy()

    async def left(self) -> int:
        return self._look.execute(LEFT, (NAME,)).fetchone()[0]

    async def fill_finished(self, count: int) -> None:
        self._look.execute(FINISHED, {"name": NAME, "count": count, "input": INPUT})

    async def fill_scheduled(self, count: int) -> None:
        self._look.execute(SCHEDULED, {"name": NAME, "count": count, "input": INPUT})

    async def start_workflows(self, shape: str, count: int, length: int) -> list[Any]:
        if shape not in ("steps", "lone"):
            return await super().start_workflows(shape, count, length)
        return self._enqueue(shape, [length] * count)

    async def recorded(self, shape: str) -> int:
        return self._look.execute("select count(*) from dbos.operation_outputs").fetchone()[0]


@DBOS.workflow(name="noop")
def noop(to: str, number: int, text: str) -> None:
    return None


@DBOS.workflow(name="probe")
def probe(to: str, number: int, text: str) -> None:
    tell(number)


@DBOS.step(name="step")
def step(number: int) -> None:
    return None


@DBOS.step(name="mark")
def mark(number: int) -> None:
    tell(number)


@DBOS.workflow(name="steps")
def steps(to: str, number: int, text: str) -> None:
    for each in range(number):
        step(each)


@DBOS.workflow(name="lone")
def lone(to: str, number: int, text: str) -> None:
    mark(0)
    for each in range(1, number):
        step(each)
    mark(number)


def launch() -> None:
    logging.disable(logging.INFO)
    config: DBOSConfig = {
        "name": NAME,
        "system_database_url": store(),
        "application_version": "1",
        # A name of its own: a process takes over what another of the same name was doing.
        "executor_id": str(os.getpid()),
        "log_level": "ERROR",
        "max_executor_threads": THREADS,
    }
    DBOS(config=config)
    DBOS.launch()


if __name__ == "__main__":
    main(DBOSContender)
