"""An error of our own writes is never the body's failure: its outcome is kept, and tried again until it is recorded."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, TypeAlias

import asyncpg
import pytest

from stepwell import App, Retry, Run, RunCancelled, RunFailed, Snooze, State, current
from stepwell.worker.worker import Worker
from tests.waiting_for import until

Sql: TypeAlias = "asyncpg.Connection[Any]"

pytestmark = pytest.mark.timeout(60)

ONCE = Retry(attempts=1)
CHECK, OF_DATA = "23514", "22003"
REFUSE = """
create function refuse() returns trigger language plpgsql
    as 'begin raise exception ''no room'' using errcode = tg_argv[0], detail = ''secret''; end';
"""
# The trigger stays: to drop it locks its table, and may end in a deadlock with a write.
ALLOW = "create or replace function refuse() returns trigger language plpgsql as 'begin return new; end'"


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.worker.unrecorded.FIRST", 0.05)
    monkeypatch.setattr("stepwell.worker.unrecorded.MOST", 0.2)


async def refuse(sql: Sql, table: str, when: str, code: str = CHECK) -> None:
    await sql.execute(REFUSE)
    await sql.execute(
        f"create trigger refuse before insert on stepwell.{table} for each row when ({when}) "
        f"execute function refuse('{code}')"
    )


async def refused(worker: Worker, outcomes: int = 1) -> None:
    async def told() -> bool:
        found = worker._ledger.refusals.told
        return found is not None and found.outcomes == outcomes and "no room" in found.why

    await until(told)


def quiet(worker: Worker) -> bool:
    return worker._ledger.refusals.told is None


async def state(run: Run[Any]) -> State:
    return (await run.info()).state


@pytest.mark.parametrize("ends", ["completes", "fails", "tries again", "snoozes"])
async def test_an_outcome_that_is_refused_for_a_while_is_recorded_when_the_tables_take_it(
    app: App, sql: Sql, ends: str
) -> None:
    @app.task(name="odd", retry=Retry(attempts=2 if ends == "tries again" else 1, delay=3600))
    async def odd() -> int:
        if ends == "snoozes":
            raise Snooze(3600)
        if ends != "completes":
            raise ValueError("odd")
        return 7

    @app.task(name="fine")
    async def fine(n: int) -> int:
        return n

    put_off = ends in ("tries again", "snoozes")
    await refuse(sql, "attempts" if put_off else "finished_runs", "true" if put_off else "new.name = 'odd'")
    async with app.worker() as worker:
        runs = await odd.start_many([()] * 3)
        await refused(worker, 3)
        assert await (await fine.start(1)).result(timeout=10) == 1, "nobody else waits for it"
        assert {await state(run) for run in runs} == {State.RUNNING}
        await sql.execute(ALLOW)
        expected = {"completes": State.COMPLETED, "fails": State.FAILED}.get(ends, State.SCHEDULED)
        for run in runs:
            await until(partial(_is, run, expected))
            assert (await run.info()).attempt == 1
        assert quiet(worker)
        if ends == "fails":
            with pytest.raises(RunFailed, match="ValueError: odd"):
                await runs[0].result(timeout=10)


async def _is(run: Run[Any], expected: State) -> bool:
    return await state(run) is expected


@pytest.mark.parametrize("ends", ["completes", "fails"])
async def test_an_outcome_whose_data_cannot_be_stored_fails_its_run_and_nobody_else(
    app: App, sql: Sql, ends: str
) -> None:
    @app.task(name="odd", retry=Retry(attempts=3, on=(KeyError,), delay=0))
    async def odd() -> int:
        if ends == "fails":
            raise ValueError("odd")
        return 7

    @app.task(name="fine")
    async def fine(n: int) -> int:
        return n

    ended = "new.state = 'completed'" if ends == "completes" else "new.error ->> 'message' = 'odd'"
    await refuse(sql, "finished_runs", f"new.name = 'odd' and {ended}", OF_DATA)
    async with app.worker() as worker:
        run, others = await odd.start(), await fine.start_many([(n,) for n in range(5)])
        with pytest.raises(RunFailed, match=r"the outcome cannot be stored: no room") as raised:
            await run.result(timeout=10)
        assert (raised.value.reason, raised.value.attempt) == ("gave_up", 1)
        assert raised.value.type == "NumericValueOutOfRangeError"
        assert [await each.result(timeout=10) for each in others] == [0, 1, 2, 3, 4]
        assert quiet(worker)


async def test_an_outcome_is_not_tried_again_when_its_claim_is_lost(app: App, sql: Sql) -> None:
    @app.task(name="odd")
    async def odd() -> int:
        return 7

    await refuse(sql, "finished_runs", "new.state = 'completed'")
    async with app.worker() as worker:
        run = await odd.start()
        await refused(worker)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout=10)
        await worker._ledger.drained()
        assert quiet(worker)


async def test_a_worker_that_cannot_record_an_outcome_stops_all_the_same(
    app: App, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.worker.worker.FLUSH", 0.5)

    @app.task(name="odd", retry=Retry(attempts=2))
    async def odd() -> int:
        return 7

    await refuse(sql, "finished_runs", "new.state = 'completed'")
    async with app.worker() as worker:
        run = await odd.start()
        await refused(worker)
    assert await state(run) is State.RUNNING, "and the next worker reaps it"
    await sql.execute(ALLOW)
    async with app.worker():
        assert await run.result(timeout=20) == 7


async def test_what_the_log_tells_of_a_refusal_has_nothing_of_the_row(
    app: App, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="odd")
    async def odd() -> int:
        return 7

    await refuse(sql, "finished_runs", "new.state = 'completed'")
    with caplog.at_level(logging.ERROR, "stepwell"):
        async with app.worker() as worker:
            run = await odd.start()
            await refused(worker)
            await sql.execute(ALLOW)
            assert await run.result(timeout=30) == 7
    said = [record.getMessage() for record in caplog.records]
    assert any("cannot be recorded, and is tried again" in line and "no room" in line for line in said)
    assert not any("secret" in line for line in said)


# -- workflows


@pytest.mark.parametrize("type", ["TimerScheduled", "StepCompleted", "WorkflowCompleted"])
async def test_a_turn_that_is_refused_for_a_while_is_written_when_the_tables_take_it(
    app: App, sql: Sql, type: str
) -> None:
    done = 0

    @app.step
    async def work() -> int:
        nonlocal done
        done += 1
        return 7

    @app.workflow
    async def odd() -> int:
        await asyncio.sleep(0.01)
        return await work()

    @app.workflow
    async def fine() -> int:
        await asyncio.sleep(0.01)
        return 1

    other = await fine.start()
    await refuse(sql, "events", f"new.type = '{type}' and new.run_id <> '{other.id}'")
    async with app.worker() as worker:
        run = await odd.start()
        await refused(worker)
        assert await other.result(timeout=10) == 1
        assert await state(run) is State.RUNNING
        await sql.execute(ALLOW)
        assert await run.result(timeout=20) == 7
        assert (done, (await run.info()).failures) == (1, 0)
        assert quiet(worker)


async def test_a_turn_whose_data_cannot_be_stored_fails_its_run(app: App, sql: Sql) -> None:
    @app.workflow
    async def odd() -> int:
        await asyncio.sleep(0.01)
        return 7

    await refuse(sql, "events", "new.type = 'TimerScheduled'", OF_DATA)
    async with app.worker() as worker:
        with pytest.raises(RunFailed, match="no room"):
            await (await odd.start()).result(timeout=10)
        assert quiet(worker)


async def test_a_turn_that_cannot_look_at_its_history_for_a_while_does_not_fail(app: App, sql: Sql) -> None:
    @app.workflow
    async def waits() -> int:
        await asyncio.sleep(0.01)
        return 7

    async with app.worker():
        assert await (await waits.start()).result(timeout=10) == 7
    await sql.execute("alter table stepwell.arrivals rename to away")
    heard = asyncio.Event()
    handler = logging.Handler()
    handler.emit = lambda record: heard.set() if "reading the news of workflows failed" in record.getMessage() else None  # type: ignore[method-assign]
    logging.getLogger("stepwell").addHandler(handler)
    try:
        async with app.worker():
            run = await waits.start()
            await heard.wait()
            await sql.execute("alter table stepwell.away rename to arrivals")
            assert await run.result(timeout=20) == 7
    finally:
        logging.getLogger("stepwell").removeHandler(handler)


# -- transactions of bodies


@pytest.fixture
async def written(sql: Sql) -> Any:
    await sql.execute("create table written (n int)")

    async def read() -> list[int]:
        return [row["n"] for row in await sql.fetch("select n from written")]

    return read


@pytest.mark.parametrize("kind", ["task", "step"])
async def test_a_body_whose_record_is_refused_in_its_own_transaction_has_not_failed(
    app: App, sql: Sql, written: Any, kind: str
) -> None:
    """What it wrote is rolled back, and it is done again."""
    bodies = 0

    async def body() -> int:
        nonlocal bodies
        bodies += 1
        async with current.tx() as conn:
            await conn.execute("insert into written values (1)")
        return 7

    if kind == "task":
        odd: Any = app.task(retry=ONCE)(body)
        await refuse(sql, "finished_runs", "new.state = 'completed'")
    else:
        step = app.step(body)

        async def flow() -> int:
            return await step()

        odd = app.workflow(flow)
        await refuse(sql, "events", "new.type = 'StepCompleted'")
    async with app.worker() as worker:
        run = await odd.start()
        await refused(worker)
        assert await written() == []
        await sql.execute(ALLOW)
        assert await run.result(timeout=20) == 7
        assert await written() == [1]
        assert bodies >= 2
        assert (await run.info()).failures == 0
        assert quiet(worker)


async def test_what_the_bodys_own_commit_refuses_is_still_its_failure(app: App, sql: Sql) -> None:
    await sql.execute("create table strict (n int unique deferrable initially deferred)")

    @app.task(retry=ONCE)
    async def odd() -> int:
        async with current.tx() as conn:
            await conn.execute("insert into strict values (1), (1)")
        return 7

    async with app.worker() as worker:
        with pytest.raises(RunFailed, match="UniqueViolationError"):
            await (await odd.start()).result(timeout=10)
        assert quiet(worker)
