"""Unique while unfinished, debounced, and bounded in time."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stepwell import App, Call, InvalidSetting, Retry, RunFailed, RunInfo, Task
from stepwell.engine import runs
from stepwell.model.states import State
from stepwell.store.pool import Database, Transaction
from stepwell.testing import Clock
from tests.factory import a_start, claimed
from tests.waiting_for import until


async def _index(shop: str) -> str:
    return shop


@pytest.fixture
def index(app: App) -> Task[[str], str]:
    return app.task(name="index")(_index)


# -- unique


async def test_while_a_run_is_unfinished_the_same_start_leads_to_it(app: App, index: Task[[str], str]) -> None:
    unique = index.options(unique=True)
    first, again, other = await unique.start("a"), await unique.start("a"), await unique.start("b")
    assert first == again != other
    assert await index.start("a") != first, "who does not ask for it is not bound by it"
    async with app.worker():
        assert await first.result(10) == "a"
    assert await unique.start("a") != first, "it has finished"


async def test_a_given_text_is_what_is_compared_and_only_within_the_task(app: App, index: Task[[str], str]) -> None:
    other = app.task(name="other")(_index)
    first = await index.options(unique="x").start("a")
    assert await index.options(unique="x").start("b") == first
    assert await other.options(unique="x").start("a") != first


async def test_a_hundred_starts_at_once_make_one_run(app: App, index: Task[[str], str]) -> None:
    started = await asyncio.gather(*(index.options(unique=True).start("a") for _ in range(100)))
    assert len({run.id for run in started}) == 1
    assert len((await app.runs()).items) == 1


async def test_starts_of_one_call_are_unique_among_themselves(app: App, index: Task[[str], str]) -> None:
    unique = index.options(unique=True)
    one, two, three = await unique.start_many([("a",), ("b",), ("a",)])
    assert one == three != two
    assert len((await app.runs()).items) == 2


async def test_a_retry_and_a_snooze_stay_unique(app: App) -> None:
    async def fail(n: int) -> None:
        raise ValueError(n)

    task = app.task(retry=Retry(attempts=3, delay=60), unique=True)(fail)
    run = await task.start(1)
    async with app.worker():

        async def waits() -> bool:
            return (await run.info()).state is State.SCHEDULED

        await until(waits)
        assert await task.start(1) == run


async def test_a_unique_start_in_two_transactions_waits_for_the_first_to_be_decided(database: Database) -> None:
    first, second = a_start(unique_key="u"), a_start(unique_key="u")
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as tx:
            await runs.start(tx, [first])
            waiting = asyncio.create_task(runs.start(database, [second]))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            raise ZeroDivisionError
    assert await waiting == [second.id], "the first was rolled back"


# -- debounced


async def test_the_last_of_a_burst_counts_and_it_is_one_run(app: App, index: Task[[str], str]) -> None:
    debounced = index.options(unique="box", debounce="100ms")
    started = [await debounced.start(text) for text in ("h", "he", "hey")]
    assert len({run.id for run in started}) == 1
    async with app.worker():
        assert await started[0].result(10) == "hey"
        assert await debounced.start("new") != started[0]


async def test_every_start_puts_it_off(app: App, dsn: str, index: Task[[str], str]) -> None:
    debounced = index.options(unique="box", debounce="10s")
    clock = Clock(dsn)
    run = await debounced.start("a")
    await clock.skip("8s")
    await debounced.start("b")
    due: RunInfo = await run.info()
    assert due.due_at is not None
    assert due.due_at - due.created_at >= timedelta(seconds=18)


async def test_while_it_runs_the_next_start_is_another_run(tx: Transaction) -> None:
    first = a_start(debounce_key="d", delay=timedelta(seconds=1), queue="deb")
    assert await runs.debounce(tx, first) == first.id
    await tx.connection.fetch("update stepwell.runs set state = 'pending', due_at = null")
    await claimed(tx, a_start(queue="deb"))
    second = a_start(debounce_key="d", delay=timedelta(seconds=1))
    assert await runs.debounce(tx, second) == second.id


async def test_options_that_contradict_each_other_are_refused_at_the_call(index: Task[[str], str]) -> None:
    for wrong in (
        {"unique": True, "key": "k"}, {"debounce": "1s"}, {"debounce": "1s", "unique": True},
        {"debounce": "1s", "unique": "x", "delay": "1s"}, {"unique": ""}, {"deadline": 0}, {"keep": "sometimes"},
    ):  # fmt: skip
        with pytest.raises(InvalidSetting):
            index.options(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="cannot be mixed"):
        await index.start_many([Call(("a",), options={"unique": "x", "debounce": "1s"}), ("b",)])


# -- in time


async def test_what_waits_past_its_deadline_fails_as_timed_out(app: App, dsn: str, index: Task[[str], str]) -> None:
    run = await index.options(deadline="1h", delay="2h").start("a")
    async with app.worker():
        await Clock(dsn).skip("61m")
        with pytest.raises(RunFailed) as failed:
            await run.result(10)
    assert (failed.value.reason, failed.value.type) == ("timed_out", "DeadlineExceeded")


@pytest.mark.parametrize("by", ["its worker", "the clock of the database"])
async def test_what_runs_past_its_deadline_is_ended_and_not_tried_again(app: App, dsn: str, by: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    task = app.task(retry=Retry(attempts=5, delay=0))(hang)
    async with app.worker():
        run = await task.options(deadline="3s" if by == "its worker" else "15s").start()
        await asyncio.wait_for(begun.wait(), 30)
        if by == "the clock of the database":
            await Clock(dsn).skip("15s")  # and no further: its worker's lease is not over yet
        with pytest.raises(RunFailed) as failed:
            await run.result(10)
        await asyncio.wait_for(ended.wait(), 30)
    assert (failed.value.reason, failed.value.attempt) == ("timed_out", 1)


async def test_no_attempt_follows_that_would_begin_after_the_expiry(app: App) -> None:
    async def fail() -> None:
        raise ValueError("no")

    task = app.task(retry=Retry(attempts=9, delay=60))(fail)
    async with app.worker():
        run = await task.options(expires="30s").start()
        with pytest.raises(RunFailed) as failed:
            await run.result(10)
    assert (failed.value.attempt, failed.value.type) == (1, "ValueError")


async def test_a_run_keeps_its_terms_in_the_table(tx: Transaction) -> None:
    start = a_start(deadline=timedelta(hours=1), limit_key="k", per_key=3, unique_key="u", keep="forever")
    await runs.start(tx, [start])
    (row,) = await tx.connection.fetch("select * from stepwell.runs where id = $1", start.id)
    assert (row["limit_key"], row["per_key"], row["unique_key"], row["keep"]) == ("k", 3, "u", "forever")
    assert row["deadline_at"] - row["created_at"] == timedelta(hours=1)
