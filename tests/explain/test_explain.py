"""What the tables say, gathered and explained: one test for each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from stepwell import App, NotFound, Retry, Snooze, current
from stepwell.engine import runs, workers
from stepwell.engine.workers import Identity
from stepwell.explain.explanation import explanation
from stepwell.model.explanation import Cause, Why
from stepwell.model.ids import WorkerId, new_claim_id, new_run_id, new_worker_id
from stepwell.model.run import Wanted
from stepwell.store.pool import Database
from stepwell.testing import Clock
from tests.waiting_for import hearing, until

Hire = Callable[..., Awaitable[WorkerId]]


@pytest.fixture
def hire(database: Database) -> Hire:
    """A worker that only says that it is there."""

    async def hired(*names: str, queues: list[str] | None = None, slots: int = 10, name: str = "web1") -> WorkerId:
        who = Identity(new_worker_id(), name, "host", 1, "0", queues, slots, list(names))
        await workers.renew(database, who, timedelta(seconds=60))
        return who.id

    return hired


async def causes(run: Any) -> dict[Why, Cause]:
    return {cause.code: cause for cause in (await run.explain()).causes}


async def claim(
    database: Database, worker: WorkerId, name: str, queue: str = "default", *, limited: bool = True
) -> None:
    wanted = Wanted(worker, [queue], [name], 1, alone=True)
    ask = runs.claim_limited if limited else runs.claim
    assert len((await ask(database, wanted, new_claim_id())).claims) == 1


async def is_claimed(database: Database, worker: WorkerId, run: Any) -> bool:
    """Whether the claims say the same as the explanation."""
    found = set()
    for ask in (runs.claim, runs.claim_limited):
        claimed = await ask(database, Wanted(worker, None, ["shop.charge"], 10, alone=False), new_claim_id())
        found |= {claim.id for claim in claimed.claims}
    return run.id in found


async def test_what_no_run_is_called_cannot_be_explained(app: App) -> None:
    with pytest.raises(NotFound):
        await app.run(new_run_id()).explain()
    with pytest.raises(NotFound):
        await app.run("no-such-key").explain()


async def test_no_worker_and_then_none_that_knows_it_and_then_one_that_does(
    app: App, hire: Hire, database: Database
) -> None:
    run = await app.start("shop.charge")
    assert (await causes(run)).keys() == {Why.QUEUE_NOT_SERVED}
    other = await hire("shop.charge", queues=["mail"])
    assert (await causes(run))[Why.QUEUE_NOT_SERVED].facts["workers"] == [other]
    serving = await hire("shop.add")
    cause = (await causes(run))[Why.NAME_NOT_KNOWN]
    assert (cause.facts["serving"], cause.facts["knowing"]) == ([serving], [other])
    knowing = await hire("shop.charge")
    assert (await causes(run)).keys() == {Why.NEXT}
    assert await is_claimed(database, knowing, run)


async def test_a_paused_queue(app: App, hire: Hire, database: Database) -> None:
    worker = await hire("shop.charge")
    await app.queue("default").pause(by="ann@desk")
    run = await app.start("shop.charge")
    cause = (await causes(run))[Why.QUEUE_PAUSED]
    assert cause.facts["by"] == "ann@desk"
    assert "by ann@desk" in cause.text
    assert not await is_claimed(database, worker, run)
    await app.queue("default").resume()
    assert await is_claimed(database, worker, run)


async def test_a_full_cap_and_who_holds_it(app: App, hire: Hire, database: Database) -> None:
    worker = await hire("shop.charge")
    await app.queue("default").set(concurrency=1)
    first = await app.start("shop.charge")
    await claim(database, worker, "shop.charge")
    run = await app.start("shop.charge")
    found = await causes(run)
    assert found.keys() == {Why.CAP_FULL}
    assert found[Why.CAP_FULL].facts == {"queue": "default", "limit": 1, "held": 1, "runs": [first.id]}
    assert not await is_claimed(database, worker, run)
    await first.cancel()
    assert (await causes(run)).keys() == {Why.NEXT}
    assert await is_claimed(database, worker, run)


async def test_a_full_cap_of_a_key_and_who_holds_it(app: App, hire: Hire, database: Database) -> None:
    @app.task(name="shop.charge", limit_by=lambda tenant: tenant, per_key=1)
    async def charge(tenant: str) -> None: ...

    worker = await hire("shop.charge")
    first = await charge.start("acme")
    await claim(database, worker, "shop.charge")
    run, other = await charge.start("acme"), await charge.start("else")
    found = await causes(run)
    assert found.keys() == {Why.KEY_CAP_FULL}
    facts = found[Why.KEY_CAP_FULL].facts
    assert (facts["key"], facts["limit"], facts["runs"]) == ("acme", 1, [first.id])
    assert (await causes(other)).keys() == {Why.NEXT}
    assert (await run.explain()).limit_key == "acme"
    assert not await is_claimed(database, worker, run)
    await first.cancel()
    assert (await causes(run)).keys() == {Why.NEXT}
    assert await is_claimed(database, worker, run)


async def test_a_spent_rate_and_until_when(app: App, hire: Hire, database: Database, dsn: str) -> None:
    worker = await hire("shop.charge")
    await app.queue("default").set(rate="1/h")
    await app.start("shop.charge")
    await claim(database, worker, "shop.charge")
    run = await app.start("shop.charge")
    found = await causes(run)
    assert found.keys() == {Why.RATE_SPENT}
    info = await run.info()
    left = found[Why.RATE_SPENT].facts["until"] - info.created_at
    assert timedelta(minutes=59) < left <= timedelta(minutes=61)
    assert not await is_claimed(database, worker, run)
    await Clock(dsn).skip(left)
    assert (await causes(run)).keys() == {Why.NEXT}
    assert await is_claimed(database, worker, run)


async def test_it_waits_in_line(app: App, hire: Hire) -> None:
    await hire("shop.charge")
    ahead = [await app.start("shop.charge") for _ in range(3)]
    run = await app.definition("shop.charge").options(priority=60).start()
    assert (await causes(run))[Why.IN_LINE].facts == {"ahead": 3, "more": False}
    assert (await causes(ahead[0])).keys() == {Why.NEXT}


async def test_a_line_is_counted_no_further_than_is_worth_it(
    app: App, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.explain.explanation.MOST", 5)
    await hire("shop.charge")
    for _ in range(7):
        await app.start("shop.charge")
    run = await app.start("shop.charge")
    cause = (await causes(run))[Why.IN_LINE]
    assert cause.facts == {"ahead": 5, "more": True}
    assert "more than 5 ahead" in cause.text


async def test_the_line_of_a_key_is_counted_by_itself(app: App, hire: Hire) -> None:
    @app.task(name="shop.charge", limit_by=lambda tenant: tenant, per_key=5)
    async def charge(tenant: str) -> None: ...

    await hire("shop.charge")
    for tenant in ("acme", "acme", "else", "else", "else"):
        await charge.start(tenant)
    cause = (await causes(await charge.start("acme")))[Why.IN_LINE]
    assert cause.facts["ahead"] == 2
    assert "of the key 'acme'" in cause.text


async def test_every_slot_is_taken(app: App, hire: Hire, database: Database) -> None:
    worker = await hire("shop.charge", slots=1)
    await app.start("shop.charge")
    await claim(database, worker, "shop.charge", limited=False)
    assert (await causes(await app.start("shop.charge"))).keys() == {Why.SLOTS_FULL}


async def test_it_must_be_alone_and_another_such_run_runs(app: App, hire: Hire, database: Database) -> None:
    worker = await hire("shop.charge")
    first, run = await app.start("shop.charge"), await app.start("shop.charge")
    connection = await database.connect()
    await connection.execute("update stepwell.runs set alone = true, attempt = 1, failures = 1")
    await connection.close()
    await claim(database, worker, "shop.charge", limited=False)
    found = await causes(run)
    assert found.keys() == {Why.MUST_BE_ALONE}
    assert found[Why.MUST_BE_ALONE].facts["runs"] == [first.id]
    assert not await is_claimed(database, worker, run)


async def test_a_delayed_start_is_not_due_and_expires(app: App, hire: Hire) -> None:
    await hire("shop.charge")
    run = await app.definition("shop.charge").options(delay="1h", expires="2h", deadline="3h").start()
    found = await causes(run)
    info = await run.info()
    assert found.keys() == {Why.NOT_DUE, Why.EXPIRES, Why.DEADLINE}
    assert found[Why.NOT_DUE].facts["due_at"] == info.due_at
    assert found[Why.NOT_DUE].facts["kind"] == "delayed"
    assert (await run.explain()).deadline_at == found[Why.DEADLINE].facts["deadline_at"]


async def test_a_retry_says_which_one_it_is_and_why(app: App) -> None:
    @app.task(retry=Retry(attempts=5, backoff="fixed", delay=3600))
    async def boil() -> None:
        raise ValueError("no water")

    run = await boil.start()
    async with app.worker():
        await until(lambda: _is(run, "scheduled"))
        cause = (await causes(run))[Why.NOT_DUE]
    assert cause.facts["kind"] == "retry"
    assert "its 1st retry, after ValueError: no water" in cause.text


async def test_a_snoozed_run(app: App) -> None:
    @app.task
    async def nap() -> None:
        raise Snooze("1h")

    run = await nap.start()
    async with app.worker():
        await until(lambda: _is(run, "scheduled"))
        assert (await causes(run))[Why.NOT_DUE].facts["kind"] == "snoozed"


async def test_a_debounced_start(app: App, hire: Hire) -> None:
    await hire("shop.charge")
    run = await app.definition("shop.charge").options(unique="cart", debounce="1h").start()
    assert (await causes(run))[Why.NOT_DUE].facts["kind"] == "debounced"


async def test_a_run_that_is_due_when_nobody_moves_it(app: App, hire: Hire, dsn: str) -> None:
    run = await app.definition("shop.charge").options(delay="1m").start()
    await Clock(dsn).skip("2m")
    await hire("shop.charge")
    cause = (await causes(run))[Why.OVERDUE]
    assert "start `stepwell worker`" in cause.text


async def test_a_running_run_and_then_a_finished_one(app: App) -> None:
    go = asyncio.Event()

    @app.task
    async def wait() -> None:
        await go.wait()

    run = await wait.start()
    async with app.worker(name="web1"):
        await until(lambda: _is(run, "running"))
        found = await causes(run)
        assert found.keys() == {Why.RUNNING}
        assert found[Why.RUNNING].facts["name"] == "web1"
        assert found[Why.RUNNING].facts["attempt"] == 1
        go.set()
        await run.result(10)
    assert (await causes(run)).keys() == {Why.FINISHED}


async def test_a_running_run_says_how_far_it_is(app: App) -> None:
    go = asyncio.Event()

    @app.task
    async def count() -> None:
        current.progress("rows", done=10, total=100)
        await go.wait()

    run = await count.start()
    async with app.worker():
        await until(run.progress)
        cause = (await causes(run))[Why.RUNNING]
        go.set()
    assert "rows 10 of 100" in cause.text
    assert cause.facts["progress"].done == 10


async def test_a_failed_run_says_its_error(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def boil() -> None:
        raise ValueError("no water")

    run = await boil.start()
    async with app.worker():
        await until(lambda: _is(run, "failed"))
    assert "at attempt 1: ValueError: no water" in (await causes(run))[Why.FINISHED].text


async def test_a_run_of_a_worker_whose_lease_ended(app: App, hire: Hire, database: Database, dsn: str) -> None:
    worker = await hire("shop.charge")
    run = await app.start("shop.charge")
    await claim(database, worker, "shop.charge", limited=False)
    assert (await causes(run)).keys() == {Why.RUNNING}
    await Clock(dsn).skip("2m", workers_live_on=False)
    cause = (await causes(run))[Why.LEASE_EXPIRED]
    assert "is lost: its lease ended" in cause.text
    assert "start `stepwell worker`" in cause.text
    with hearing(app, "worker.ready") as ready:
        async with app.worker():
            await ready.wait()
            await until(lambda: _is(run, "pending"))


async def test_blocking_code_can_ask_too(app: App) -> None:
    run = await app.start("shop.charge")
    told = await asyncio.to_thread(run.sync.explain)
    await asyncio.to_thread(app.portal.close)
    assert told.causes[0].code is Why.QUEUE_NOT_SERVED


# -- the statements

MATCHING: dict[str, Any] = {
    "after": new_run_id(), "states": ["failed"], "name": None, "queue": "mail", "kind": None, "tags": None,
    "since": None, "limit": 5000,
}  # fmt: skip
STATEMENTS: dict[str, dict[str, Any]] = {
    "run_facts": {"id": new_run_id()},
    "last_attempt": {"id": new_run_id()},
    "queue_facts": {"queue": "mail", "limit_key": "acme", "most": 10_000},
    "slot_holders": {"queue": "mail", "limit_key": "acme", "limit": 20},
    "runs_ahead": {"queue": "mail", "priority": 50, "id": new_run_id(), "most": 10_001},
    "runs_ahead_of_key": {
        "queue": "mail", "limit_key": "acme", "priority": 50, "id": new_run_id(), "most": 10_001,
    },
    "lone_runs": {"limit": 1000},
    "workers_seen": {"ids": None, "gone": timedelta(days=1), "limit": 1000},
    "samples_of": {"ids": [new_run_id()], "since": timedelta(minutes=1), "each": 12},
    "forget_samples": {"keep": timedelta(days=3), "limit": 1000},
    "longest_running": {"limit": 10},
    "starts_lately": {"since": timedelta(seconds=10), "most": 1000},
    "finishes_so_far": {},
    "lost_holders": {},
    "late_runs": {"late": timedelta(minutes=1), "most": 1000},
    "matching_live_runs": {**MATCHING},
    "matching_finished_runs": {**MATCHING, "error": "ValueError"},
    "start_runs_again": {"ids": [new_run_id()], "origins": [new_run_id()]},
}  # fmt: skip


@pytest.mark.parametrize("name", STATEMENTS)
async def test_no_statement_reads_a_whole_table(tx: Any, name: str) -> None:
    statement = tx._statements[name]
    plan = await tx.connection.fetch(f"explain (costs off) {statement.sql}", *statement.bind(STATEMENTS[name]))
    scans = [row[0].strip() for row in plan if "Seq Scan" in row[0] and "Seq Scan on workers" not in row[0]]
    scans += [row[0].strip() for row in plan if row[0].strip(" ->") == "Sort" and name.startswith("matching")]
    assert scans == [], "of workers there are few: one row for each of a month"


async def test_all_of_it_is_asked_in_one_transaction(database: Database, app: App) -> None:
    run = await app.start("shop.charge")
    async with database.transaction() as tx:
        told = await explanation(tx, run.id)
    assert told.state == "pending"


async def _is(run: Any, state: str) -> bool:
    return bool((await run.info()).state == state)
