"""Starting and draining no-op tasks, beside the limit: the same statements with no task machinery.

    ./dev bench [--runs 20000] [--rounds 5]

Ours and the limit take turns on one database; the ratio of their medians is the figure. A time in seconds says
more about the machine than about the code.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import asyncpg
import uvloop

from stepwell import App
from stepwell.engine import workers
from stepwell.engine.runs import KEEP_KEYS
from stepwell.engine.workers import Identity
from stepwell.model.ids import new_claim_id, new_run_id, new_worker_id
from stepwell.store import embedded
from stepwell.store.pool import Database

BATCH = 200
CHUNK = 5_000
INPUT = b'{"to": "someone@example.org", "number": 12345, "text": "a hundred bytes of input or so, as in real life"}'


def define(app: App):  # type: ignore[no-untyped-def]
    @app.task(name="bench.noop")
    async def noop(to: str, number: int, text: str) -> None:
        return None

    return noop


async def empty(database: Database) -> None:
    connection = await database.connect()
    await connection.execute("truncate stepwell.runs, stepwell.finished_runs, stepwell.keys, stepwell.workers")
    await connection.execute("vacuum analyze stepwell.runs")
    await connection.close()


async def start_ours(app: App, database: Database, runs: int) -> float:
    task = define(app)
    calls = [
        ("someone@example.org", number, "a hundred bytes of input or so, as in real life") for number in range(runs)
    ]
    begin = time.perf_counter()
    await task.start_many(calls)
    return runs / (time.perf_counter() - begin)


async def start_limit(app: App, database: Database, runs: int) -> float:
    ids = [new_run_id() for _ in range(runs)]
    connection = await database.connect()
    begin = time.perf_counter()
    async with connection.transaction():
        for first in range(0, runs, CHUNK):
            await connection.fetch(*_start(database, ids[first : first + CHUNK]))
    took = time.perf_counter() - begin
    await connection.close()
    return runs / took


def _start(database: Database, ids: list[object]) -> list[object]:
    statement, count = database.statements["start_runs"], len(ids)
    none: list[None] = [None] * count
    columns = {
        "ids": ids, "names": ["bench.noop"] * count, "queues": ["default"] * count, "priorities": [50] * count,
        "states": ["pending"] * count, "inputs": [INPUT] * count, "keys": none, "digests": none, "tags": none,
        "retries": [b"{}"] * count, "timeouts": none, "delays": none, "ats": none, "expiries": none,
        "keep_keys": KEEP_KEYS, "parent_id": None, "root_id": None,
    }  # fmt: skip
    return [statement.sql, *statement.bind(columns)]


async def drain_ours(app: App, database: Database, runs: int) -> float:
    done, left, begin = asyncio.Event(), runs, 0.0

    def heard(name: str, facts: dict[str, object]) -> None:
        nonlocal left, begin
        if name == "worker.ready":
            begin = time.perf_counter()
        if name == "worker.settled":
            left -= len(facts["settlements"])  # type: ignore[arg-type]
            if not left:
                done.set()

    deaf = app.telemetry.listen(heard)
    async with app.worker():
        await done.wait()
        took = time.perf_counter() - begin
    deaf()
    return runs / took


async def drain_limit(app: App, database: Database, runs: int) -> float:
    worker = new_worker_id()
    await workers.renew(database, Identity(worker, "limit", "", 0, "", None, 1), timedelta(minutes=5))
    connections = [await database.connect() for _ in range(2)]
    begin = time.perf_counter()
    await asyncio.gather(*(_drain(database, connection, worker) for connection in connections))
    took = time.perf_counter() - begin
    for connection in connections:
        await connection.close()
    return runs / took


async def _drain(database: Database, connection: asyncpg.Connection, worker: object) -> None:  # type: ignore[type-arg]
    claim, complete = database.statements["claim_runs"], database.statements["complete_runs"]
    while True:
        claim_id = new_claim_id()
        values = {
            "queues": None,
            "worker": worker,
            "names": ["bench.noop"],
            "limit": BATCH,
            "alone": True,
            "claim_id": claim_id,
        }
        claimed = await connection.fetch(claim.sql, *claim.bind(values))
        if not claimed:
            return
        ids = [row["id"] for row in claimed]
        settled = {"ids": ids, "claim_ids": [claim_id] * len(ids), "results": [b"null"] * len(ids)}
        await connection.fetch(complete.sql, *complete.bind(settled))


Measure = Callable[[App, Database, int], Awaitable[float]]


async def measure(dsn: str, runs: int, rounds: int) -> dict[str, list[float]]:
    figures: dict[str, list[float]] = {"start": [], "start limit": [], "drain": [], "drain limit": []}
    async with App(dsn) as app:
        database = Database(dsn, "stepwell")
        await database.open()
        sides: dict[str, tuple[Measure, Measure]] = {
            "": (start_ours, drain_ours),
            " limit": (start_limit, drain_limit),
        }
        for turn in range(rounds):
            for side in sorted(sides, reverse=bool(turn % 2)):
                start, drain = sides[side]
                await empty(database)
                figures[f"start{side}"].append(await start(app, database, runs))
                figures[f"drain{side}"].append(await drain(app, database, runs))
        await database.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dsn", help="a database that may be emptied; an embedded one of its own by default")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        hold = None if chosen.dsn else embedded.ensure(Path(folder) / "home")
        try:
            figures = uvloop.run(measure(chosen.dsn or hold.dsn, chosen.runs, chosen.rounds))  # type: ignore[union-attr]
        finally:
            if hold:
                hold.release()
    medians = {name: statistics.median(each) for name, each in figures.items()}
    ratios = {name: medians[name] / medians[f"{name} limit"] for name in ("start", "drain")}
    if chosen.json:
        print(json.dumps({"medians": medians, "ratios": ratios, "figures": figures}))
        return
    print(f"{chosen.runs} runs, median of {chosen.rounds} interleaved rounds, runs/s [lowest-highest]\n")
    for name in ("start", "drain"):
        for side in (name, f"{name} limit"):
            low, high = min(figures[side]), max(figures[side])
            print(f"  {side:<12} {medians[side]:>10,.0f}   [{low:,.0f}-{high:,.0f}]")
        print(f"  {name} : limit = {ratios[name]:.2f}\n")


if __name__ == "__main__":
    main()
