"""A statement that reached the server and was carried out, and whose answer never came back: nothing is lost,
nothing is doubled, and nobody is told otherwise."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest
from counting_shop import Shop, Sql, finished_once, no_statement_runs
from e2e_processes import eventually
from proxy import Proxy

from stepwell import App, Call, Retry, Run, RunFailed, State, Unavailable, current
from stepwell.client.client import BULK
from stepwell.dispatch.postgres import PostgresWakes
from stepwell.services.reaper import Reaper
from stepwell.store.pool import Database


async def started(shop: Shop, how: str) -> list[Run[Any]]:
    add = shop.app.definition("add")
    match how:
        case "start":
            return [await add.start(1)]
        case "start with a key":
            return [await add.options(key="k").start(1)]
        case "start_many":
            return await add.start_many([(n,) for n in range(20)])
        case "start_many with keys":
            return await add.start_many([Call((n,), options={"key": f"k{n}"}) for n in range(20)])
        case "start later":
            return [await add.options(delay=0.05).start(1)]
        case _:
            raise ValueError(how)


KINDS = ["start", "start with a key", "start_many", "start_many with keys", "start later"]


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
async def test_a_start_whose_answer_is_lost_makes_its_runs_once(
    proxy: Proxy, shop: Shop, sql: Sql, how: str, times: int
) -> None:
    async with shop.app, shop.app.worker():
        # One plain run has a statement of its own.
        lost = proxy.swallow("start_run" if how == "start" else "start_runs", times=1 if "keys" in how else times)
        if "keys" in how:
            lost = proxy.swallow("start_runs", at_commit=True, times=times)
        runs = await started(shop, how)
        assert lost.done.is_set()
        results = [await run.result(timeout=10) for run in runs]
        assert results == ([2] if len(runs) == 1 else list(range(1, 21)))
    await finished_once(sql, *runs)
    assert sorted(shop.ran) == sorted((str(run.id), 1) for run in runs)


async def test_a_start_repeated_after_its_run_has_finished_does_not_make_it_again(
    proxy: Proxy, shop: Shop, dsn: str, sql: Sql
) -> None:
    """The run is done by a worker that is nearer to the database before the start is tried again."""
    near = Shop(dsn)
    async with shop.app, near.app, near.app.worker():
        lost = proxy.swallow("start_run")
        starting = asyncio.create_task(shop.app.definition("add").start(1))
        await lost.done.wait()
        proxy.refusing = True
        await eventually(lambda: sql.fetchval("select count(*) from stepwell.finished_runs"))
        proxy.heal()
        run = await starting
        assert await run.result(timeout=10) == 2
    await finished_once(sql, run)
    assert near.ran == [(str(run.id), 1)]


@pytest.mark.parametrize("reached", ["running", "finished"])
async def test_a_debounced_start_repeated_after_its_run_has_begun_does_not_make_it_again(
    proxy: Proxy, shop: Shop, dsn: str, sql: Sql, reached: str
) -> None:
    near = Shop(dsn)
    if reached == "finished":
        near.gate.set()
    async with shop.app, near.app, near.app.worker():
        lost = proxy.swallow("debounce_run", at_commit=True)
        wait = shop.app.definition("wait").options(unique="box", debounce=0.01)
        starting = asyncio.create_task(wait.start_many([(0,), (1,)]))
        await lost.done.wait()
        proxy.refusing = True
        await eventually(lambda: near.ran)
        await eventually(lambda: sql.fetchval("select count(*) = $1 from stepwell.runs", int(reached == "running")))
        proxy.heal()
        first, second = await starting
        near.gate.set()
        assert first.id == second.id
        assert await first.result(timeout=10) == 2, "the last of a burst counts"
    await finished_once(sql, first)
    assert near.ran == [(str(first.id), 1)]


async def test_a_copied_start_whose_commit_loses_its_answer_makes_its_runs_once(
    proxy: Proxy, shop: Shop, sql: Sql
) -> None:
    async with shop.app, shop.app.worker():
        lost = proxy.swallow("copy", at_commit=True)
        runs = await shop.app.definition("add").start_many([(n,) for n in range(BULK)])
        assert lost.done.is_set()
        assert [await run.result(timeout=20) for run in runs] == list(range(1, BULK + 1))
    await finished_once(sql, *runs)
    assert sorted(shop.ran) == sorted((str(run.id), 1) for run in runs)


async def test_a_copied_start_repeated_after_its_runs_have_finished_does_not_make_them_again(
    proxy: Proxy, shop: Shop, dsn: str, sql: Sql
) -> None:
    near = Shop(dsn)
    async with shop.app, near.app, near.app.worker():
        lost = proxy.swallow("copy", at_commit=True)
        starting = asyncio.create_task(shop.app.definition("add").start_many([(n,) for n in range(BULK)]))
        await lost.done.wait()
        proxy.refusing = True
        await eventually(lambda: sql.fetchval("select count(*) = $1 from stepwell.finished_runs", BULK))
        proxy.heal()
        runs = await starting
        assert [await run.result(timeout=20) for run in runs] == list(range(1, BULK + 1))
    await finished_once(sql, *runs)
    assert sorted(near.ran) == sorted((str(run.id), 1) for run in runs)


async def test_a_start_that_arrives_after_its_repetition_has_finished_does_not_make_it_again(
    proxy: Proxy, shop: Shop, dsn: str, sql: Sql
) -> None:
    await late_start(proxy, shop, dsn, sql, None)


async def test_a_start_with_a_key_that_arrives_after_its_repetition_has_finished_does_not_make_it_again(
    proxy: Proxy, shop: Shop, dsn: str, sql: Sql
) -> None:
    await late_start(proxy, shop, dsn, sql, "k")


async def late_start(proxy: Proxy, shop: Shop, dsn: str, sql: Sql, key: str | None) -> None:
    near = Shop(dsn)
    async with shop.app, near.app, near.app.worker():
        late = proxy.detain("start_runs" if key else "start_run")
        run = await shop.app.definition("add").options(key=key).start(1)
        assert await run.result(timeout=10) == 2
        late.deliver()
        after = await near.app.definition("add").start(1)
        assert await after.result(timeout=10) == 2
        await eventually(lambda: no_statement_runs(sql))
        last = await near.app.definition("add").start(1)
        assert await last.result(timeout=10) == 2
    await finished_once(sql, run, after, last)


async def test_a_checkpoint_that_arrives_after_later_ones_does_not_undo_them(proxy: Proxy, sql: Sql) -> None:
    app = App(proxy.dsn, lease=5)

    @app.task(name="steps", retry=Retry(attempts=2, delay=0.01))
    async def steps() -> int:
        at = await current.checkpoint.load(int, 0)
        if current.attempt == 2:
            return at
        late = proxy.detain("save_checkpoint")
        assert [await current.checkpoint.save(n) for n in (1, 2, 3)] == [1, 2, 3]
        late.deliver()
        await asyncio.sleep(0.1)
        await eventually(lambda: no_statement_runs(sql))
        raise ValueError("once")

    async with app, app.worker():
        assert await (await steps.start()).result(timeout=10) == 3


async def test_a_cancel_whose_answers_are_lost_is_done_and_no_error(proxy: Proxy, shop: Shop, sql: Sql) -> None:
    async with shop.app:
        run = await shop.app.definition("add").start(1)
        proxy.swallow("end_unclaimed_runs", times=2)
        proxy.swallow("run_by_id", times=1)
        await run.cancel()
        assert (await run.info()).state is State.CANCELLED
    await finished_once(sql, run)


@pytest.mark.parametrize("at_commit", [False, True], ids=["the insert", "the commit"])
async def test_a_retry_whose_answer_is_lost_starts_one_new_run(
    proxy: Proxy, shop: Shop, sql: Sql, at_commit: bool
) -> None:
    async with shop.app, shop.app.worker():
        run = await shop.app.definition("add").start(1)
        await run.result(timeout=10)
        lost = proxy.swallow("start_runs_again", at_commit=at_commit)
        again = await run.retry()
        assert lost.done.is_set()
        assert await again.result(timeout=10) == 2
    await finished_once(sql, run, again)


async def test_a_claim_whose_answer_is_lost_is_released_and_counted_as_no_failure(
    proxy: Proxy, shop: Shop, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.worker.claiming.frontier.CHEAP", 60.0)  # a word is answered by asking its queue
    async with shop.app, shop.app.worker() as worker:
        lost = proxy.swallow("claim_runs")
        await lost.done.wait()  # an empty one: the worker looks for work now and then
        frontier = worker._lanes._frontier
        await eventually(lambda: not (frontier._work or frontier._looking or frontier._owed))
        lost = proxy.swallow("claim_from_queue")
        runs = await shop.app.definition("add").start_many([(n,) for n in range(20)])
        assert [await run.result(timeout=10) for run in runs] == list(range(1, 21))
        infos = [await run.info() for run in runs]
        outcomes = {tuple(each.outcome for each in await run.attempts()) for run in runs}
    assert lost.done.is_set()
    assert {info.failures for info in infos} == {0}
    assert outcomes <= {("released", "completed"), ("completed",)}
    await finished_once(sql, *runs)
    assert sorted(shop.ran) == sorted((str(info.id), info.attempt) for info in infos)
    assert not shop.lost


async def test_a_claim_whose_answer_is_lost_while_the_worker_stops_is_counted_as_no_failure(
    proxy: Proxy, shop: Shop, sql: Sql
) -> None:
    async with shop.app:
        run = await shop.app.definition("add").start(1)
        lost = proxy.swallow("claim_runs")
        async with shop.app.worker():
            await lost.done.wait()
        assert not shop.ran
        async with shop.app.worker():
            assert await run.result(timeout=10) == 2
        info = await run.info()
        assert ([each.outcome for each in await run.attempts()], info.failures) == (["released", "completed"], 0)


OUTCOMES = [
    ("add", ("end_runs", "end_runs"), ["completed"]),
    ("flaky", ("retry_runs", "retry_runs"), ["failed", "completed"]),
    ("fatal", ("end_runs", "end_runs"), ["failed"]),
    ("snoozing", ("snooze_runs", "snooze_runs"), ["snoozed", "completed"]),
]


@pytest.mark.parametrize(("name", "statements", "outcomes"), OUTCOMES, ids=[each[0] for each in OUTCOMES])
async def test_a_settling_whose_answer_is_lost_is_recognised_as_ours(
    proxy: Proxy,
    shop: Shop,
    sql: Sql,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    statements: tuple[str, str],
    outcomes: list[str],
) -> None:
    """The first answer lost is of a settling that happened, the second of its repetition."""
    monkeypatch.setattr(
        "stepwell.worker.claiming.frontier.CHEAP", 60.0
    )  # no exchange but to settle, however slow a look is
    async with shop.app, shop.app.worker():
        times = statements.count(statements[0])
        swallows = [proxy.swallow(each, times=times) for each in dict.fromkeys(statements)]
        run = await shop.app.definition(name).options(retry=Retry(attempts=3, delay=0.01)).start(1)
        if name == "fatal":
            with pytest.raises(Exception, match="Fatal"):
                await run.result(timeout=10)
        else:
            assert await run.result(timeout=10) == 2
        assert [each.outcome for each in await run.attempts()] == outcomes
        await asyncio.gather(*(asyncio.wait_for(each.done.wait(), 30) for each in swallows))
    await finished_once(sql, run)
    assert shop.ran == [(str(run.id), n) for n in range(1, len(outcomes) + 1)]
    assert not shop.lost
    assert "refused" not in caplog.text


async def test_a_mixed_settling_whose_commit_lost_its_answer_is_recognised_as_ours(
    proxy: Proxy, shop: Shop, sql: Sql, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.worker.claiming.frontier.CHEAP", 60.0)
    async with shop.app:
        names = ["add", "flaky", "fatal", "snoozing"] * 5
        soon = Retry(attempts=3, delay=0.01)
        runs = [await shop.app.definition(name).options(retry=soon).start(1) for name in names]
        swallows = [proxy.swallow("retry_runs", at_commit=True), proxy.swallow("end_runs")]
        async with shop.app.worker():
            for run in runs:
                await asyncio.wait({asyncio.create_task(run.result(timeout=10))})
        attempts = [[each.outcome for each in await run.attempts()] for run in runs]
        infos = [await run.info() for run in runs]
    expected = {name: outcomes for name, _, outcomes in OUTCOMES}
    assert attempts == [expected[name] for name in names]
    assert [info.failures for info in infos] == [{"flaky": 1, "fatal": 1}.get(name, 0) for name in names]
    assert [each.left for each in swallows] == [0, 0]
    await finished_once(sql, *runs)
    assert not shop.lost
    assert "refused" not in caplog.text


async def test_a_release_whose_answer_is_lost_is_counted_as_no_failure(proxy: Proxy, shop: Shop) -> None:
    async with shop.app:
        run = await shop.app.definition("wait").start(1)
        async with shop.app.worker():
            await eventually(lambda: shop.ran)
            lost = proxy.swallow("release_runs")
        assert lost.done.is_set()
        info = await run.info()
        assert (info.state, info.failures, info.attempt) == (State.PENDING, 0, 1)
        assert not shop.lost


@pytest.mark.parametrize("at_commit", [False, True], ids=["the look", "the commit"])
async def test_a_reaping_whose_answer_is_lost_counts_one_failure(
    proxy: Proxy, shop: Shop, dsn: str, sql: Sql, at_commit: bool
) -> None:
    far = Database(proxy.dsn, "stepwell")
    await far.open()
    reaper = Reaper(far, PostgresWakes(far), shop.app.telemetry)
    async with shop.app:
        runs = await shop.app.definition("wait").start_many([(n,) for n in range(5)])
        async with shop.app.worker():
            await eventually(lambda: len(shop.ran) == 5)
            await sql.execute("update stepwell.runs set claimed_by = gen_random_uuid()")
            lost = proxy.swallow("repeat_runs" if at_commit else "lock_lost_claims", at_commit=at_commit)
            await eventually(lambda: _reaps(reaper))
            await eventually(lambda: len(shop.ran) == 10)
            shop.gate.set()
            assert [await run.result(timeout=10) for run in runs] == [1, 2, 3, 4, 5]
            assert {(await run.info()).failures for run in runs} == {1}
    assert lost.done.is_set()
    await far.close()
    await finished_once(sql, *runs)


async def _reaps(reaper: Reaper) -> bool:
    try:
        await reaper.reap()
    except Unavailable:
        return False
    return True


async def test_due_and_renewals_whose_answers_are_lost_do_no_harm(
    proxy: Proxy, shop: Shop, sql: Sql, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.worker.claiming.watch.WATCH_ALL", 2.0)
    async with shop.app, shop.app.worker():
        held = await shop.app.definition("wait").start(0)
        await eventually(lambda: shop.ran)
        swallows = [
            proxy.swallow(name) for name in ("due_runs", "renew_lease", "held_claims", "held_of_claims", "lead")
        ]
        add = shop.app.definition("add").options(delay=timedelta(milliseconds=100))
        runs = await add.start_many([(n,) for n in range(20)])
        assert [await run.result(timeout=15) for run in runs] == list(range(1, 21))
        await asyncio.gather(*(asyncio.wait_for(each.done.wait(), 30) for each in swallows))
        last = await shop.app.definition("add").start(1)
        assert await last.result(timeout=10) == 2
        shop.gate.set()
        assert await held.result(timeout=10) == 1
    await finished_once(sql, held, *runs, last)
    assert len(shop.ran) == 22
    assert "the lease is lost" not in caplog.text
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


@pytest.mark.usefixtures("only_by_word")
@pytest.mark.parametrize("ends", ["completed", "completed in its own transaction", "failed"])
async def test_a_workflow_hears_of_a_childs_end_whose_answer_was_lost(proxy: Proxy, dsn: str, ends: str) -> None:
    near, far = App(dsn, lease=5), App(proxy.dsn, lease=5)

    @far.task(name="part", queue="far", retry=Retry(attempts=1))
    async def part() -> int:
        if ends == "failed":
            raise ValueError("no")
        if ends == "completed":
            return 1
        async with current.tx():
            return 1

    part_of_near = near.task(part.fn, name="part", queue="far", retry=Retry(attempts=1))

    @near.workflow
    async def whole() -> int:
        try:
            return await part_of_near()
        except RunFailed:
            return 0

    async with near, far, near.worker(queues=["default"]), far.worker(queues=["far"]):
        assert await (await whole.start()).result(timeout=20) == (0 if ends == "failed" else 1)
        lost = proxy.swallow("tell_parents", at_commit=True)
        run = await whole.start()
        await lost.done.wait()
        assert await run.result(timeout=20) == (0 if ends == "failed" else 1)
