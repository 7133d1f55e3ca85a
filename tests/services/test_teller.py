"""A workflow that waits for an end which it was never told is told it, once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from stepwell import App, Run, State, workflow
from stepwell.dispatch.postgres import PostgresWakes
from stepwell.engine import ends, undelivered_ends
from stepwell.model.events import Event
from stepwell.model.turn import Consequences
from stepwell.services.teller import LOOK, Teller
from stepwell.store.pool import Database
from stepwell.telemetry import Telemetry
from tests.waiting_for import until
from tests.workflows.telling import reaches, types_of

Sql = Any
FINISH = """
with done as (delete from stepwell.runs where id = $1 returning *)
insert into stepwell.finished_runs (
    id, kind, name, queue, priority, state, input, result, error, retry, attempt, failures, created_at, finished_at,
    parent_id, root_id, node
)
select id, kind, name, queue, priority, $2, input, $3::jsonb, $4::jsonb, retry, 1, 0, created_at, stepwell.now(),
       parent_id, root_id, node
  from done
"""


@pytest.fixture
async def sql(dsn: str) -> Any:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def finished(sql: Sql, run: Run[Any], state: State, result: str | None = None, error: str | None = None) -> None:
    """As if by hand: nobody is told."""
    await sql.execute(FINISH, run.id, state.value, result, error)


@pytest.fixture
async def tell(database: Database) -> Any:
    """One round of the service."""
    wakes = PostgresWakes(database)
    teller = Teller(database, wakes, Telemetry())

    async def round() -> None:
        while await teller.run_once() < LOOK:
            pass

    yield round
    await wakes.close()


Tell = Callable[[], Awaitable[None]]


def an_asking_workflow(app: App) -> Any:
    """It awaits a task of a queue that nobody serves."""

    @app.task(name="remote", queue="nobody")
    async def remote(n: int) -> int:
        return n

    @app.workflow(name="asking")
    async def asking() -> list[str]:
        ends = await asyncio.gather(*[remote(n) for n in range(3)], return_exceptions=True)
        return [f"{type(end).__name__} {end}" for end in ends]

    return asking


async def waiting_for(run: Run[Any], children: int) -> list[Run[Any]]:
    await reaches(run, State.WAITING)
    found = await run.children()
    assert len(found) == children
    return list(found)


async def test_ends_that_were_never_told_are_told_once(app: App, sql: Sql, tell: Tell) -> None:
    run = await an_asking_workflow(app).start()
    async with app.worker(queues=["default"]):
        one, two, three = await waiting_for(run, 3)
        await finished(sql, one, State.COMPLETED, "7")
        await finished(sql, two, State.FAILED, error='{"type": "ValueError", "message": "no", "reason": "raised"}')
        await finished(sql, three, State.CANCELLED)
        await tell()
        await tell()
        first, second, third = await run.result(10)
    assert first == "int 7"
    assert second.startswith("RunFailed")
    assert "ValueError: no" in second
    assert third.startswith("RunCancelled")
    assert (await types_of(run))[4:] == ["TaskCompleted", "TaskFailed", "TaskFailed", "WorkflowCompleted"]


async def test_a_run_whose_row_is_gone_has_failed_for_who_waits_for_it(app: App, sql: Sql, tell: Tell) -> None:
    run = await an_asking_workflow(app).start()
    async with app.worker(queues=["default"]):
        children = await waiting_for(run, 3)
        for child in children:
            await sql.execute("delete from stepwell.runs where id = $1", child.id)
        await tell()
        ends = await run.result(10)
    for child, end in zip(children, ends, strict=True):
        assert end.startswith("RunFailed")
        assert f"run {child.id} is neither live nor finished" in end


async def test_nobody_is_told_what_has_not_happened(app: App, sql: Sql, tell: Tell) -> None:
    """Of three, one has ended and is told: the others are live, and it goes on waiting for them."""
    run = await an_asking_workflow(app).start()
    async with app.worker(queues=["default"]):
        one, *_ = await waiting_for(run, 3)
        await tell()
        assert await sql.fetchval("select arrived from stepwell.runs where id = $1", run.id) == 0
        await finished(sql, one, State.COMPLETED, "7")
        await tell()
        await until(lambda: _told(run, 1))
        await reaches(run, State.WAITING)
        await tell()
    assert await sql.fetchval("select arrived from stepwell.runs where id = $1", run.id) == 1


async def _told(run: Run[Any], count: int) -> bool:
    return (await types_of(run)).count("TaskCompleted") == count


async def test_what_was_given_up_or_asked_before_it_began_anew_is_not_waited_for(
    app: App, sql: Sql, tell: Tell
) -> None:
    @app.task(name="remote", queue="nobody")
    async def remote() -> None: ...

    @app.workflow(name="giving")
    async def giving(again: bool) -> None:
        if again:
            await remote.start()
            workflow.continue_as_new(False)
        try:
            async with asyncio.timeout(0.01):
                await remote()
        except TimeoutError:
            pass
        await asyncio.gather(remote(), workflow.signal("go"))

    run = await giving.start(True)
    async with app.worker(queues=["default"]):
        await until(lambda: _started(run, 3))
        await reaches(run, State.WAITING)
        before, given_up, awaited = await run.children()
        assert (await given_up.info()).state is State.CANCELLED
        await sql.execute("delete from stepwell.runs where id = $1", before.id)
        await tell()
        assert await sql.fetchval("select arrived from stepwell.runs where id = $1", run.id) == 0
        assert await sql.fetchval("select count(*) from stepwell.runs where id = $1", awaited.id) == 1


async def _started(run: Run[Any], count: int) -> bool:
    return (await types_of(run)).count("TaskScheduled") == count


async def test_an_end_that_is_being_told_is_not_told_twice(app: App, database: Database) -> None:
    run = await an_asking_workflow(app).start()
    async with app.worker(queues=["default"]):
        one, *_ = await waiting_for(run, 3)

    async def tell() -> list[Event]:
        async with database.transaction() as tx:
            return await undelivered_ends.tell(tx, run.id, Consequences())

    async with database.transaction() as tx:
        await ends.cancel(tx, [one.id])
        telling = asyncio.create_task(tell())

        async def waits() -> bool:
            return bool(await tx.connection.fetch("select from pg_locks where not granted"))

        await until(waits)
    assert await telling == []
    async with database.transaction() as tx:
        assert [row["place"] for row in await tx.connection.fetch("select place from stepwell.arrivals")] == [1]


async def test_a_look_is_bounded_and_a_round_goes_past_everything(app: App, database: Database, sql: Sql) -> None:
    asking = an_asking_workflow(app)
    started = [await asking.start() for _ in range(5)]
    async with app.worker(queues=["default"]):
        for run in started:
            await waiting_for(run, 3)
    lost = sorted(run.id for run in started)
    await sql.execute("delete from stepwell.runs where name = 'remote'")
    for bounds in ({"live": 2}, {"events": 1}, {"events": 5}, {}):
        after, found, looks = undelivered_ends.FIRST, [], 0
        while (look := await undelivered_ends.look(database, after, **bounds)).last is not None:
            found += look.untold
            after, looks = look.last, looks + 1
        assert found == lost
        assert looks == {"live": 3, "events": 5 if bounds.get("events") == 1 else 3}.get(next(iter(bounds), ""), 1)


async def test_a_start_that_its_key_refused_is_no_run_to_wait_for(app: App, sql: Sql, tell: Tell) -> None:
    @app.task(name="remote", queue="nobody")
    async def remote() -> None: ...

    @app.workflow(name="keyed")
    async def keyed() -> None:
        await asyncio.gather(remote.options(key="taken")(), remote(), return_exceptions=True)

    await remote.options(key="taken").start()
    run = await keyed.start()
    async with app.worker(queues=["default"]):
        await until(lambda: _refused(run))
        await reaches(run, State.WAITING)
        told = await sql.fetchval("select arrived from stepwell.runs where id = $1", run.id)
        await tell()
    assert await sql.fetchval("select arrived from stepwell.runs where id = $1", run.id) == told == 1


async def _refused(run: Run[Any]) -> bool:
    return "TaskFailed" in await types_of(run)
