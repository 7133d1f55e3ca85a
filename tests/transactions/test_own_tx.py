"""`current.tx()`: what a body writes and the completion of its run commit together, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from datetime import timedelta
from typing import Any, TypeAlias
from uuid import uuid4

import asyncpg
import pytest

from stepwell import App, Fatal, NotInARun, Retry, RunCancelled, RunFailed, Snooze, State, Task, current
from tests.waiting_for import hearing, until

Sql: TypeAlias = "asyncpg.Connection[Any]"
Echo: TypeAlias = "Task[[Any], Any]"
ONCE = Retry(attempts=1)


@pytest.fixture
async def ledger(sql: Sql) -> Callable[[], Awaitable[list[int]]]:
    """What bodies wrote and committed."""
    await sql.execute("create table ledger (n int)")

    async def read() -> list[int]:
        return [row["n"] for row in await sql.fetch("select n from ledger order by n")]

    return read


Ledger: TypeAlias = Callable[[], Awaitable[list[int]]]


async def write(conn: Any, n: int) -> None:
    await conn.execute("insert into ledger values ($1)", n)


async def test_the_bodys_row_and_its_completion_commit_together(app: App, sql: Sql, ledger: Ledger) -> None:
    left, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def deposit(n: int) -> int:
        async with current.tx() as conn:
            await write(conn, n)
        left.set()
        await go_on.wait()
        return n + 1

    async with app.worker():
        run = await deposit.start(1)
        await left.wait()
        assert (await ledger(), (await run.info()).state) == ([], State.RUNNING)
        go_on.set()
        assert await run.result(timeout=30) == 2
        assert await ledger() == [1]
        info = await run.info()
        assert (info.state, info.attempt, info.failures) == (State.COMPLETED, 1, 0)
    assert await sql.fetchval("select xmin from ledger") == await sql.fetchval(
        "select xmin from stepwell.finished_runs"
    )


@pytest.mark.usefixtures("only_by_word")
async def test_what_follows_a_settling_follows_this_one_too(app: App, ledger: Ledger) -> None:
    """Waiters hear of it, its claim is forgotten, its slot is free, and telemetry tells of it."""
    settled: list[Any] = []
    app.telemetry.listen(lambda name, facts: settled.extend(facts["settlements"]) if name == "worker.settled" else None)
    await app.queue("narrow").set(concurrency=1)

    @app.task(queue="narrow")
    async def deposit(n: int) -> int:
        async with current.tx() as conn:
            await write(conn, n)
            return n

    async with app.worker(slots=1) as worker:
        await (await deposit.start(0)).result(timeout=30)
        for n in range(1, 6):
            assert await (await deposit.start(n)).result(timeout=30) == n
        assert await ledger() == [0, 1, 2, 3, 4, 5]
        assert [outcome.result for _, outcome in settled] == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert not worker._ledger.known


@pytest.mark.usefixtures("only_by_word")
@pytest.mark.parametrize("where", ["on its own worker", "on another worker", "in a child workflow"])
async def test_a_workflow_goes_on_as_soon_as_the_task_it_awaits_has_committed(
    app: App, ledger: Ledger, dsn: str, where: str
) -> None:
    other = App(dsn) if where == "on another worker" else app

    @other.task(name="deposit", queue="deposits")
    async def deposit(n: int) -> int:
        async with current.tx() as conn:
            await write(conn, n)
            return n

    if other is not app:
        deposit = app.task(deposit.fn, name="deposit", queue="deposits")

    @app.workflow
    async def child(n: int) -> int:
        return await deposit(n)

    @app.workflow
    async def save(n: int) -> int:
        each = child if where == "in a child workflow" else deposit
        return sum([await each(i) for i in range(n)])

    serves = None if where == "on its own worker" else ["default"]
    async with other, other.worker(queues=["deposits"]) if serves else nullcontext(), app.worker(queues=serves):
        run = await save.start(5)
        assert await run.result(timeout=20) == 10
        if where == "on its own worker":
            assert (await run.info()).attempt == 1, "its turn has parked, and was claimed again for each of them"
    assert await ledger() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("where", ["in the block", "after the block", "in the result", "snooze", "fatal"])
async def test_a_body_that_does_not_complete_has_written_nothing(app: App, ledger: Ledger, where: str) -> None:
    @app.task(retry=Retry(attempts=2, delay=0.01))
    async def deposit() -> Any:
        first = current.attempt == 1
        async with current.tx() as conn:
            await write(conn, current.attempt)
            if where == "in the block" and first:
                raise ValueError
        match where if first else None:
            case "after the block":
                raise ValueError
            case "in the result":
                return float("nan")
            case "snooze":
                raise Snooze(0.01)
            case "fatal":
                raise Fatal("no")
        return current.attempt

    async with app.worker():
        run = await deposit.start()
        if where in ("fatal", "in the result"):
            with pytest.raises(RunFailed):
                await run.result(timeout=30)
            assert await ledger() == []
        else:
            assert await run.result(timeout=30) == 2
            assert await ledger() == [2]


async def test_a_claim_that_was_taken_away_takes_the_bodys_writes_along(app: App, sql: Sql, ledger: Ledger) -> None:
    """As when the worker was taken for lost: another holds the run by now."""

    @app.task
    async def deposit() -> None:
        async with current.tx() as conn:
            await write(conn, 1)
            await sql.execute("update stepwell.runs set claim_id = $1 where id = $2", uuid4(), current.run_id)

    lost: list[Any] = []
    app.telemetry.listen(lambda name, facts: lost.extend(facts["lost"]) if name == "worker.settled" else None)
    async with app.worker():
        run = await deposit.start()
        await until(lambda: asyncio.sleep(0, lost))
        assert lost == [run.id]
        assert await ledger() == []
        assert (await run.info()).state is State.RUNNING


@pytest.mark.parametrize("when", ["in the block", "after the block"])
async def test_a_cancelled_body_has_written_nothing(app: App, sql: Sql, ledger: Ledger, when: str) -> None:
    wrote = asyncio.Event()

    @app.task
    async def deposit() -> None:
        async with current.tx() as conn:
            await write(conn, 1)
            if when == "in the block":
                wrote.set()
                await asyncio.Event().wait()
        wrote.set()
        await asyncio.Event().wait()

    async with app.worker():
        run = await deposit.start()
        await wrote.wait()
        await run.cancel()
        await until(lambda: nobody_is_in_a_transaction(sql))
        assert (await ledger(), (await run.info()).state) == ([], State.CANCELLED)


async def test_a_body_whose_time_is_out_or_whose_worker_stops_has_written_nothing(
    app: App, sql: Sql, ledger: Ledger
) -> None:
    wrote = asyncio.Event()

    @app.task(retry=ONCE)
    async def deposit() -> None:
        async with current.tx() as conn:
            await write(conn, 1)
        wrote.set()
        await asyncio.Event().wait()

    async with app.worker():
        late = await deposit.options(timeout=0.1).start()
        with pytest.raises(RunFailed, match="timed_out"):
            await late.result(timeout=30)
        wrote.clear()
        stopped = await deposit.start()
        await wrote.wait()
    assert (await stopped.info()).state is State.PENDING
    assert await ledger() == []
    assert await nobody_is_in_a_transaction(sql)


async def nobody_is_in_a_transaction(sql: Sql) -> bool:
    asked = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%'"
    return await sql.fetchval(asked) == 0


async def test_what_a_body_starts_in_it_is_started_once(app: App, echo: Echo, ledger: Ledger) -> None:
    @app.task(retry=Retry(attempts=2, delay=0.01))
    async def order() -> int:
        async with current.tx() as conn:
            await echo.options(tx=conn).start("ship")
            await echo.options(tx=conn).start_many([("mail",), ("bill",)])
        if current.attempt == 1:
            raise ValueError
        return 1

    async with app.worker():
        run = await order.start()
        assert await run.result(timeout=30) == 1
        children = (await app.runs(name="echo")).items
        assert sorted(child.input["what"] for child in children) == ["bill", "mail", "ship"]
        assert {child.parent_id for child in children} == {run.id}


# -- what is refused


async def refused(app: App, task: Task[[], Any]) -> str:
    async with app.worker():
        with pytest.raises(RunFailed) as failed:
            await (await task.start()).result(timeout=20)
        return str(failed.value)


async def test_a_second_or_nested_one_is_refused(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def nested() -> None:
        async with current.tx() as conn, current.tx():
            await write(conn, 1)

    @app.task(retry=ONCE)
    async def twice() -> None:
        async with current.tx() as conn:
            await write(conn, 1)
        async with current.tx() as conn:
            await write(conn, 2)

    for task in (nested, twice):
        assert "once in an attempt" in await refused(app, task)
    assert await ledger() == []


@pytest.mark.parametrize("by", ["id", "key"])
async def test_a_body_that_cancels_its_own_run_there_is_refused_and_not_run_again(
    app: App, ledger: Ledger, by: str
) -> None:
    @app.task(retry=ONCE)
    async def deposit() -> None:
        async with current.tx() as conn:
            await write(conn, 1)
            await app.run(current.run_id if by == "id" else current.key or "").cancel(tx=conn)

    async with app.worker():
        with pytest.raises(RunFailed, match=r"call cancel\(\) without tx="):
            await (await deposit.options(key="k").start()).result(timeout=30)
    assert await ledger() == []


async def test_a_body_may_cancel_its_own_run_beside_it_and_then_has_written_nothing(app: App, ledger: Ledger) -> None:
    @app.task
    async def deposit() -> None:
        async with current.tx() as conn:
            await write(conn, 1)
            await app.run(current.run_id).cancel()

    async with app.worker():
        run = await deposit.start()
        with pytest.raises(RunCancelled):
            await run.result(timeout=30)
        assert len(await run.attempts()) == 1
    assert await ledger() == []


async def test_one_that_was_rolled_back_may_be_followed_by_another(app: App, ledger: Ledger) -> None:
    @app.task
    async def again() -> int:
        try:
            async with current.tx() as conn:
                await write(conn, 1)
                raise KeyError
        except KeyError:
            pass
        async with current.tx() as conn:
            await write(conn, 2)
        return 2

    async with app.worker():
        assert await (await again.start()).result(timeout=30) == 2
    assert await ledger() == [2]


async def test_threads_and_processes_are_told_that_it_is_not_for_them(app: App) -> None:
    @app.task(retry=ONCE)
    def in_thread() -> None:
        async def use() -> None:
            async with current.tx():
                pass

        asyncio.run(use())

    process = app.task(executor="process", retry=ONCE)(in_process)
    for task in (in_thread, process):
        assert "not for threads and processes" in await refused(app, task)


async def in_process() -> None:
    async with current.tx():
        pass


async def test_outside_of_a_run_there_is_none() -> None:
    with pytest.raises(NotInARun):
        current.tx()


async def test_a_body_may_not_return_while_its_block_is_open(app: App, ledger: Ledger) -> None:
    inside, still = asyncio.Event(), []

    @app.task(retry=ONCE)
    async def careless() -> None:
        async def use() -> None:
            async with current.tx() as conn:
                await write(conn, 1)
                inside.set()
                await asyncio.Event().wait()

        still.append(asyncio.create_task(use()))
        await inside.wait()

    assert "block was open" in await refused(app, careless)
    still[0].cancel()
    await asyncio.gather(*still, return_exceptions=True)
    assert await ledger() == []


async def test_a_body_may_not_end_the_transaction_itself(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def hasty() -> None:
        async with current.tx() as conn:
            await write(conn, 1)
            await conn.execute("rollback")

    assert "ended the transaction" in await refused(app, hasty)


async def test_a_transaction_that_failed_fails_its_attempt_even_if_the_body_went_on(app: App, ledger: Ledger) -> None:
    @app.task(retry=ONCE)
    async def deaf() -> None:
        async with current.tx() as conn:
            await write(conn, 1)
            try:
                await conn.execute("select 1/0")
            except asyncpg.DivisionByZeroError:
                pass

    assert "transaction is aborted" in await refused(app, deaf)
    assert await ledger() == []


async def test_what_the_commit_itself_refuses_fails_the_attempt(app: App, sql: Sql, ledger: Ledger) -> None:
    await sql.execute("create table strict (n int unique deferrable initially deferred)")

    @app.task(retry=Retry(attempts=2, delay=0.01))
    async def deposit() -> int:
        async with current.tx() as conn:
            await write(conn, current.attempt)
            for _ in range(3 - current.attempt):
                await conn.execute("insert into strict values (1)")
        return current.attempt

    async with app.worker():
        run = await deposit.start()
        assert await run.result(timeout=30) == 2
        first, _ = await run.attempts()
        assert first.error is not None
        assert "UniqueViolationError" in first.error.type
    assert await ledger() == [2]


# -- the connection


async def test_it_is_a_connection_as_the_driver_makes_them_and_as_the_last_body_found_it(app: App) -> None:
    @app.task
    async def look(change: bool) -> list[Any]:
        async with current.tx() as conn:
            seen = [
                await conn.fetchval("show enable_seqscan"),
                await conn.fetchval("show statement_timeout"),
                await conn.fetchval("""select '{"a": 1}'::jsonb"""),
                await conn.fetchval("show work_mem"),
            ]
            if change:
                await conn.execute("set work_mem = '123MB'")
                async with conn.transaction():
                    await conn.execute("select 1")
            return seen

    async with app.worker():
        for change in (True, False):
            result = await (await look.start(change)).result(timeout=30)
            assert result[:3] == ["on", "0", '{"a": 1}']
            assert result[3] != "123MB"


async def test_more_bodies_than_connections_wait_for_their_turn(app: App, sql: Sql, ledger: Ledger) -> None:
    @app.task
    async def deposit(n: int) -> int:
        async with current.tx() as conn:
            await write(conn, n)
            await asyncio.sleep(0.05)
        return n

    async with app.worker(slots=50):
        runs = await deposit.start_many([(n,) for n in range(60)])
        asked = "select count(*) from pg_stat_activity where datname = current_database() and state like 'idle in%'"
        assert await until(lambda: sql.fetchval(asked)) <= 10
        assert [await run.result(timeout=20) for run in runs] == list(range(60))
    assert await ledger() == list(range(60))


async def test_nothing_is_opened_for_bodies_that_do_not_ask(app: App, sql: Sql, echo: Echo) -> None:
    with hearing(app, "worker.ready") as ready:
        async with app.worker() as worker:
            await ready.wait()
            await (await echo.start(1)).result(timeout=30)
            assert worker._link.lend is not None
            lending: Any = worker._link.lend()
            assert not lending._lending._lent
            assert not lending._lending._connections._idle


async def test_a_run_is_finished_when_its_transaction_ends_and_not_when_that_began(app: App) -> None:
    @app.task
    async def slow() -> None:
        async with current.tx() as db:
            await db.execute("select pg_sleep(0.5)")

    async with app.worker():
        run = await slow.start()
        await run.result(timeout=10)
    info = await run.info()
    assert info.started_at is not None
    assert info.finished_at is not None
    assert info.finished_at - info.started_at >= timedelta(seconds=0.5)
