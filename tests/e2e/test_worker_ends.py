"""How attempts and workers end when something stands in the way: nobody waits for ever."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest
from e2e_processes import Hire, Notes, eventually
from proxy import Proxy

from stepwell import App, Retry, RunCancelled, RunFailed, State, current

Sql: TypeAlias = "asyncpg.Connection[Any]"


async def test_a_slot_is_free_again_once_a_thread_that_ignored_its_cancellation_ends(app: App) -> None:
    begun, end = threading.Event(), threading.Event()

    @app.task
    def deaf() -> None:
        begun.set()
        end.wait(20)

    @app.task
    async def next_one() -> int:
        return 1

    async with app.worker(slots=1):
        run = await deaf.start()
        await asyncio.to_thread(begun.wait, 10)
        await run.cancel()
        following = await next_one.start()
        with pytest.raises(TimeoutError):
            await following.result(timeout=2.5)  # its slot is held by the thread
        end.set()
        assert await following.result(timeout=30) == 1


async def test_a_body_that_cancels_itself_fails_like_any_other(app: App) -> None:
    @app.task(retry=Retry(attempts=2, delay=0))
    async def suicidal() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)

    async with app.worker():
        run = await suicidal.start()
        with pytest.raises(RunFailed, match="CancelledError"):
            await run.result(timeout=10)
        assert [each.outcome for each in await run.attempts()] == ["failed", "failed"]


async def test_a_cancelled_body_may_clean_up_undisturbed_by_other_cancels(app: App) -> None:
    cleaned = asyncio.Event()

    @app.task
    async def careful() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.5)
            cleaned.set()

    @app.task
    async def idle() -> None:
        await asyncio.sleep(60)

    async with app.worker():
        run = await careful.start()
        others = [await idle.start() for _ in range(8)]
        await eventually(lambda: _all_running(app, 9))
        await run.cancel()
        for other in others:
            await other.cancel()
            await asyncio.sleep(0.04)
        await asyncio.wait_for(cleaned.wait(), 30)


async def _all_running(app: App, count: int) -> bool:
    return len((await app.runs(state="running")).items) == count


async def test_who_waits_hears_of_an_error_that_is_not_an_absence(app: App, sql: Sql) -> None:
    """And the next one who waits is answered when it has passed."""

    @app.task
    async def one() -> int:
        return 1

    run = await one.start()
    await sql.execute("alter table stepwell.finished_runs rename to hidden")
    waiting = asyncio.create_task(run.result())
    done, _ = await asyncio.wait({waiting}, timeout=30)
    await sql.execute("alter table stepwell.hidden rename to finished_runs")
    assert done, "the error was told to nobody"
    with pytest.raises(Exception, match="finished_runs"):
        await waiting
    async with app.worker():
        assert await run.result(timeout=10) == 1


async def test_stopping_while_claims_are_on_their_way_loses_nothing(proxy: Proxy, dsn: str, sql: Sql) -> None:
    ran: list[int] = []
    far, near = App(proxy.dsn, lease=5), App(dsn, lease=5)

    async def count(n: int) -> int:
        ran.append(n)
        return n

    for app in (far, near):
        app.task(name="count")(count)
    async with far, near:
        runs = await near.definition("count").start_many([(n,) for n in range(100)])
        for _ in range(10):
            async with far.worker(slots=3):
                proxy.delay = 0.01  # so that there is always one on its way
                before = len(ran)
                await eventually(lambda: len(ran) > before)  # noqa: B023 - awaited here
        async with near.worker():
            assert [await run.result(timeout=10) for run in runs] == list(range(100))
    assert await sql.fetchval("select sum(failures) from stepwell.finished_runs") == 0
    assert not await sql.fetchval("select count(*) from stepwell.runs")


async def test_the_error_of_the_block_comes_through_and_what_ran_is_given_back(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def hang() -> None:
        begun.set()
        await asyncio.sleep(60)

    run = await hang.start()
    with pytest.raises(ZeroDivisionError):
        async with app.worker():
            await begun.wait()
            raise ZeroDivisionError
    info = await run.info()
    assert (info.state, info.failures) == (State.PENDING, 0)


async def test_a_block_that_fails_at_once_ends_though_the_database_is_away(proxy: Proxy) -> None:
    app = App(proxy.dsn, lease=2)
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        async with app:
            proxy.refusing = True
            proxy.reset()
            async with app.worker():
                raise ZeroDivisionError
    assert time.monotonic() - began < 15


@pytest.mark.parametrize("how", ["refuse", "half-open"])
async def test_a_stopping_worker_ends_in_bounded_time_though_the_database_is_away(
    proxy: Proxy, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.worker.worker.FLUSH", 2.0)
    monkeypatch.setattr("stepwell.store.address.REACH", 3.0)
    app = App(proxy.dsn, lease=2)
    begun = asyncio.Event()

    @app.task
    async def hang() -> None:
        begun.set()
        await asyncio.sleep(60)

    async with app:
        await hang.start()
        async with app.worker():
            await begun.wait()
            if how == "refuse":
                proxy.refusing = True
                proxy.reset()
            else:
                proxy.freeze_everything()
            began = time.monotonic()
    took = time.monotonic() - began
    print(f"\n{how}: stopped and closed in {took:.1f} s")
    assert took < 15


HASTY = """
from e2e_app import app
from stepwell.worker import worker

worker.FLUSH = 2.0
"""


async def test_a_workers_process_ends_in_bounded_time_though_the_database_is_away(
    hire: Hire, client: App, proxy: Proxy, notes: Notes, place: Path
) -> None:
    (place / "hasty.py").write_text(HASTY)
    worker = await hire(app=str(place / "hasty.py"), STEPWELL_DSN=proxy.dsn, PYTHONPATH=str(Path(__file__).parent))
    run = await client.start("e2e_app.until", "gate")
    await notes.began(run)
    proxy.refusing = True
    proxy.reset()
    began = time.monotonic()
    worker.signal(signal.SIGTERM)
    code = await worker.exit_code()
    print(f"\nexit code {code} after {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < 20
    (place / "gate").touch()
    await hire()
    await run.result(timeout=10)


DYING = """
from e2e_app import app
from stepwell.worker import worker
from stepwell.worker.claiming.lanes import Lanes
from stepwell.worker.ledger import Ledger

worker.FLUSH = 2.0

async def broken(*_, **_named):
    raise RuntimeError("this part broke")

{part} = broken
"""


@pytest.mark.parametrize(
    ("part", "name", "result"),
    [("Lanes._exchange", "quick", 1), ("Ledger._settle", "flaky", 2)],
    ids=["lanes", "ledger"],
)
async def test_a_part_that_breaks_ends_the_process_and_the_run_is_done_elsewhere(
    hire: Hire, client: App, place: Path, part: str, name: str, result: int
) -> None:
    """The lanes record what completed, and the ledger everything else."""
    (place / "dying.py").write_text(DYING.format(part=part))
    broken = await hire(app=str(place / "dying.py"), PYTHONPATH=str(Path(__file__).parent))
    run = await client.start(f"e2e_app.{name}", 1)
    assert await broken.exit_code() == 1
    await broken.says("RuntimeError: this part broke")
    await hire()
    assert await run.result(timeout=10) == result


@pytest.mark.parametrize("steps", range(0, 60, 3))
async def test_a_cancel_at_any_moment_leaves_exactly_one_final_state(app: App, sql: Sql, steps: int) -> None:
    """`steps` turns of the loop after the start: before the claim, in the body, in the ledger, or after."""
    told: list[str] = []

    @app.task
    async def short(n: int) -> int:
        try:
            for _ in range(5):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            told.append(str(current.run_id))
            raise
        return n

    async with app.worker():
        runs = await short.start_many([(n,) for n in range(5)])
        for _ in range(steps):
            await asyncio.sleep(0.0005)
        cancels = await asyncio.gather(*(run.cancel() for run in runs), return_exceptions=True)
        results = await asyncio.gather(*(run.result(timeout=30) for run in runs), return_exceptions=True)
    rows = await sql.fetch("select id, state from stepwell.all_runs")
    states = {row["id"]: row["state"] for row in rows}
    assert len(rows) == len(states) == 5
    for run, cancel, result in zip(runs, cancels, results, strict=True):
        if cancel is None:
            assert (states[run.id], type(result)) == ("cancelled", RunCancelled)
        else:
            assert (states[run.id], type(result)) == ("completed", int)


@pytest.mark.parametrize("name", ["until", "until_in_thread", "until_in_process"])
async def test_a_running_body_is_told_of_its_cancellation_soon(
    hire: Hire, client: App, notes: Notes, place: Path, name: str
) -> None:
    await hire()
    child = place / "child"
    arguments = ("gate", str(child)) if name == "until_in_process" else ("gate",)
    run = await client.start(f"e2e_app.{name}", *arguments)
    await (eventually(lambda: child.exists() and child.read_text()) if len(arguments) > 1 else notes.began(run))
    began = time.monotonic()
    await run.cancel()
    if name == "until_in_process":
        pid = child.read_text()
        await eventually(lambda: not Path(f"/proc/{pid}").exists())
    else:
        await eventually(lambda: notes.of(run, "cancelled"))
    took = time.monotonic() - began
    print(f"\n{name} was told after {took:.2f} s")
    assert took < 10
