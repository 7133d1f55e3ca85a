"""Workers, as others see them: who is there, what they know, and how they fare."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import App
from stepwell.engine import workers
from stepwell.engine.workers import Identity
from stepwell.model.ids import new_worker_id
from stepwell.model.worker import Sample, Vitals, rate
from stepwell.services.partitions import Partitions
from stepwell.store.pool import Database
from stepwell.testing import Clock
from stepwell.worker.vitals import Meter, memory
from tests.waiting_for import hearing, until

VITALS = Vitals(cpu=0.5, memory=1000, running=1, claimed=10)


def an_identity(name: str = "web1", **facts: Any) -> Identity:
    return Identity(new_worker_id(), name, "host", 1, "0", facts.get("queues"), 10, facts.get("names"))


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples at every renewal."""
    monkeypatch.setattr("stepwell.worker.lease.SAMPLE", 0.05)


async def test_a_worker_says_what_it_is_and_what_it_knows(app: App) -> None:
    @app.task(name="shop.add")
    async def add() -> None: ...

    with hearing(app, "worker.ready") as ready:
        async with app.worker(queues=["mail", "sums"], slots=7, name="web1"):
            await ready.wait()
            (info,) = await app.workers()
            assert (info.name, info.pid, info.slots, info.state) == ("web1", os.getpid(), 7, "live")
            assert (info.queues, info.names) == (["mail", "sums"], ["shop.add"])
            assert timedelta(0) < info.lease_left <= timedelta(seconds=5)
    (gone,) = await app.workers()
    assert gone.state == "stopped"
    assert gone.samples == []


async def test_live_workers_come_first_and_those_long_gone_do_not_come(app: App, database: Database, dsn: str) -> None:
    long_gone = an_identity("a")
    await workers.renew(database, long_gone, timedelta(seconds=1))
    await Clock(dsn).skip("2d", workers_live_on=False)
    lost, left, live = an_identity("b"), an_identity("c"), an_identity("d")
    await workers.renew(database, lost, timedelta(seconds=1))
    await workers.renew(database, left, timedelta(seconds=60))
    await workers.leave(database, left.id)
    await Clock(dsn).skip("1m", workers_live_on=False)
    await workers.renew(database, live, timedelta(seconds=60))
    assert [(each.name, each.state) for each in await app.workers()] == [("d", "live"), ("b", "lost"), ("c", "stopped")]
    assert [each.name for each in await app.workers([long_gone.id])] == ["a"]


async def test_a_worker_samples_itself(app: App, often: None) -> None:
    go = asyncio.Event()

    @app.task
    async def wait() -> None:
        await go.wait()

    async with app.worker():
        await wait.start_many([()] * 3)

        async def sampled() -> Any:
            samples = [each for info in await app.workers() for each in info.samples]
            return next((each for each in samples if each.running == 3), None)

        sample = await until(sampled)
        assert sample.claimed == 3
        assert sample.memory > 1_000_000
        assert sample.cpu >= 0
        go.set()


async def test_a_sample_that_cannot_be_written_costs_no_lease(app: App, often: None, database: Database) -> None:
    connection = await database.connect()
    await connection.execute("drop table stepwell.worker_samples")
    lost = asyncio.Event()
    renewed = "select lease_until from stepwell.workers"
    with hearing(app, "worker.ready") as ready:
        async with app.worker() as worker:
            worker._lease._lost = lost.set
            await ready.wait()
            before = await connection.fetchval(renewed)
            await until(lambda: _is_later(connection, renewed, before))
            assert not lost.is_set()
    await connection.close()


async def test_a_sample_that_waits_for_ever_costs_no_lease(app: App, often: None, database: Database) -> None:
    """The table is locked: the connection is given up for another, and the lease is renewed on that."""
    connection, other = await database.connect(), await database.connect()
    lost = asyncio.Event()
    renewed = "select lease_until from stepwell.workers"
    async with connection.transaction():
        await connection.execute("lock table stepwell.worker_samples")
        with hearing(app, "worker.ready") as ready:
            async with app.worker() as worker:
                worker._lease._lost = lost.set
                await ready.wait()
                for _ in range(3):
                    before = await other.fetchval(renewed)
                    await until(lambda before=before: _is_later(other, renewed, before))  # type: ignore[misc]
                assert not lost.is_set()
    await connection.close()
    await other.close()


async def test_samples_are_kept_for_three_days(database: Database, dsn: str) -> None:
    who = an_identity()
    await workers.sample(database, who.id, VITALS)
    await Clock(dsn).skip("2d")
    await workers.sample(database, who.id, VITALS)
    await Clock(dsn).skip("25h")
    await Partitions(database, keep=None).run_once()
    connection = await database.connect()
    assert await connection.fetchval("select count(*) from stepwell.worker_samples") == 1
    await connection.close()


async def test_old_samples_go_in_batches(database: Database, dsn: str) -> None:
    connection = await database.connect()
    await connection.execute(
        "insert into stepwell.worker_samples select gen_random_uuid(), now() + n * interval '1 ms', 0, 0, 0, 0 "
        "from generate_series(1, 25) n"
    )
    await Clock(dsn).skip("4d")
    assert [await workers.forget_samples(database, limit=10) for _ in range(4)] == [10, 10, 5, 0]
    await connection.close()


async def test_the_last_samples_tell_how_fast_a_worker_claims(app: App, database: Database) -> None:
    who = an_identity()
    await workers.renew(database, who, timedelta(seconds=60))
    connection = await database.connect()
    await connection.execute(
        "insert into stepwell.worker_samples "
        "select $1, now() - n * interval '5 s', 0.5, 1000, 1, 1000 - 100 * n from generate_series(0, 30) n",
        who.id,
    )
    await connection.close()
    (info,) = await app.workers()
    assert len(info.samples) == 12
    assert info.samples[0].claimed == 1000
    assert info.claims_per_second == pytest.approx(20)


async def test_an_idle_worker_says_no_more_than_two_things_a_second(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for verb in ("fetch", "execute"):
        spoken = getattr(asyncpg.Connection, verb)

        async def noted(self: Any, query: str, *values: Any, _spoken: Any = spoken, **more: Any) -> Any:
            said.append(query)
            return await _spoken(self, query, *values, **more)

        monkeypatch.setattr(asyncpg.Connection, verb, noted)
    async with App(app.dsn, lease=30) as usual, usual.worker():
        await until(lambda: _says(said, "worker_samples"))
        await asyncio.sleep(2)  # what a start brings with it
        said.clear()
        began = time.monotonic()
        await asyncio.sleep(6)
        await until(lambda: _says(said, "worker_samples"))
        assert len(said) <= 2 * (time.monotonic() - began)


def test_a_meter_tells_cores_and_bytes() -> None:
    meter = Meter()
    read = meter.read(running=2, claimed=9)
    assert (read.running, read.claimed) == (2, 9)
    assert read.cpu >= 0
    assert read.memory == pytest.approx(memory(), rel=0.5)


def test_a_rate_needs_two_samples_of_different_times() -> None:
    one = Sample(datetime(2026, 11, 16, tzinfo=UTC), 0, 0, 0, 0)
    assert rate([]) is rate([one]) is rate([one, one]) is None


async def _is_later(connection: Any, sql: str, before: Any) -> bool:
    return bool(await connection.fetchval(sql) > before)


async def _says(said: list[str], word: str) -> bool:
    return any(word in each for each in said)
