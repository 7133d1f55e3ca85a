"""Workflows while answers are lost and Postgres is restarted: nothing is lost, nothing recorded is done again."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeAlias

import asyncpg
import pytest
from e2e_processes import eventually
from own_server import OwnServer, own_server
from proxy import Proxy

from stepwell import App, Retry, Run, RunCancelled, workflow

Sql: TypeAlias = "asyncpg.Connection[Any]"
AGAIN = Retry(attempts=9, backoff="fixed", delay=0.01, jitter=0)


class Works:
    """An app whose steps and tasks count how often they ran."""

    def __init__(self, dsn: str) -> None:
        self.app = App(dsn, lease=10)
        self.ran: Counter[str] = Counter()

        @self.app.step(name="step")
        async def step(label: str) -> str:
            self.ran[label] += 1
            return label

        @self.app.task(name="task", retry=AGAIN)
        async def task(label: str) -> str:
            self.ran[label] += 1
            return label

        @self.app.workflow(name="child")
        async def child(tag: str) -> str:
            await asyncio.sleep(0.01)
            return await task(f"{tag}/child")

        @self.app.workflow(name="work")
        async def work(tag: str) -> list[str]:
            did = [await step(f"{tag}/1"), await task(f"{tag}/2"), await workflow.signal("n", str)]
            workflow.publish(did)
            did += await asyncio.gather(step(f"{tag}/3"), task(f"{tag}/4"), child(tag))
            await asyncio.sleep(0.02)
            return [*did, await workflow.signal("n", str)]

        @self.app.workflow(name="collect")
        async def collect(count: int) -> list[str]:
            return [await workflow.signal("n", str) for _ in range(count)]

        self.step, self.task, self.work, self.collect = step, task, work, collect


def expected(tag: str) -> list[str]:
    return [f"{tag}/1", f"{tag}/2", "a", f"{tag}/3", f"{tag}/4", f"{tag}/child", "b"]


async def whole(sql: Sql) -> None:
    """Everything has finished, once; no history has a gap."""

    async def ended() -> bool:
        return await sql.fetchval("select count(*) from stepwell.runs") == 0

    await eventually(ended)
    gaps = "select run_id from stepwell.events group by run_id having max(idx) <> count(*)"
    assert await sql.fetch(gaps) == []
    assert await sql.fetch("select id from stepwell.finished_runs group by id having count(*) > 1") == []
    assert await sql.fetch("select distinct state from stepwell.finished_runs where state <> 'completed'") == []
    assert await sql.fetchval("select count(*) from stepwell.arrivals") == 0


@pytest.fixture
def works(proxy: Proxy) -> Works:
    return Works(proxy.dsn)


LOST = [
    ("advance_turns", False), ("advance_turns", True), ("turns_held", False), ("start_claimed_runs", True),
    ("end_runs", True), ("tell_parents", True), ("start_runs", True), ("claim_runs", False),
    ("record_turns", False), ("record_turn", False), ("complete_turns", False),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "at_commit"), LOST, ids=[f"{name}{'-commit' * at}" for name, at in LOST])
@pytest.mark.parametrize("times", [1, 3])
async def test_answers_lost_on_the_way_lose_and_repeat_nothing(
    proxy: Proxy, works: Works, sql: Sql, statement: str, at_commit: bool, times: int
) -> None:
    async with works.app, works.app.worker():
        warm = await works.work.start("warm")
        for value in ("a", "b"):
            await warm.signal("n", value)
        assert await warm.result(20) == expected("warm")
        runs = [await works.work.start(str(n)) for n in range(3)]
        proxy.swallow(statement, at_commit=at_commit, times=times)
        for run in runs:
            await run.signal("n", "a")
        for run in runs:
            await run.signal("n", "b")
        assert [await run.result(40) for run in runs] == [expected(str(n)) for n in range(3)]
    proxy.heal()
    await whole(sql)
    # A step whose record was lost on the way may be run once more; one that is recorded never is.
    assert all(1 <= count <= 1 + times for count in works.ran.values())
    if not at_commit and statement in ("turns_held", "claim_runs"):
        assert set(works.ran.values()) == {1}


@pytest.mark.parametrize("times", [1, 2])
async def test_a_signal_whose_answer_is_lost_arrives_once_and_in_its_order(
    proxy: Proxy, works: Works, sql: Sql, times: int
) -> None:
    async with works.app, works.app.worker():
        run = await works.collect.start(6)
        for n in range(6):
            if n % 2:
                proxy.swallow("arrive", at_commit=True, times=times)
            await run.signal("n", str(n))
        assert await run.result(20) == [str(n) for n in range(6)]
    await whole(sql)


async def test_a_signal_detained_on_its_way_does_not_arrive_a_second_time(proxy: Proxy, works: Works, sql: Sql) -> None:
    async with works.app, works.app.worker():
        run = await works.collect.start(3)
        late = proxy.detain("arrive")
        await run.signal("n", "0")
        await run.signal("n", "1")
        late.deliver()
        await run.signal("n", "2")
        assert await run.result(20) == ["0", "1", "2"]
    await whole(sql)


async def test_signal_or_start_whose_answer_is_lost_starts_and_signals_once(
    proxy: Proxy, works: Works, sql: Sql
) -> None:
    async with works.app, works.app.worker():
        for by in ("key", "unique"):
            whom = works.collect.options(**{by: "x"})  # type: ignore[arg-type]  # either of them
            sent: list[Run[Any]] = []
            for n in range(3):
                proxy.swallow("arrive", at_commit=True, times=1)
                sent.append(await whom.signal_or_start("n", str(n), 3))
            assert len({run.id for run in sent}) == 1
            assert await sent[0].result(20) == ["0", "1", "2"]
    await whole(sql)
    assert await sql.fetchval("select count(*) from stepwell.finished_runs") == 2


async def test_a_workflow_whose_start_was_repeated_can_be_cancelled(proxy: Proxy, works: Works) -> None:
    async with works.app, works.app.worker():
        lost = proxy.swallow("start_runs")
        run = await works.collect.start(1)
        assert lost.done.is_set()
        await eventually(run.history)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(20)


@pytest.fixture(scope="module")
def own(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    with own_server(tmp_path_factory.mktemp("own") / "server") as own:
        yield own


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL], ids=["fast shutdown", "kill -9"])
async def test_a_restart_of_postgres_during_turns_loses_and_repeats_nothing(
    own: OwnServer, how: signal.Signals
) -> None:
    works = Works(own.dsn)
    tag = how.name
    async with works.app, works.app.worker():
        runs = [await works.work.start(f"{tag}-{n}") for n in range(30)]

        async def send(value: str) -> None:
            for run in runs:
                await run.signal("n", value)

        sending = asyncio.create_task(send("a"))
        await own.restart(how)
        await sending
        sending = asyncio.create_task(send("b"))
        await own.restart(how)
        await sending
        assert [await run.result(40) for run in runs] == [expected(f"{tag}-{n}") for n in range(30)]
    sql = await asyncpg.connect(own.dsn)
    await whole(sql)
    await sql.close()
    assert all(1 <= count <= 3 for count in works.ran.values())
    assert len(works.ran) == 30 * 5
