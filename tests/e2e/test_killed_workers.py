"""Workers that are killed, stopped, frozen or poisoned: what they held is done elsewhere, once."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest
from e2e_processes import Hire, Notes, eventually

from stepwell import App, Retry, RunFailed, State

LEASE = 2.0
STOPS = 10
Sql: TypeAlias = "asyncpg.Connection[Any]"


async def leads(sql: Sql, pid: int) -> bool:
    asked = (
        "select exists (select from stepwell.leaders l join stepwell.workers w on w.id = l.worker_id where w.pid = $1)"
    )
    return bool(await sql.fetchval(asked, pid))


@pytest.mark.parametrize("leader", [True, False], ids=["the leader", "a follower"])
async def test_a_killed_workers_runs_finish_elsewhere_as_its_lease_ends(
    hire: Hire, client: App, sql: Sql, notes: Notes, place: Path, leader: bool
) -> None:
    # The reaper is told when a lease ends: it would not look by itself.
    first = await hire(E2E_REAPER_LOOKS="300")
    await eventually(lambda: leads(sql, first.pid))
    second = await hire(E2E_REAPER_LOOKS="300")
    victim, other = (first, second) if leader else (second, first)
    other.signal(signal.SIGSTOP)
    runs = [await client.start("e2e_app.until", "gate") for _ in range(3)]
    runs.append(await client.start("e2e_app.until_in_thread", "gate"))
    await notes.began(*runs)
    other.signal(signal.SIGCONT)
    killed = time.monotonic()
    victim.signal(signal.SIGKILL)
    await victim.exit_code()
    (place / "gate").touch()
    assert {await run.result(timeout=40) for run in runs} == {other.pid}
    took = time.monotonic() - killed
    print(f"\nruns of {'the leader' if leader else 'a follower'} finished {took:.2f} s after it was killed")
    assert took < LEASE + 30
    for run in runs:
        outcomes = [(each.outcome, each.error and each.error.reason) for each in await run.attempts()]
        assert outcomes == [("failed", "worker_lost"), ("completed", None)]


async def test_a_worker_frozen_past_its_lease_is_refused_and_works_on(
    hire: Hire, client: App, notes: Notes, place: Path
) -> None:
    zombie = await hire()
    run = await client.start("e2e_app.until", "gate")
    await notes.began(run)
    zombie.signal(signal.SIGSTOP)
    successor = await hire(STEPWELL_LEASE="30s")  # which it does not lose while it is stopped
    await eventually(lambda: len(notes.of(run)) == 2)
    # Both bodies see the gate: the zombie wakes first, and its outcome arrives while the successor still runs.
    successor.signal(signal.SIGSTOP)
    (place / "gate").touch()
    zombie.signal(signal.SIGCONT)
    await zombie.says("outcomes were refused|the lease is lost", within=20)
    assert (await run.info()).state is State.RUNNING
    successor.signal(signal.SIGCONT)
    assert await run.result(timeout=10) == successor.pid
    assert [each.outcome for each in await run.attempts()] == ["failed", "completed"]
    successor.signal(signal.SIGKILL)
    again = await client.start("e2e_app.until", "gate")
    assert await again.result(timeout=10) == zombie.pid


async def test_ten_workers_take_two_thousand_runs_and_none_of_them_twice(
    hire: Hire, client: App, notes: Notes, sql: Sql
) -> None:
    runs = await client.definition("e2e_app.quick").start_many([(n,) for n in range(2000)])
    began = time.monotonic()
    workers = await asyncio.gather(*(hire("--slots", "20") for _ in range(10)))
    assert [await run.result(timeout=60) for run in runs] == list(range(2000))
    print(f"\n2000 runs, ten processes: {time.monotonic() - began:.1f} s from the first process on")
    assert sorted(note.run for note in notes.all()) == sorted(str(run.id) for run in runs)
    states = await sql.fetch("select state, attempt, failures, count(*) from stepwell.all_runs group by 1, 2, 3")
    assert [tuple(row) for row in states] == [("completed", 1, 0, 2000)]
    assert {worker.code for worker in workers} == {None}


async def test_a_poisonous_task_fails_at_its_limit_and_everything_else_completes(
    hire: Hire, client: App, notes: Notes
) -> None:
    supervisor = await hire("--processes", "2", "--slots", "10")
    poison = await client.start("e2e_app.poison")
    # No more patient than the poison, and lost with it whenever they share a worker.
    sleepy = client.definition("e2e_app.sleepy").options(retry=Retry(attempts=3, delay=0.05))
    others = await sleepy.start_many([(1.5,)] * 8)
    with pytest.raises(RunFailed) as failed:
        await poison.result(timeout=40)
    assert (failed.value.reason, failed.value.attempt) == ("worker_lost", 3)
    assert len(notes.of(poison)) == 3
    for run in others:
        assert await run.result(timeout=60) == 1.5
    assert supervisor.code is None


async def test_a_body_that_blocks_the_event_loop_for_three_leases_completes_once(
    hire: Hire, client: App, notes: Notes
) -> None:
    blocked = await hire()
    run = await client.start("e2e_app.block", 3 * LEASE)
    await notes.began(run)
    await hire()  # who would take it, were it given up
    assert await run.result(timeout=30) == blocked.pid
    info = await run.info()
    assert (info.attempt, info.failures, len(notes.of(run))) == (1, 0, 1)


async def test_stops_release_what_runs_at_once_and_count_no_failure(
    hire: Hire, client: App, sql: Sql, notes: Notes, place: Path
) -> None:
    names = ["until", "until", "until_in_thread", "until_in_thread"]
    runs = [await client.start(f"e2e_app.{name}", "gate") for name in names]
    worker, slowest = await hire(), 0.0
    for stopped in range(STOPS):
        await eventually(lambda: len(notes.all()) == len(runs) * (stopped + 1))  # noqa: B023 - awaited here
        following = asyncio.create_task(hire())
        began = time.monotonic()
        worker.signal(signal.SIGTERM)
        await eventually(lambda: holds_nothing(sql, worker.pid))  # noqa: B023 - awaited here
        slowest = max(slowest, time.monotonic() - began)
        assert await worker.exit_code() == 0
        worker = await following
    (place / "gate").touch()
    assert [await run.result(timeout=10) for run in runs] == [worker.pid] * len(runs)
    print(f"\n{STOPS} stops over {len(runs)} runs: the slowest released after {slowest:.2f} s")
    assert slowest < 10
    for run in runs:
        assert [each.outcome for each in await run.attempts()] == ["released"] * STOPS + ["completed"]
        assert (await run.info()).failures == 0


async def holds_nothing(sql: Sql, pid: int) -> bool:
    asked = "select count(*) from stepwell.runs r join stepwell.workers w on w.id = r.claimed_by where w.pid = $1"
    return await sql.fetchval(asked, pid) == 0


async def test_no_process_of_a_worker_outlives_it(hire: Hire, client: App, place: Path) -> None:
    worker = await hire()
    run = await client.start("e2e_app.until_in_process", "gate", str(place / "child"))
    child = int(await eventually(lambda: (place / "child").exists() and (place / "child").read_text()))
    worker.signal(signal.SIGKILL)
    await eventually(lambda: not Path(f"/proc/{child}/cmdline").exists())
    (place / "gate").touch()
    await hire()
    await run.result(timeout=10)
