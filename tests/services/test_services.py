from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta

import pytest

from stepwell import App
from stepwell.dispatch.postgres import PostgresWakes
from stepwell.engine import ends, runs
from stepwell.model.ids import new_worker_id
from stepwell.model.states import State
from stepwell.services.due import LOOK, Due
from stepwell.services.leader import Leadership
from stepwell.services.partitions import Partitions
from stepwell.services.reaper import Reaper
from stepwell.services.service import Service, Services, rest_after
from stepwell.services.teller import Teller
from stepwell.store.pool import Database
from stepwell.telemetry import Telemetry
from stepwell.testing import Clock
from tests.conftest import as_role
from tests.factory import a_start, claimed, execute, state_of
from tests.shelf import on_server
from tests.waiting_for import until


async def test_due_moves_what_is_due_and_says_when_to_look_again(database: Database) -> None:
    now, soon = a_start(delay=timedelta(0)), a_start(delay=timedelta(seconds=0.5))
    await runs.start(database, [now, soon, a_start(delay=timedelta(days=1))])
    due = Due(database, PostgresWakes(database))
    assert await due.run_once() == 0.0
    assert await state_of(database, now.id) is State.PENDING  # type: ignore[arg-type]
    assert 0 < await due.run_once() <= 0.5


@pytest.mark.parametrize("column", ["due_at", "expires_at", "deadline_at"])
@pytest.mark.parametrize("never", ["-infinity", "infinity"])
async def test_a_row_with_an_impossible_time_keeps_no_other_from_being_due(
    database: Database, column: str, never: str
) -> None:
    odd, soon = a_start(delay=timedelta(hours=1)), a_start(delay=timedelta(seconds=0.05))
    await runs.start(database, [odd])
    async with database.transaction() as tx:
        await execute(tx, f"update stepwell.runs set {column} = '{never}'")
    due = Due(database, PostgresWakes(database))
    assert 0 <= await due.run_once() <= LOOK
    await runs.start(database, [soon])

    async def is_due() -> bool:
        assert 0 <= await due.run_once() <= LOOK
        return await state_of(database, soon.id) is State.PENDING  # type: ignore[arg-type]

    await until(is_due)


@pytest.mark.usefixtures("only_by_word")
async def test_a_run_scheduled_after_the_look_is_due_in_time(app: App) -> None:
    """Not at the next look, which is seconds away."""

    @app.task
    async def soon() -> None: ...

    async with app.worker():
        await (await soon.start()).result(10)
        run = await soon.options(delay=0.2).start()
        await run.result(30)
        info = await run.info()
        assert info.started_at is not None
        assert (info.started_at - info.created_at).total_seconds() >= 0.2


@pytest.mark.parametrize("retry", [b'{"delay": 1e400}', b'{"timeout": 1}', b"[]"])
async def test_a_policy_that_cannot_be_read_keeps_nobody_from_being_reaped(database: Database, retry: bytes) -> None:
    odd = await claimed(database)  # type: ignore[arg-type]
    usual = await claimed(database)  # type: ignore[arg-type]
    async with database.transaction() as tx:
        await execute(tx, "update stepwell.runs set retry = $2 where id = $1", odd.id, retry)
        await execute(tx, "update stepwell.workers set lease_until = stepwell.now() - interval '1s'")
    await Reaper(database, PostgresWakes(database), Telemetry(), calm=timedelta(0)).run_once()
    assert await state_of(database, odd.id) in {State.FAILED, State.PENDING}  # type: ignore[arg-type]
    assert await state_of(database, usual.id) is State.PENDING  # type: ignore[arg-type]


async def test_the_reaper_sleeps_until_the_next_lease_ends(database: Database, dsn: str) -> None:
    claim = await claimed(database)  # type: ignore[arg-type]
    wakes = PostgresWakes(database)
    reaper = Reaper(database, wakes, Telemetry(), calm=timedelta(0))
    assert await reaper.run_once() == 5.0
    assert await state_of(database, claim.id) is State.RUNNING  # type: ignore[arg-type]
    await Clock(dsn).skip("61s", workers_live_on=False)
    await reaper.run_once()
    assert await state_of(database, claim.id) is State.PENDING  # type: ignore[arg-type]
    await wakes.close()


async def test_a_reaper_that_comes_before_every_lease_looks_again_soon(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.services.reaper.LOOK", 300.0)
    reaper = Reaper(database, PostgresWakes(database), Telemetry(), calm=timedelta(0))
    assert await reaper.run_once() <= 1.0


async def test_a_lease_that_ends_while_others_are_reaped_is_not_slept_through(database: Database) -> None:
    lost, soon = await claimed(database), await claimed(database)  # type: ignore[arg-type]
    ends = """
    update stepwell.workers w set lease_until = now() + $2 from stepwell.runs r where r.id = $1 and w.id = r.claimed_by
    """
    async with database.transaction() as tx:
        await execute(tx, ends, lost.id, timedelta(seconds=-1))
        await execute(tx, ends, soon.id, timedelta(seconds=0.3))
    reaper = Reaper(database, PostgresWakes(database), Telemetry(), calm=timedelta(0))
    async with database.transaction() as other:
        await execute(other, "lock table stepwell.attempts in access exclusive mode")
        reaping = asyncio.create_task(reaper.run_once())

        async def has_ended() -> bool:
            leases = await database.rows("next_lease_end")
            return bool(leases[0]["seconds"] is None)

        await until(has_ended)
        assert not reaping.done()
    assert await reaping <= 0.31
    await reaper.run_once()
    assert await state_of(database, soon.id) is State.PENDING  # type: ignore[arg-type]


async def test_many_leaders_at_once_do_no_harm(database: Database, dsn: str) -> None:
    claims = [await claimed(database) for _ in range(20)]  # type: ignore[arg-type]
    await runs.start(database, [a_start(delay=timedelta(minutes=1)) for _ in range(300)])
    await Clock(dsn).skip("2m", workers_live_on=False)
    wakes = PostgresWakes(database)
    parts = [Due(database, wakes) for _ in range(8)]
    reapers = [Reaper(database, wakes, Telemetry(), calm=timedelta(0)) for _ in range(8)]
    await asyncio.gather(*(each.run_once() for each in parts), *(each.run_once() for each in reapers))
    await wakes.close()
    for claim in claims:
        (attempt,) = await database.rows("attempts_of", id=claim.id)
        assert attempt["outcome"] == "failed"
    pending = await database.rows(
        "list_runs", after=None, states=["pending"], name=None, queue=None, kind=None, tags=None, error=None,
        since=None, most=1000, limit=1000,
    )  # fmt: skip
    assert len(pending) == 320


async def test_a_leader_that_is_gone_is_followed_by_another(database: Database, dsn: str) -> None:
    hold = timedelta(seconds=10)
    first, second = (Leadership(database, worker=new_worker_id(), services=["due"], hold=hold) for _ in range(2))
    await first.renew()
    await second.renew()
    assert (first.terms, second.terms) == ({"due": 1}, {})
    await Clock(dsn).skip("11s", workers_live_on=False)
    await second.renew()
    await first.renew()
    assert (first.terms, second.terms) == ({}, {"due": 2})


async def test_partitions_stand_ready_for_the_days_ahead(database: Database, dsn: str) -> None:
    connection = await database.connect()
    count = "select count(*) from pg_inherits where inhparent = 'stepwell.finished_runs'::regclass"
    before = await connection.fetchval(count)
    await Clock(dsn).skip("3d")
    await Partitions(database, keep=None).run_once()
    assert await connection.fetchval(count) == before + 3
    await Partitions(database, keep=None).run_once()
    assert await connection.fetchval(count) == before + 3
    await connection.close()


async def test_a_role_that_does_not_own_the_tables_is_told_in_a_line_and_the_rest_is_done(
    dsn: str, server: str, caplog: pytest.LogCaptureFixture
) -> None:
    role = f"plain_{uuid.uuid4().hex[:12]}"
    await Clock(dsn).skip("31d")
    await on_server(
        dsn,
        f"create role {role} login password 'x'",
        f"grant usage on schema stepwell to {role}",
        f"grant select, insert, update, delete on all tables in schema stepwell to {role}",
    )
    database = Database(as_role(dsn, role), "stepwell")
    await database.open()
    old = a_start()
    await runs.start(database, [old])
    await ends.cancel(database, [old.id])
    await Clock(dsn).skip("31d")
    assert await Partitions(database, keep=timedelta(days=30)).run_once() > 60
    (line,) = caplog.records
    assert "grant the owner's role" in line.getMessage()
    assert line.exc_info is None
    connection = await database.connect()
    assert await connection.fetchval("select count(*) from stepwell.finished_runs_default") == 0
    await connection.close()
    await database.close()
    await on_server(dsn, f"drop owned by {role} cascade")
    await on_server(server, f"drop role {role}")


async def test_a_day_that_had_no_partition_keeps_its_rows_in_the_default_one(database: Database, dsn: str) -> None:
    await Clock(dsn).skip("30d")
    claim = await claimed(database)  # type: ignore[arg-type]
    await ends.cancel(database, [claim.id])
    await Partitions(database, keep=None).run_once()
    assert await state_of(database, claim.id) is State.CANCELLED  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("took", "wait", "rest"), [(0.01, 5.0, 0.0), (2.0, 5.0, 6.0), (2.0, 0.0, 0.0), (3600.0, 5.0, 30.0)]
)
def test_a_look_that_took_long_to_find_nothing_more_is_not_soon_repeated(took: float, wait: float, rest: float) -> None:
    assert rest_after(took, wait, most=30.0) == rest


@pytest.mark.parametrize("costly", [False, True])
async def test_a_costly_look_is_not_repeated_at_every_word(
    database: Database, monkeypatch: pytest.MonkeyPatch, costly: bool
) -> None:
    monkeypatch.setattr("stepwell.services.service.CHEAP", -1.0 if costly else 1e9)
    monkeypatch.setattr("stepwell.services.service.EFFORT", 1e9)
    passed: asyncio.Queue[None] = asyncio.Queue()

    class Woken(Service):
        name = "woken"

        async def run_once(self) -> float:
            self.sooner.set()
            passed.put_nowait(None)
            return 60.0

    services = Services(database, Telemetry(), [Woken()], worker=new_worker_id(), lease=timedelta(seconds=30))
    running = asyncio.create_task(services.run())
    try:
        await asyncio.wait_for(passed.get(), 10)
        if costly:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(passed.get(), 0.2)
        else:
            await asyncio.wait_for(passed.get(), 10)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_service_that_fails_is_tried_again(database: Database) -> None:
    done = asyncio.Event()

    class Flaky(Service):
        name = "flaky"
        passes = 0

        async def run_once(self) -> float:
            self.passes += 1
            if self.passes < 3:
                raise RuntimeError("this pass failed")
            done.set()
            return 60.0

    services = Services(database, Telemetry(), [Flaky()], worker=new_worker_id(), lease=timedelta(seconds=30))
    running = asyncio.create_task(services.run())
    async with asyncio.timeout(10):
        await done.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_services_start_and_stop_a_hundred_times(database: Database) -> None:
    wakes, telemetry = PostgresWakes(database), Telemetry()
    parts = [
        Due(database, wakes),
        Reaper(database, wakes, telemetry, calm=timedelta(0)),
        Partitions(database, keep=None),
        Teller(database, wakes, telemetry),
    ]
    for turn in range(100):
        services = Services(database, telemetry, parts, worker=new_worker_id(), lease=timedelta(seconds=30))
        running = asyncio.create_task(services.run())
        for _ in range(turn % 13):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    await wakes.close()


async def test_workers_start_and_stop_while_runs_flow(app: App) -> None:
    @app.task
    async def work(n: int) -> int:
        return n

    started = await work.start_many([(n,) for n in range(1000)])
    for _ in range(8):
        async with app.worker(slots=20):
            await asyncio.sleep(0.01)
    async with app.worker():
        assert [await run.result(20) for run in started] == list(range(1000))
    assert {(await run.info()).failures for run in started[::100]} == {0}
