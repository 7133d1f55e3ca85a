"""Starts that arrive together commit together, and nobody waits for ever or pays for another's."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell import App, Call
from stepwell.client.client import BULK
from stepwell.client.start_batches import StartBatches
from stepwell.concurrency.group_commit import FLIGHTS
from stepwell.engine import runs as runs_engine
from stepwell.model.errors import Unavailable
from stepwell.model.start import Start
from stepwell.store.pool import Database
from tests.factory import a_start


class Airline:
    """Sends what it is given when it is told to, and refuses what is called "bad"."""

    def __init__(self) -> None:
        self.flights: list[list[Start]] = []
        self.open = asyncio.Event()
        self.error: Exception | None = None

    async def send(self, starts: Sequence[Start]) -> None:
        self.flights.append(list(starts))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        if any(each.terms.name == "bad" for each in starts):
            raise ValueError("refused")


async def settled(started: list[asyncio.Task[None]]) -> list[object]:
    async with asyncio.timeout(30):
        return await asyncio.gather(*started, return_exceptions=True)


async def test_who_comes_while_others_are_on_their_way_leaves_together() -> None:
    airline = Airline()
    starting = StartBatches(airline.send, patience=5)
    started = [asyncio.create_task(starting.start(a_start())) for _ in range(100)]
    await asyncio.sleep(0)
    assert [len(flight) for flight in airline.flights] == [1] * FLIGHTS
    airline.open.set()
    assert await settled(started) == [None] * 100
    assert sum(len(flight) for flight in airline.flights) == 100
    assert len(airline.flights) <= FLIGHTS + 2


async def test_one_that_is_refused_fails_alone() -> None:
    airline = Airline()
    starting = StartBatches(airline.send, patience=5)
    names = ["good"] * 10 + ["bad"] + ["good"] * 10
    started = [asyncio.create_task(starting.start(a_start(name=name))) for name in names]
    await asyncio.sleep(0)
    airline.open.set()
    answers = await settled(started)
    assert [isinstance(answer, ValueError) for answer in answers] == [name == "bad" for name in names]


async def test_while_the_database_is_away_nobody_waits_for_all_who_came_before() -> None:
    airline = Airline()
    airline.error = Unavailable("gone")
    starting = StartBatches(airline.send, patience=0)
    started = [asyncio.create_task(starting.start(a_start())) for _ in range(3000)]
    await asyncio.sleep(0)
    airline.open.set()
    assert all(isinstance(answer, Unavailable) for answer in await settled(started))


async def test_a_caller_that_is_cancelled_in_time_starts_nothing() -> None:
    airline = Airline()
    starting = StartBatches(airline.send, patience=5)
    started = [asyncio.create_task(starting.start(a_start())) for _ in range(FLIGHTS + 2)]
    await asyncio.sleep(0)
    started[-1].cancel()
    await asyncio.sleep(0)
    airline.open.set()
    answers = await settled(started)
    assert isinstance(answers[-1], asyncio.CancelledError)
    assert sum(len(flight) for flight in airline.flights) == FLIGHTS + 1


async def test_a_hundred_callers_all_have_their_runs(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return 2 * n

    async with app.worker():
        runs = await asyncio.gather(*(double.start(n) for n in range(100)))
        assert await asyncio.gather(*(run.result(20) for run in runs)) == [2 * n for n in range(100)]


async def test_a_bulk_start_with_one_bad_input_starts_nothing(app: App) -> None:
    @app.task
    async def work(n: int) -> None: ...

    with pytest.raises(Exception, match="parameter 'n'"):
        await work.start_many([(n,) for n in range(BULK)] + [("x",), (1,)])  # type: ignore[list-item]
    assert (await app.runs()).items == []
    assert gc.isenabled()


@pytest.mark.parametrize("page", [1, 2])
async def test_a_copy_that_fails_as_it_begins_loses_none_of_a_bulk_start(
    app: App, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    @app.task
    async def work(n: int) -> None: ...

    copy, pages = runs_engine.start_plain, 0

    async def fails(tx: Any, starts: Any) -> None:
        nonlocal pages
        pages += 1
        if pages == page:
            raise Unavailable("the line was cut")  # before it has asked for a single row
        await copy(tx, starts)

    monkeypatch.setattr("stepwell.client.client.COPY", BULK // 2)
    monkeypatch.setattr(runs_engine, "start_plain", fails)
    runs = await work.start_many([(n,) for n in range(BULK)])
    assert sorted([(await run.info()).input["n"] for run in runs]) == list(range(BULK))


async def test_a_bulk_start_keeps_the_limit_of_each_though_the_first_has_none(app: App, database: Database) -> None:
    @app.task(limit_by=lambda n: None if n == 0 else f"tenant {n % 3}")
    async def work(n: int) -> None: ...

    await work.start_many([(n,) for n in range(BULK)])
    async with database.transaction() as tx:
        found = await tx.connection.fetch("select (input ->> 'n')::int as n, limit_key from stepwell.runs")
    assert {row["n"]: row["limit_key"] for row in found} == {
        n: None if n == 0 else f"tenant {n % 3}" for n in range(BULK)
    }


async def test_a_bulk_start_may_hold_keys_and_delays(app: App) -> None:
    @app.task
    async def work(n: int) -> None: ...

    keyed = [Call((1,), options={"key": "one"}), Call((1,), options={"key": "one"}), Call((2,), options={"delay": 60})]
    runs = await work.start_many([*((n,) for n in range(BULK)), *keyed])
    assert runs[-3].id == runs[-2].id
    assert (await runs[-1].info()).state == "scheduled"
    assert len({run.id for run in runs}) == BULK + 2


async def test_many_starts_while_someone_waits_are_not_slow(app: App) -> None:
    """What is remembered of them is bounded, and to bound it takes no longer the more there are."""

    @app.task
    async def work(n: int) -> None: ...

    async with app.worker():
        await (await work.start(0)).result(10)
    waiting = app.door._waiting  # type: ignore[attr-defined]
    waiting._said, waiting._is_known = asyncio.get_running_loop().time(), True
    ids = [a_start().id for _ in range(100_000)]
    began = time.process_time()
    waiting.started(ids)
    assert time.process_time() - began < 1
    assert len(waiting._new) <= 1000
