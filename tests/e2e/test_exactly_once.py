"""What a body writes in `current.tx()` is there exactly once, whoever is killed and whatever answer is lost."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import Any, TypeAlias

import asyncpg
import proxy as proxies
import pytest
from e2e_processes import Hire, eventually
from proxy import Proxy

from stepwell import App, Retry, State, current
from stepwell.model.outcome import Completed
from stepwell.store.borrowed.base import spoken
from stepwell.store.statements import load

Sql: TypeAlias = "asyncpg.Connection[Any]"
RUNS = 200
COMPLETING = spoken(load("stepwell")["end_runs"].sql, "${}").sql


@pytest.mark.timeout(180)
async def test_two_hundred_deposits_are_made_once_each_while_workers_are_killed(
    hire: Hire, client: App, sql: Sql
) -> None:
    await sql.execute("create table deposits (n int, attempt int)")
    deposit = client.definition("own_tx_app.deposit").options(retry=Retry(attempts=1000, delay=0.02, max_delay=0.2))
    runs = await deposit.start_many([(n,) for n in range(RUNS)])

    async def done() -> int:
        asked = "select count(*) from stepwell.finished_runs where name = 'own_tx_app.deposit'"
        found: int = await sql.fetchval(asked)
        return found

    kills, chance = 0, random.Random(7)
    while (before := await done()) < RUNS:
        worker = await hire("--slots", "10", app="own_tx_app:app", STEPWELL_LEASE="1s")
        more = min(RUNS, before + chance.randrange(15, 40))
        await eventually(lambda: reached(done, more), within=60)  # noqa: B023 - awaited here
        if more < RUNS:
            await asyncio.sleep(chance.random() * 0.1)
        worker.signal(signal.SIGKILL)
        await worker.exit_code()
        kills += 1
    print(f"\n{RUNS} deposits, {kills} kills")
    assert kills >= 5
    rows = await sql.fetch("select n, attempt from deposits order by n")
    assert [row["n"] for row in rows] == list(range(RUNS))
    # The row that is there was written by the attempt that completed, and it started one child.
    attempts = {int(row["n"]): row["attempt"] for row in rows}
    for n, run in enumerate(runs):
        info = await run.info()
        assert (info.state, info.attempt) == (State.COMPLETED, attempts[n])
    children = await sql.fetch("select input ->> 'n' as n from stepwell.all_runs where name = 'own_tx_app.count'")
    assert sorted(int(row["n"]) for row in children) == list(range(RUNS))
    assert max(attempts.values()) > 1


async def reached(done: Any, more: int) -> bool:
    return bool(await done() >= more)


class Bank:
    def __init__(self, dsn: str) -> None:
        self.app = App(dsn, lease=5)
        self.ran: list[int] = []
        self.told: list[tuple[str, Any]] = []
        self.app.telemetry.listen(lambda name, facts: self.told.append((name, facts)))

        @self.app.task(name="deposit", retry=Retry(attempts=3, delay=0.01))
        async def deposit(n: int) -> int:
            self.ran.append(current.attempt)
            async with current.tx() as conn:
                await conn.execute("insert into deposits (n, attempt) values ($1, $2)", n, current.attempt)
            return n

        self.deposit = deposit


@pytest.fixture
async def bank(proxy: Proxy, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> Bank:
    monkeypatch.setitem(proxies.NAMES, COMPLETING, "end_runs")
    await sql.execute("create table deposits (n int, attempt int)")
    return Bank(proxy.dsn)


async def test_a_commit_whose_answer_is_lost_is_looked_up_and_not_repeated(
    proxy: Proxy, bank: Bank, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    async with bank.app, bank.app.worker():
        lost = proxy.swallow("end_runs", at_commit=True)
        run = await bank.deposit.start(7)
        assert await run.result(timeout=10) == 7
        assert lost.done.is_set()
        await eventually(lambda: [facts for name, facts in bank.told if name == "worker.settled"])
        (settled,) = [facts for name, facts in bank.told if name == "worker.settled"]
        assert (settled["lost"], settled["settlements"][0][1]) == (set(), Completed(b"7"))
        assert [each.outcome for each in await run.attempts()] == ["completed"]
    assert bank.ran == [1]
    assert [tuple(row) for row in await sql.fetch("select n, attempt from deposits")] == [(7, 1)]
    assert "refused" not in caplog.text


async def test_a_transaction_that_is_lost_before_its_commit_is_done_again(proxy: Proxy, bank: Bank, sql: Sql) -> None:
    async with bank.app, bank.app.worker():
        lost = proxy.swallow("end_runs")
        run = await bank.deposit.start(7)
        assert await run.result(timeout=10) == 7
        assert lost.done.is_set()
        assert [each.outcome for each in await run.attempts()] == ["failed", "completed"]
    assert bank.ran == [1, 2]
    assert [tuple(row) for row in await sql.fetch("select n, attempt from deposits")] == [(7, 2)]


async def test_a_commit_whose_answer_is_lost_while_the_worker_stops_is_recorded_once(
    proxy: Proxy, bank: Bank, sql: Sql
) -> None:
    async with bank.app:
        async with bank.app.worker():
            lost = proxy.swallow("end_runs", at_commit=True)
            run = await bank.deposit.start(7)
            await lost.done.wait()
        assert (await run.info()).state is State.COMPLETED
    assert [tuple(row) for row in await sql.fetch("select n, attempt from deposits")] == [(7, 1)]
