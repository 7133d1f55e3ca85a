"""The limit: the same rows by the same statements, and no task machinery.

Nothing is encoded, decoded or called per run, and nobody decides anything: what is left is the driver, the
statements, the network and the disk. A task queue with these guarantees cannot be faster on this database.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import asyncpg
import msgspec

from stepwell.cli.measuring.clock import Probe
from stepwell.cli.measuring.processes import Unmeasured
from stepwell.cli.measuring.tasks import NOOP, TEXT, TO
from stepwell.concurrency.background import in_time
from stepwell.concurrency.group_commit import FLIGHTS
from stepwell.engine import runs, workers
from stepwell.engine.workers import Identity
from stepwell.model.ids import new_claim_id, new_run_id, new_worker_id
from stepwell.model.start import Start, Terms
from stepwell.store.pool import Database, Row, Transaction
from stepwell.store.statements import in_schema
from stepwell.version import VERSION

BATCH = 500
CALLERS = 100
QUEUE = "bare"
PRIORITY = 50
TERMS = Terms(NOOP, QUEUE, PRIORITY)
LEASE = timedelta(minutes=30)
ANSWER = 10.0
INPUT = msgspec.json.encode({"to": TO, "number": 12345, "text": TEXT})
NULL = b"null"

_TABLE = "create table stepwell.commits (number integer)"
_COMMIT = "insert into stepwell.commits values (1)"


class Bare:
    """The statements, on connections of their own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._channel = f"{database.schema}_bare"
        self._worker = new_worker_id()
        self._connections: list[asyncpg.Connection[Row]] = []
        self._heard = asyncio.Event()

    async def open(self) -> None:
        who = Identity(self._worker, "limit", "", 0, VERSION, [QUEUE], 1)
        await workers.renew(self._database, who, LEASE)
        self._lines = [await self._line() for _ in range(4)]
        self._wire = await self._line(synchronous_commit="off")
        ear = (await self._line()).connection
        assert isinstance(ear, asyncpg.Connection)
        await ear.add_listener(self._channel, lambda *_: self._heard.set())
        await self._lines[0].connection.fetch(in_schema(_TABLE, self._database.schema))

    def close(self) -> None:
        for connection in self._connections:
            connection.terminate()

    async def _line(self, *, synchronous_commit: str = "on") -> Transaction:
        connection = await self._database.connect(synchronous_commit=synchronous_commit)
        self._connections.append(connection)
        return Transaction(connection, self._database.statements, self._database.schema)

    # -- starts

    async def bulk(self, count: int) -> float:
        """Runs per second. One input for all: to make the bytes is not the database's work."""
        starts = [_new() for _ in range(count)]
        line, begin = self._lines[0], time.perf_counter()
        await line.connection.fetch("begin")
        await runs.start_plain(line, starts)
        await line.connection.fetch("commit")
        return count / (time.perf_counter() - begin)

    async def start(self, _number: int) -> None:
        await runs.start_one(self._lines[0], _new())

    async def start_group(self, flight: int, _number: int) -> None:
        """Start as many as gather while the groups before them are on their way."""
        await runs.start(self._lines[flight], [_new() for _ in range(CALLERS // FLIGHTS)])

    # -- drains

    async def drain(self, connections: int) -> None:
        await asyncio.gather(*(self._drain(line) for line in self._lines[:connections]))

    async def _drain(self, line: Transaction) -> None:
        claim_id = new_claim_id()
        claimed = await self._claim(line, claim_id)
        while claimed:
            ids = sorted(row["id"] for row in claimed)
            settled, claim_id = [claim_id] * len(ids), new_claim_id()
            claimed = await line.rows(
                "exchange_runs",
                ids=ids,
                claim_ids=settled,
                results=b"[%b]" % b",".join([NULL] * len(ids)),
                queues=[QUEUE],
                priorities=[PRIORITY],
                places=[ids[-1]],
                share=BATCH,
                worker=self._worker,
                names=[NOOP],
                claim_id=claim_id,
                channel=None,
                word=None,
            )
            if claimed[0]["id"] is None:
                claimed = await self._claim(line, claim_id)

    async def _claim(self, line: Transaction, claim_id: object) -> list[Row]:
        claimed = await line.rows(
            "claim_runs",
            queues=[QUEUE],
            worker=self._worker,
            names=[NOOP],
            limit=BATCH,
            alone=True,
            claim_id=claim_id,
            ageing=runs.AGEING,
            aged=BATCH // 10,
        )
        return claimed if claimed[0]["id"] is not None else []

    # -- one at a time

    async def probe(self, _number: int) -> Probe:
        """Start, wake, claim, settle, wake and read, each when the one before is done."""
        caller, claimer = self._lines[:2]
        start, claim_id = _new(), new_claim_id()
        begin = time.perf_counter()
        await runs.start_one(caller, start)
        await self.wake()
        await self._claim(claimer, claim_id)
        body = time.perf_counter()
        await claimer.rows(
            "end_runs", ids=[start.id], claim_ids=[claim_id], states=["completed"], results=b"[null]", errors=None,
            usages=None, channel=None, word=None,
        )  # fmt: skip
        await self.wake()
        await caller.rows("results", ids=[start.id])
        return Probe((body - begin) * 1000, (time.perf_counter() - begin) * 1000)

    async def wake(self) -> None:
        """Time one NOTIFY until the listener has received it."""
        self._heard.clear()
        sending = asyncio.ensure_future(self._wire.rows("wake", channels=[self._channel], payloads=[""]))
        if not await in_time(ANSWER, self._heard.wait()):
            raise Unmeasured(f"a NOTIFY was not heard within {ANSWER:.0f} s: is there a pooler on the way?")
        await sending

    async def round_trip(self) -> None:
        await self._lines[0].connection.fetch("select 1")

    async def commit(self) -> None:
        await self._lines[0].connection.fetch(in_schema(_COMMIT, self._database.schema))


def _new() -> Start:
    return Start(new_run_id(), INPUT, TERMS)
