"""The limit: asyncpg, the same rows and the same kind of statements as Stepwell's, and no task machinery.

Nothing is encoded, decoded or called per run, and nobody decides anything: what is left is the driver, the
statements and the disk. A task queue with these guarantees cannot be faster on this database.
"""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import timedelta
from typing import Any

import asyncpg
import stepwell_
import uvloop
from contender import TEXT, TO, Contender, main, store, tell

from stepwell.engine import workers
from stepwell.engine.runs import AGEING
from stepwell.engine.workers import Identity
from stepwell.model.ids import new_claim_id, new_run_id, new_worker_id
from stepwell.store.copying import COLUMNS
from stepwell.store.pool import Database
from stepwell.store.statements import load
from stepwell.version import VERSION

BATCH = 500
CONNECTIONS = 2
NOOP, PROBE = "bench.noop", "bench.probe"
CHANNEL = "bench_limit"
STATEMENTS = load("stepwell")
EVENTS = """
insert into stepwell.events (run_id, idx, type, at, data)
select $1, $2 + number, 'StepCompleted', stepwell.now(), '{"command": 1, "name": "bench.step", "value": null}'
  from generate_series(1, $3::int) number
"""

Connection = asyncpg.Connection  # type: ignore[type-arg]


# -- the statements: what changes when Stepwell's do


async def start(connection: Connection, input: bytes, name: str = NOOP) -> None:
    statement = STATEMENTS["start_run"]
    columns = {
        "id": new_run_id(), "name": name, "queue": "default", "priority": 50, "input": input, "tags": None,
        "retry": b"{}", "timeout": None, "parent_id": None, "root_id": None, "channel": None, "word": None,
    }  # fmt: skip
    await connection.fetch(statement.sql, *statement.bind(columns))


async def copy(connection: Connection, count: int, input: bytes) -> None:
    given = {"name": NOOP, "queue": "default", "priority": 50, "state": "pending", "input": input, "retry": b"{}"}
    same = [given.get(column) for column in COLUMNS[1:]]
    rows = ((new_run_id(), *same) for _ in range(count))
    await connection.copy_records_to_table("runs", schema_name="stepwell", records=rows, columns=COLUMNS)


async def write_events(connection: Connection, run_id: Any, first: int, count: int) -> None:
    """What a turn records of so many steps, and none of what it does besides."""
    await connection.execute(EVENTS, run_id, first, count)


class Turn:
    """Claims on one connection; then settles and claims, in one statement, for as long as there is anything."""

    def __init__(self, connection: Connection, worker: Any) -> None:
        self._connection = connection
        self._worker = worker

    async def claim(self) -> list[asyncpg.Record]:
        self._claim_id = new_claim_id()
        values = {
            "queues": None, "worker": self._worker, "names": [NOOP, PROBE], "limit": BATCH, "alone": True,
            "claim_id": self._claim_id, "ageing": AGEING, "aged": BATCH // 10,
        }  # fmt: skip
        answer = await self._speak("claim_runs", values)
        return answer if answer[0]["id"] is not None else []

    async def settle_and_claim(self, claimed: list[asyncpg.Record]) -> list[asyncpg.Record]:
        """The ids ascend, as the statements demand."""
        ids = sorted(row["id"] for row in claimed)
        return await self._exchange(ids) or await self.claim()

    async def _exchange(self, ids: list[Any]) -> list[asyncpg.Record]:
        """All of one priority, so the last id is the place behind which to go on."""
        settled, self._claim_id = [self._claim_id] * len(ids), new_claim_id()
        values = {
            "ids": ids, "claim_ids": settled, "results": b"[%b]" % b",".join([b"null"] * len(ids)),
            "queues": ["default"], "priorities": [50], "places": [ids[-1]], "share": BATCH, "worker": self._worker,
            "names": [NOOP, PROBE], "claim_id": self._claim_id, "channel": None, "word": None,
        }  # fmt: skip
        answer = await self._speak("exchange_runs", values)
        return answer if answer[0]["id"] is not None else []

    async def _speak(self, name: str, values: dict[str, Any]) -> list[asyncpg.Record]:
        statement = STATEMENTS[name]
        return await self._connection.fetch(statement.sql, *statement.bind(values))


# -- the contender


def packed(number: int) -> bytes:
    return json.dumps({"to": TO, "number": number, "text": TEXT}).encode()


class Limit(Contender):
    name = "limit"
    store = "postgres"
    keeps = "result"
    version = VERSION
    can_result = False

    def setup(self) -> None:
        stepwell_.Stepwell().setup()

    async def open(self) -> None:
        self.inner = stepwell_.Stepwell()
        await self.inner.open()
        self.database = Database(store(), "stepwell", size=20)
        self.connection = await self.database.connect()
        self.wire = await self.database.connect(synchronous_commit="off")
        self.idle: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
        for _ in range(20):
            self.idle.put_nowait(await self.database.connect())

    async def close(self) -> None:
        while not self.idle.empty():
            await self.idle.get_nowait().close()
        await self.wire.close()
        await self.connection.close()
        await self.inner.close()

    async def start_bulk(self, count: int) -> None:
        """One input for all: to make the bytes is not the database's work."""
        async with self.connection.transaction():
            await copy(self.connection, count, packed(12345))
        await self.wire.execute(f"notify {CHANNEL}")

    async def start_one(self, number: int) -> None:
        connection = await self.idle.get()
        await start(connection, packed(number), PROBE if self.probing else NOOP)
        self.idle.put_nowait(connection)
        if self.probing:
            await self.wire.execute(f"notify {CHANNEL}")

    def worker(self) -> None:
        uvloop.run(work())

    async def left(self) -> int:
        return await self.inner.left()

    async def fill_finished(self, count: int) -> None:
        await self.inner.fill_finished(count)

    async def fill_scheduled(self, count: int) -> None:
        await self.inner.fill_scheduled(count)

    async def write_steps(self, count: int, group: int) -> None:
        run_id = new_run_id()
        for first in range(0, count, group):
            await write_events(self.connection, run_id, first, min(group, count - first))


async def work() -> None:
    database = Database(store(), "stepwell")
    await database.open()
    worker = new_worker_id()
    await workers.renew(database, Identity(worker, "limit", "", 0, "", None, 1), timedelta(minutes=30))
    bells = [asyncio.Event() for _ in range(CONNECTIONS)]
    ear = await database.connect()
    await ear.add_listener(CHANNEL, lambda *_: [bell.set() for bell in bells])
    turns = [asyncio.create_task(drain(database, worker, bell)) for bell in bells]
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await asyncio.wait([asyncio.create_task(told.wait()), *turns], return_when=asyncio.FIRST_COMPLETED)
    for turn in turns:
        turn.cancel()


async def drain(database: Database, worker: Any, bell: asyncio.Event) -> None:
    turn, probed = Turn(await database.connect(), worker), False
    while True:
        bell.clear()
        claimed = await turn.claim()
        while claimed:
            # A drain holds no probes, and its long claims are not looked at. Elsewhere the first probe comes alone.
            if probed or len(claimed) < BATCH:
                probed |= announce(claimed)
            claimed = await turn.settle_and_claim(claimed)
        await bell.wait()


def announce(claimed: list[asyncpg.Record]) -> bool:
    """A probe's body; whether there was one."""
    probes = [row for row in claimed if row["name"] == PROBE]
    for row in probes:
        tell(json.loads(row["input"])["number"])
    return bool(probes)


if __name__ == "__main__":
    main(Limit)
