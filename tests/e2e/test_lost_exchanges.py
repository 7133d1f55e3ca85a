"""The hot path behind a bad wire: an exchange was carried out and its answer is lost, or it arrives much too late."""

from __future__ import annotations

from typing import Any

import pytest
from counting_shop import Shop, Sql, finished_once, no_statement_runs
from e2e_processes import eventually
from proxy import Proxy

from stepwell import Run


async def done_once(shop: Shop, sql: Sql, runs: list[Run[Any]]) -> None:
    """Each body ran once, under the claim that completed it; claims that nobody heard of are no failures."""
    rows = await sql.fetch("select id, attempt, failures, state from stepwell.all_runs")
    assert sorted(shop.ran) == sorted((str(row["id"]), row["attempt"]) for row in rows)
    assert {(row["failures"], row["state"]) for row in rows} == {(0, "completed")}
    released = await sql.fetch("select distinct outcome from stepwell.attempts")
    assert {row["outcome"] for row in released} <= {"released"}
    await finished_once(sql, *runs)
    assert not shop.lost


@pytest.mark.parametrize("times", [1, 5], ids=["once", "five times"])
async def test_an_exchange_whose_answer_is_lost_loses_nothing_and_does_nothing_twice(
    proxy: Proxy, shop: Shop, sql: Sql, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    async with shop.app:
        runs = await shop.app.definition("add").start_many([(n,) for n in range(400)])
        lost = proxy.swallow("exchange_runs", times=times)
        async with shop.app.worker(slots=20):
            assert [await run.result(timeout=20) for run in runs] == list(range(1, 401))
        assert lost.done.is_set()
    await done_once(shop, sql, runs)
    assert "refused" not in caplog.text


async def test_an_exchange_whose_answer_is_lost_while_the_worker_stops_is_recorded_all_the_same(
    proxy: Proxy, shop: Shop, sql: Sql
) -> None:
    async with shop.app:
        runs = await shop.app.definition("add").start_many([(n,) for n in range(400)])
        lost = proxy.swallow("exchange_runs")
        async with shop.app.worker(slots=20):
            await lost.done.wait()
        assert await sql.fetchval("select count(*) from stepwell.runs where state = 'running'") == 0
        async with shop.app.worker(slots=20):
            assert [await run.result(timeout=20) for run in runs] == list(range(1, 401))
    await done_once(shop, sql, runs)


async def test_an_exchange_that_arrives_long_after_it_was_given_up_does_nothing_twice(
    proxy: Proxy, shop: Shop, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it completes is completed already. What it claims, nobody heard of: it is found and released."""
    monkeypatch.setattr("stepwell.worker.claiming.watch.WATCH_ALL", 2.0)
    async with shop.app:
        add = shop.app.definition("add")
        runs = await add.start_many([(n,) for n in range(200)])
        late = proxy.detain("exchange_runs")
        async with shop.app.worker(slots=20):
            assert [await run.result(timeout=20) for run in runs] == list(range(1, 201))
            assert late.server is not None
            more = await add.start_many([(n,) for n in range(200)])
            late.deliver()
            assert [await run.result(timeout=25) for run in more] == list(range(1, 201))
    await done_once(shop, sql, runs + more)


async def test_an_exchange_that_arrives_after_its_worker_has_left_claims_nothing(
    proxy: Proxy, shop: Shop, sql: Sql
) -> None:
    """On a line that has carried one before: the first begins its transaction, and so its time, when it is parsed."""
    async with shop.app:
        add = shop.app.definition("add")
        runs = await add.start_many([(n,) for n in range(400)])
        async with shop.app.worker(slots=20):
            assert [await run.result(timeout=20) for run in runs] == list(range(1, 401))
            late = proxy.detain("exchange_runs")
            runs += await add.start_many([(n,) for n in range(200)])
            assert [await run.result(timeout=20) for run in runs[400:]] == list(range(1, 201))
        assert late.server is not None
        more = await add.start_many([(n,) for n in range(100)])
        late.deliver()
        await eventually(lambda: no_statement_runs(sql))
        assert await sql.fetchval("select count(*) from stepwell.runs where state = 'pending'") == 100
        async with shop.app.worker(slots=20):
            assert [await run.result(timeout=20) for run in more] == list(range(1, 101))
    await done_once(shop, sql, runs + more)
