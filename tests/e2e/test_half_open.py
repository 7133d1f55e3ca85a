"""Connections that stay open and say nothing: who waits on one gives up in time, and goes on when it heals."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, TypeAlias

import asyncpg
import pytest
from e2e_processes import eventually
from proxy import Proxy, Wire

from stepwell import App, Retry, RunFailed, State, current
from stepwell.engine import settle
from stepwell.store.borrowed.asyncpg import AsyncpgConnection
from stepwell.worker import lent

Sql: TypeAlias = "asyncpg.Connection[Any]"
LEASE = 2.0


class Bench:
    """An app behind the proxy with one task, which ends when its gate opens."""

    def __init__(self, dsn: str, *, lease: float = LEASE) -> None:
        self.app = App(dsn, lease=lease)
        self.gate = asyncio.Event()
        self.began: list[float] = []
        self.cancelled: list[float] = []
        self.lost: list[Any] = []

        async def wait(n: int) -> int:
            self.began.append(time.monotonic())
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled.append(time.monotonic())
                raise
            return n

        self.wait = self.app.task(name="wait")(wait)
        self.app.telemetry.listen(self._told)

    def _told(self, name: str, facts: dict[str, Any]) -> None:
        if name == "worker.settled":
            self.lost += facts["lost"]


@pytest.fixture
def bench(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Bench:
    # As a worker with a longer patience would, only sooner.
    monkeypatch.setattr("stepwell.store.pool.ANSWER", 2.0)
    return Bench(proxy.dsn)


def of_the_lease(statement: str) -> bool:
    return statement == "renew_lease"


def of_the_work(statement: str) -> bool:
    return statement not in ("renew_lease", "connect")


async def test_while_only_the_lease_gets_through_nothing_is_lost_and_work_goes_on_when_the_rest_heals(
    proxy: Proxy, bench: Bench, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench.app, bench.app.worker():
        runs = await bench.wait.start_many([(n,) for n in range(5)])
        await eventually(lambda: len(bench.began) == 5)
        proxy.freeze(of_the_work)
        bench.gate.set()
        asked = "select min(lease_until - now()) > interval '0s' from stepwell.workers"
        for _ in range(3):
            until = await sql.fetchval("select max(lease_until) from stepwell.workers")
            await eventually(lambda until=until: _renewed(sql, until))
        assert await sql.fetchval(asked)
        assert await sql.fetchval("select count(*) from stepwell.runs where state = 'running'") == 5
        proxy.heal()
        healed = time.monotonic()
        assert [await run.result(timeout=20) for run in runs] == [0, 1, 2, 3, 4]
        print(f"\nrecorded {time.monotonic() - healed:.1f} s after the healing, with an answer awaited for 2 s")
        assert {(await run.info()).attempt for run in runs} == {1}
        assert await (await bench.wait.start(9)).result(timeout=10) == 9
    assert len(bench.began) == 6
    assert not bench.lost
    assert "the lease is lost" not in caplog.text


async def _renewed(sql: Sql, since: object) -> bool:
    return bool(await sql.fetchval("select max(lease_until) > $1 from stepwell.workers", since))


async def test_a_worker_whose_lease_does_not_get_through_ends_its_attempts_in_time_and_recovers(
    proxy: Proxy, bench: Bench, dsn: str
) -> None:
    near, lease = Bench(dsn), 4 * LEASE  # an eighth of it is left when they are ended
    bench = Bench(proxy.dsn, lease=lease)
    async with bench.app, near.app, bench.app.worker():
        runs = await bench.wait.start_many([(n,) for n in range(3)])
        await eventually(lambda: len(bench.began) == 3)
        proxy.freeze(of_the_lease)
        frozen = time.monotonic()
        await eventually(lambda: len(bench.cancelled) == 3, within=3 * lease)
        took = bench.cancelled[-1] - frozen
        print(f"\nattempts were ended {took:.2f} s after the lease went silent, of {lease} s")
        assert took < lease
        await eventually(lambda: _all_in(bench.app, State.PENDING, 3))
        assert {(await run.info()).failures for run in runs} == {0}
        near.gate.set()
        async with near.app.worker():
            assert [await run.result(timeout=10) for run in runs] == [0, 1, 2]
        proxy.heal()
        bench.gate.set()
        assert await (await bench.wait.start(9)).result(timeout=10) == 9
        assert len(bench.began) == 4


async def _all_in(app: App, state: State, count: int) -> bool:
    return len((await app.runs(state=state)).items) == count


async def test_a_verb_given_up_on_a_silent_connection_ends_soon_after(
    proxy: Proxy, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.store.pool.ANSWER", 60.0)
    async with bench.app:
        await bench.wait.start(1)
        proxy.freeze_everything()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await bench.wait.start(2)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await bench.wait.start_many([(n,) for n in range(3)])
        assert time.monotonic() - began < 30
        proxy.heal()
        await bench.wait.start(3)


async def test_a_slow_link_loses_no_lease(proxy: Proxy, bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    async with bench.app, bench.app.worker():
        proxy.delay = 0.1
        runs = await bench.wait.start_many([(n,) for n in range(3)])
        await eventually(lambda: len(bench.began) == 3)
        bench.gate.set()
        assert [await run.result(timeout=10) for run in runs] == [0, 1, 2]
        proxy.heal()
    assert len(bench.began) == 3
    ours = [each for each in caplog.records if each.name.startswith("stepwell")]
    assert not [each for each in ours if each.levelno >= logging.ERROR]


async def test_one_dead_line_tells_of_the_others(proxy: Proxy, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall has forgotten all of our sessions at once; who comes anew passes."""
    monkeypatch.setattr("stepwell.store.pool.ANSWER", 1.0)
    monkeypatch.setattr("stepwell.concurrency.retry_unavailable.PATIENCE", 0.5)
    async with bench.app:
        await asyncio.gather(*(bench.app.runs() for _ in range(8)))
        for wire in proxy.wires:
            wire.frozen = True
        assert len([wire for wire in proxy.wires if wire.frozen]) > 3
        await bench.wait.options(key="k").start(1)


async def test_a_transaction_of_a_body_that_went_silent_keeps_nobody_elses_outcome(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its last statement and its commit: the server believes in it, and keeps its run locked."""
    monkeypatch.setattr("stepwell.worker.lent.ANSWER", 0.5)
    app, real, silent = App(proxy.dsn, lease=LEASE), settle.apply, asyncio.Event()
    wires: list[Wire] = []

    async def apply(tx: Any, moves: Any) -> Any:
        settled = await real(tx, moves)
        if wires and isinstance(tx, AsyncpgConnection):
            for wire in wires:
                wire.frozen = True
                monkeypatch.setattr(wire, "cut", lambda: None)  # nor does any word of the hanging up arrive
            silent.set()
        return settled

    monkeypatch.setattr(lent.settle, "apply", apply)

    @app.task(name="own")
    async def own() -> None:
        before = set(proxy.wires)
        async with current.tx() as db:
            await db.execute("select 1")
        wires.extend(proxy.wires - before)

    @app.task(name="fail", retry=Retry(attempts=1))
    async def fail() -> None:
        raise ValueError("no")

    async with app, app.worker():
        run = await own.start()
        await asyncio.wait_for(silent.wait(), 10)
        for _ in range(3):
            with pytest.raises(RunFailed):
                await (await fail.start()).result(timeout=15)
        assert (await run.info()).state is State.RUNNING
        monkeypatch.undo()
        for wire in wires:
            wire.cut()
