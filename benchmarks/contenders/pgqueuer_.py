"""PgQueuer over asyncpg: batches of 500, uvloop, every table logged (its own default).

It is given connections and no pool: a pool asks the database to forget the session after every statement, and in a
worker it is slower, because reads and writes then meet in the database.
"""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import timedelta
from importlib.metadata import version
from itertools import cycle

import asyncpg
import uvloop
from contender import TEXT, TO, Contender, main, store, tell
from pgqueuer import PgQueuer, Queries
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.models import Job

BATCH = 500
CHUNK = 2_000
CALLERS = 10
# The watcher asks once per pause however many notifications came; its own pause is 50 ms.
PAUSE = timedelta(milliseconds=2)

# A finished job leaves these three rows in the log and none in the queue.
FINISHED = """
insert into pgqueuer_log (job_id, status, priority, entrypoint, aggregated)
select -number, status::pgqueuer_status, 0, 'noop', true
from generate_series(1, $1) number, unnest(array['queued', 'picked', 'successful']) status"""
SCHEDULED = """
with made as (
    insert into pgqueuer (priority, status, entrypoint, payload, execute_after)
    select 0, 'queued', 'noop', $2, now() + interval '300 days' + number * interval '1 second'
    from generate_series(1, $1) number returning id)
insert into pgqueuer_log (job_id, status, priority, entrypoint, aggregated)
select id, 'queued', 0, 'noop', true from made"""
LEFT = """
select (select count(*) from pgqueuer where status = 'queued' and entrypoint = any(array['noop', 'probe'])
        and execute_after <= now()) + (select count(*) from pgqueuer where status = 'picked')"""


def payload(number: int) -> bytes:
    return json.dumps({"to": TO, "number": number, "text": TEXT}).encode()


class PgQueuerContender(Contender):
    name = "PgQueuer"
    store = "postgres"
    keeps = "status log, no result"
    version = version("pgqueuer")

    def setup(self) -> None:
        asyncio.run(self._install())

    async def _install(self) -> None:
        connection = await asyncpg.connect(store())
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    async def open(self) -> None:
        self._connections = [await asyncpg.connect(store()) for _ in range(CALLERS)]
        self._clients = cycle([Queries.from_asyncpg_connection(each) for each in self._connections])
        # Counting must not become a scan of the table while the planner's statistics are stale.
        self._look = await asyncpg.connect(store(), server_settings={"enable_seqscan": "off"})
        self._watcher: CompletionWatcher | None = None

    async def close(self) -> None:
        if self._watcher:
            await self._watcher.__aexit__(None)
        for connection in (*self._connections, self._look):
            await connection.close()

    async def start_bulk(self, count: int) -> None:
        chunks = [range(first, min(first + CHUNK, count)) for first in range(0, count, CHUNK)]

        async def start(chunk: range) -> None:
            size = len(chunk)
            await next(self._clients).enqueue(["noop"] * size, [payload(number) for number in chunk], [0] * size)

        # Two at a time: the next chunk is encoded while the database writes the one before.
        for first in range(0, len(chunks), 2):
            await asyncio.gather(*map(start, chunks[first : first + 2]))

    async def start_one(self, number: int) -> int:
        ids = await next(self._clients).enqueue("probe" if self.probing else "noop", payload(number))
        return ids[0]

    async def result(self, handle: int) -> None:
        if self._watcher is None:
            client = next(self._clients)
            self._watcher = CompletionWatcher(client.driver, queries=client, debounce=PAUSE)
            await self._watcher.__aenter__()
        status = await self._watcher.wait_for(handle)
        if status != "successful":
            raise RuntimeError(f"{handle} is {status}")

    def worker(self) -> None:
        uvloop.run(work())

    async def left(self) -> int:
        return await self._look.fetchval(LEFT)

    async def fill_finished(self, count: int) -> None:
        await self._look.execute(FINISHED, count)

    async def fill_scheduled(self, count: int) -> None:
        await self._look.execute(SCHEDULED, count, payload(0))


async def work() -> None:
    connection = await asyncpg.connect(store())
    queue = PgQueuer.from_asyncpg_connection(connection)

    @queue.entrypoint("noop")
    async def noop(job: Job) -> None:
        json.loads(job.payload)

    @queue.entrypoint("probe")
    async def probe(job: Job) -> None:
        tell(json.loads(job.payload)["number"])

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queue.shutdown.set)
    await queue.run(batch_size=BATCH)
    await connection.close()


if __name__ == "__main__":
    main(PgQueuerContender)
