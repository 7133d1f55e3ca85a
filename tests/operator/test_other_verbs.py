"""Queues, workers, statistics, the doctor, preflight and the facts of the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stepwell import App, InvalidSetting, State, workflow
from stepwell.operator.maintenance import Maintenance
from stepwell.operator.statistics import Finishes, FinishRate
from stepwell.store import migrate
from stepwell.store.pool import Database
from tests.operator.answers import as_json
from tests.waiting_for import hearing


async def test_a_queue_is_limited_paused_and_resumed_and_each_answer_shows_it(app: App) -> None:
    queues = app.operator.queues
    limited = await queues.set("mail", concurrency=3, rate="10/s")
    assert (limited.limits.concurrency, str(limited.limits.rate)) == (3, "10/s")
    assert (await queues.set("mail", rate=None)).limits.concurrency == 3
    paused = await queues.pause("mail", by="ann")
    assert (paused.paused_by, paused.paused_at is not None) == ("ann", True)
    assert (await queues.resume("mail")).paused_at is None
    assert [each.name for each in await queues.list()] == ["mail"]
    assert (await queues.one("never used")).pending == 0
    assert as_json(limited)["limits"]["concurrency"] == 3
    with pytest.raises(InvalidSetting, match="concurrency"):
        await queues.set("mail", concurrency=0)


async def test_workers_are_listed_live_ones_first(app: App) -> None:
    with hearing(app, "worker.ready") as ready:
        async with app.worker(name="gone", slots=2):
            await ready.wait()
    with hearing(app, "worker.ready") as ready:
        async with app.worker(name="there", slots=3):
            await ready.wait()
            found = await app.operator.workers.list()
            (live,) = await app.operator.workers.list(live=True)
    assert [(each.name, each.state) for each in found] == [("there", "live"), ("gone", "stopped")]
    assert [each.name for each in await app.operator.workers.list([live.id])] == ["there"]
    assert as_json(live)["slots"] == 3


async def test_the_overview_has_queues_workers_rates_and_the_longest_running(app: App) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task(name="tests.hangs")
    async def hangs() -> None:
        began.set()
        await go_on.wait()

    async with app.worker(name="there"):
        run = await hangs.start()
        await began.wait()
        overview = await app.operator.statistics.overview()
        assert [(each.id, each.worker) for each in overview.running] == [(run.id, "there")]
        assert (len(overview.workers), [each.running for each in overview.queues]) == (1, [1])
        assert overview.starts_per_second == 0.1
        (move,) = await app.operator.statistics.moving(2)
        assert (move.id, move.state) == (run.id, "running")
        assert await app.operator.statistics.counts() == {State.RUNNING: 1}
        go_on.set()
        await run.result(timeout=10)
    assert await app.operator.statistics.counts() == {State.COMPLETED: 1}
    as_json([overview, move, await app.operator.statistics.counts()])


def test_the_rate_of_finishes_is_that_of_the_last_seconds() -> None:
    rate = FinishRate()
    assert rate.after(Finishes(100.0, 50)) is None
    assert rate.after(Finishes(102.0, 70)) == 10
    assert rate.after(Finishes(112.0, 90)) == 2
    assert rate.after(Finishes(113.0, 0)) == 0  # a day was dropped


async def test_the_doctor_tells_each_finding_for_people_and_for_programs(app: App) -> None:
    await app.start("tests.task", 1)
    findings = {each.subject: each for each in await app.operator.doctor()}
    assert (findings["workers"].verdict, findings["workers"].details) == ("bad", {"workers": 0, "slots": 0})
    assert findings["schema"].details["version"] == migrate.latest("stepwell")
    assert findings["runs"].details["pending"] == 1
    assert as_json(list(findings.values()))[0]["subject"] == "connection"


async def test_the_facts_of_a_database_name_no_password(app: App) -> None:
    facts = await app.operator.database()
    assert (facts.schema, facts.schema_version, facts.latest) == ("stepwell",) + (migrate.latest("stepwell"),) * 2
    assert facts.size > 1_000_000
    assert facts.version[:2].isdigit()
    assert "@" not in facts.place
    as_json(facts)


async def test_a_database_without_a_schema_is_looked_at_and_migrated(app: App, database: Database) -> None:
    assert (await app.operator.schema()).is_current
    empty = Database(database.dsn, "other")
    await empty.open()
    try:
        maintenance = Maintenance(empty, app.settings)
        before = await maintenance.schema()
        assert (before.version, before.is_current, len(before.missing)) == (0, False, before.latest)
        assert (await maintenance.facts()).schema_version == 0
        assert await maintenance.migrate() == before.missing
        assert await maintenance.migrate() == []
        assert (await maintenance.schema()).is_current
    finally:
        await empty.close()
    as_json(before)


# -- preflight


@pytest.fixture
async def changed(dsn: str) -> AsyncIterator[App]:
    """Code of the next version, which does not fit."""
    app = App(dsn)

    @app.workflow(name="tests.checkout")
    async def checkout(n: int) -> int:
        return n + await workflow.signal("pay", int)

    async with app:
        yield app


async def test_a_preflight_lists_the_runs_that_new_code_does_not_fit(
    app: App, changed: App, checkout: Any, until_it_waits: Any
) -> None:
    async with app.worker():
        run = await checkout.start(1)
        await until_it_waits(run, "pay")
    heard: list[tuple[int, int]] = []
    fits = await app.operator.preflight(hear=lambda looked, total: heard.append((looked, total)))
    assert (fits.checked, fits.broken, heard) == (1, [], [(0, 1), (1, 1)])
    found = await app.operator.preflight(changed.definitions)
    assert [(each.id, each.name) for each in found.broken] == [(run.id, "tests.checkout")]
    assert found == await changed.operator.preflight()
    assert (await app.operator.preflight(App().definitions)).unknown == {"tests.checkout": 1}
    assert as_json(found)["broken"][0]["id"] == str(run.id)
