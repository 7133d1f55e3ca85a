"""Absurd: its SQL functions through its Python SDK; several workers in a process, each with a connection of its own.

The SDK runs one statement at a time on one connection, so a process with a single client waits for the database
most of the time. Clients are cheap: a process runs some of them beside each other.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import absurdctl
import psycopg
import uvloop
from absurd_sdk import AsyncAbsurd
from contender import TEXT, TO, Contender, main, store, tell

QUEUE = "bench"
CLIENTS = 4
CALLERS = 32
BATCH = 100
CHUNK = 500
# It cannot be woken: it asks. As shipped every 250 ms.
POLL = 0.02
OPTIONS = '{"max_attempts": 5}'

BULK = """
select made.task_id
from unnest(%(params)s::jsonb[]) params, absurd.spawn_task('bench', %(name)s, params, %(options)s) made"""
SCHEDULED = """
with task as (
    insert into absurd.t_bench (task_id, task_name, params, max_attempts, state, attempts, last_attempt_run)
    select absurd.portable_uuidv7(), 'noop', %(params)s::jsonb, 5, 'sleeping', 1, absurd.portable_uuidv7()
    from generate_series(1, %(count)s) returning task_id, last_attempt_run)
insert into absurd.r_bench (run_id, task_id, attempt, state, available_at)
select last_attempt_run, task_id, 1, 'sleeping', now() + interval '300 days' + random() * interval '1 day' from task"""
FINISHED = """
with task as (
    insert into absurd.t_bench (task_id, task_name, params, max_attempts, first_started_at, state, attempts,
                                last_attempt_run, completed_payload)
    select absurd.portable_uuidv7(), 'noop', %(params)s::jsonb, 5, now(), 'completed', 1, absurd.portable_uuidv7(),
           'null'
    from generate_series(1, %(count)s) returning task_id, last_attempt_run)
insert into absurd.r_bench (run_id, task_id, attempt, state, claimed_by, claim_expires_at, available_at, started_at,
                            completed_at, result)
select last_attempt_run, task_id, 1, 'completed', 'filler', now(), now(), now(), now(), 'null' from task"""
LEFT = """
select count(*) from absurd.r_bench
where state in ('pending', 'sleeping', 'running') and available_at < now() + interval '1 day'"""


def params(number: int) -> dict[str, Any]:
    return {"to": TO, "number": number, "text": TEXT}


class AbsurdContender(Contender):
    name = "Absurd"
    store = "postgres"
    keeps = "result"
    version = version("absurd-sdk")

    def setup(self) -> None:
        with psycopg.connect(store()) as connection:
            connection.execute(absurdctl.BUNDLED_SCHEMA_SQL)
            connection.execute("select absurd.create_queue(%s)", (QUEUE,))

    async def open(self) -> None:
        self._clients: list[AsyncAbsurd] = []
        self._free: asyncio.Queue[AsyncAbsurd] = asyncio.Queue()
        # Counting must not become a scan of the table while the planner's statistics are stale.
        self._look = await psycopg.AsyncConnection.connect(store(), autocommit=True, options="-c enable_seqscan=off")

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        await self._look.close()

    async def _client(self) -> AsyncAbsurd:
        """A client that nobody uses now; one for each caller."""
        if self._free.empty() and len(self._clients) < CALLERS:
            client = AsyncAbsurd(store(), queue_name=QUEUE)
            self._clients.append(client)
            return client
        return await self._free.get()

    async def start_bulk(self, count: int) -> None:
        """Its SDK has no batch, but its SQL does what a statement can: many starts share a commit."""
        for first in range(0, count, CHUNK):
            await self._spawn("noop", range(first, min(first + CHUNK, count)))

    async def _spawn(self, name: str, numbers: Iterable[int]) -> list[Any]:
        given = [json.dumps(params(number)) for number in numbers]
        cursor = await self._look.execute(BULK, {"name": name, "params": given, "options": OPTIONS})
        return [row[0] for row in await cursor.fetchall()]

    async def start_one(self, number: int) -> str:
        client = await self._client()
        try:
            made = await client.spawn("probe" if self.probing else "noop", params(number), queue=QUEUE)
        finally:
            self._free.put_nowait(client)
        return made["task_id"]

    async def result(self, handle: str) -> None:
        client = await self._client()
        try:
            snapshot = await client.await_task_result(handle)
        finally:
            self._free.put_nowait(client)
        if snapshot.state != "completed":
            raise RuntimeError(f"{handle} is {snapshot.state}")

    def worker(self) -> None:
        uvloop.run(work())

    async def left(self) -> int:
        cursor = await self._look.execute(LEFT)
        return (await cursor.fetchone())[0]

    async def fill_finished(self, count: int) -> None:
        await self._look.execute(FINISHED, {"count": count, "params": json.dumps(params(0))})

    async def fill_scheduled(self, count: int) -> None:
        await self._look.execute(SCHEDULED, {"count": count, "params": json.dumps(params(0))})

    async def start_workflows(self, shape: str, count: int, length: int) -> list[Any]:
        if shape not in SHAPES:
            return await super().start_workflows(shape, count, length)
        return await self._spawn(shape, [length] * count)

    async def recorded(self, shape: str) -> int:
        cursor = await self._look.execute("select count(*) from absurd.c_bench")
        return (await cursor.fetchone())[0]


async def noop(params: dict[str, Any], context: Any) -> None:
    return None


async def probe(params: dict[str, Any], context: Any) -> None:
    tell(params["number"])


async def nothing() -> None:
    return None


async def steps(params: dict[str, Any], context: Any) -> None:
    for _ in range(params["number"]):
        await context.step("step", nothing)


async def lone(params: dict[str, Any], context: Any) -> None:
    async def mark(number: int) -> None:
        tell(number)

    await context.step("first", lambda: mark(0))
    for _ in range(1, params["number"]):
        await context.step("step", nothing)
    await context.step("last", lambda: mark(params["number"]))


SHAPES = {"steps": steps, "lone": lone}


async def work() -> None:
    clients = [AsyncAbsurd(store(), queue_name=QUEUE) for _ in range(CLIENTS)]
    for client in clients:
        for name, body in {"noop": noop, "probe": probe, **SHAPES}.items():
            client.register_task(name)(body)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: [client.stop_worker() for client in clients])
    await asyncio.gather(*(client.start_worker(concurrency=BATCH, poll_interval=POLL) for client in clients))
    for client in clients:
        await client.close()


if __name__ == "__main__":
    main(AbsurdContender)
