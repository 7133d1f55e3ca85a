"""What `run.attempts()` tells after the fact: where it ran, what it took, how it died."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import timedelta
from typing import Any

import pytest

from stepwell import App, Retry, RunError, Usage, current
from stepwell.engine import settle, workers
from stepwell.model.outcome import Completed, Failed, Released, Snoozed
from stepwell.services.partitions import Partitions
from stepwell.store.pool import Database, Transaction
from stepwell.testing import Clock
from tests.factory import BOOM, a_start, a_worker, claimed
from tests.inside import bodies

once = Retry(attempts=1)


async def ended(run: Any) -> Any:
    await asyncio.gather(run.result(20), return_exceptions=True)
    return (await run.attempts())[-1]


async def test_an_attempt_knows_its_worker_host_and_pid(app: App) -> None:
    @app.task
    async def work() -> None: ...

    async with app.worker(name="mine"):
        attempt = await ended(await work.start())
    assert (attempt.host, attempt.pid) == (socket.gethostname(), os.getpid())
    assert attempt.usage is None
    assert attempt.logs == ()
    assert attempt.started_at <= attempt.ended_at


async def test_a_process_tells_what_it_took(app: App) -> None:
    task = bodies.define(app, bodies.burns)
    async with app.worker(slots=1):
        heavy = (await ended(await task.start(0.3, 200))).usage
        light = (await ended(await task.start(0.0, 1))).usage
    assert 0.3 <= heavy.cpu < 3
    assert heavy.memory > 200 * 1024 * 1024
    assert light.cpu < 0.2
    # The same process, and not its peak of before.
    assert light.memory < heavy.memory - 100 * 1024 * 1024


@pytest.mark.parametrize(
    ("fn", "outcomes"),
    [(bodies.raises, ["failed", "failed"]), (bodies.snoozes_once, ["snoozed", "completed"])],
)
async def test_also_if_it_fails_or_snoozes(app: App, fn: Any, outcomes: list[str]) -> None:
    task = bodies.define(app, fn, retry=Retry(attempts=2, delay=0.01))
    async with app.worker():
        run = await task.start()
        await ended(run)
    attempts = await run.attempts()
    assert [each.outcome for each in attempts] == outcomes
    assert all(each.usage.cpu is not None and each.usage.memory > 0 for each in attempts)


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV", "SIGTERM"])
async def test_a_process_that_was_killed_leaves_the_name_of_the_signal(app: App, name: str) -> None:
    task = bodies.define(app, bodies.is_killed, retry=once)
    async with app.worker():
        attempt = await ended(await task.start(name))
    assert attempt.usage == Usage(signal=name)
    assert name in attempt.error.message


async def test_a_process_that_exited_leaves_its_exit_code(app: App) -> None:
    task = bodies.define(app, bodies.exits, retry=once)
    async with app.worker():
        attempt = await ended(await task.start())
    assert attempt.usage == Usage(exit_code=7)


@pytest.mark.parametrize(
    "outcome", [Completed(b"1"), Failed(BOOM), Snoozed(timedelta(0)), Released()], ids=lambda each: type(each).__name__
)
@pytest.mark.parametrize("retry", [once, Retry(attempts=2, delay=0), Retry(attempts=2, delay=9)], ids=["no", "0", "9"])
async def test_usage_goes_with_every_outcome_of_a_body(tx: Transaction, outcome: Any, retry: Retry) -> None:
    measured, plain = [await claimed(tx, a_start(queue=queue, retry=retry)) for queue in ("q-one", "q-two")]
    measured.usage = Usage(cpu=1.5, memory=1000)
    await settle.apply(tx, settle.plan([(measured, outcome), (plain, outcome)]))
    found = [(await tx.rows("attempts_of", id=claim.id))[0]["usage"] for claim in (measured, plain)]
    assert found[1] is None
    assert (found[0] is None) == isinstance(outcome, Released)


async def test_only_what_was_measured_is_settled_apart(app: App) -> None:
    settled: list[Any] = []
    app.telemetry.listen(lambda name, facts: settled.append(facts) if name == "worker.settled" else None)

    @app.task
    async def work() -> None: ...

    crunch = bodies.define(app, bodies.burns)
    async with app.worker():
        await (await work.start()).result(10)
        await (await crunch.start(0, 1)).result(20)
    usages = [claim.usage for facts in settled for claim, _ in facts["settlements"]]
    assert [usage is None for usage in usages] == [True, False]


# -- workers are known for as long as their runs


async def known(database: Database) -> set[Any]:
    async with database.transaction() as tx:
        return {row["id"] for row in await tx.connection.fetch("select id from stepwell.workers")}


async def test_a_worker_is_known_as_long_as_a_run_that_it_may_have_run(database: Database, dsn: str) -> None:
    first = await a_worker(database)  # type: ignore[arg-type]
    claim = await claimed(database, worker=first)  # type: ignore[arg-type]
    await settle.apply(database, settle.plan([(claim, Completed(b"1"))]))
    await Clock(dsn).skip("40d", workers_live_on=False)
    await workers.forget(database)
    assert await known(database) == {first}
    async with database.transaction() as tx:
        await tx.connection.fetch("delete from stepwell.finished_runs")
    await Partitions(database, keep=None).run_once()
    assert await known(database) == set()


async def test_a_worker_that_ended_before_every_run_is_forgotten(database: Database, dsn: str) -> None:
    await a_worker(database)  # type: ignore[arg-type]
    async with database.transaction() as tx:
        await tx.connection.fetch("update stepwell.workers set lease_until = lease_until - interval '40 days'")
    second = await a_worker(database)  # type: ignore[arg-type]
    claim = await claimed(database, worker=second)  # type: ignore[arg-type]
    await settle.apply(database, settle.plan([(claim, Completed(b"1"))]))
    await workers.forget(database)
    assert await known(database) == {second}


# -- codes


@pytest.mark.parametrize(
    ("retry", "attempts"),
    [
        (Retry(attempts=3, delay=0, on=("CARD_DECLINED",)), 3),
        (Retry(attempts=3, delay=0, on=("SOMETHING_ELSE",)), 1),
        (Retry(attempts=3, delay=0, never=("CARD_DECLINED",)), 1),
        (Retry(attempts=3, delay=0, never=("SOMETHING_ELSE",)), 3),
        (Retry(attempts=3, delay=0, on=RunError, never="CARD_DECLINED"), 1),
    ],
    ids=["on", "not on", "never", "not never", "on and never"],
)
async def test_a_policy_matches_the_codes_of_errors(app: App, retry: Retry, attempts: int) -> None:
    @app.task(retry=retry)
    async def charge() -> None:
        raise RunError(f"declined at {current.attempt}", code="CARD_DECLINED")

    async with app.worker():
        run = await charge.start()
        last = await ended(run)
    assert last.attempt == attempts
    assert last.error.code == "CARD_DECLINED"
    assert all("in charge" in each.error.traceback for each in await run.attempts())
