"""Finished runs leave when their time is past, by whole days, and nobody waits for that."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from stepwell import App, InvalidSetting, NotFound, Retry, Run, current
from stepwell.engine import ends, retention, runs
from stepwell.services.partitions import Partitions
from stepwell.store.pool import Database
from stepwell.testing import Clock
from tests.factory import a_start, claimed

MONTH = timedelta(days=30)


async def finished(app: App, count: int = 1, **options: Any) -> list[Run[Any]]:
    """Runs that finished just now."""
    started = await app.definition("t").options(**options).start_many([(n,) for n in range(count)])
    for run in started:
        await run.cancel()
    return started


async def exists(run: Run[Any]) -> bool:
    try:
        await run.info()
    except NotFound:
        return False
    return True


async def days(database: Database, parent: str = "finished_runs") -> set[str]:
    connection = await database.connect()
    rows = await connection.fetch("select relname from pg_class where relname ~ $1", f"^{parent}_\\d{{8}}$")
    await connection.close()
    return {row["relname"] for row in rows}


async def test_a_day_goes_when_its_time_is_past_and_not_before(app: App, database: Database, dsn: str) -> None:
    (run,) = await finished(app)
    before = await days(database)
    await Clock(dsn).skip("29d")
    await Partitions(database, keep=MONTH).run_once()
    assert await exists(run)
    await Clock(dsn).skip("2d")
    await Partitions(database, keep=MONTH).run_once()
    assert not await exists(run)
    assert min(before) not in await days(database)


async def test_without_a_time_nothing_goes(app: App, database: Database, dsn: str) -> None:
    (run,) = await finished(app)
    await Clock(dsn).skip("900d")
    await Partitions(database, keep=None).run_once()
    assert await exists(run)


async def test_what_is_kept_for_ever_is_there_when_its_day_is_gone(app: App, database: Database, dsn: str) -> None:
    (kept,), (usual,) = await finished(app, keep="forever"), await finished(app)
    await app.queue("archive").set(keep="forever")
    (archived,) = await finished(app, queue="archive")
    await Clock(dsn).skip("31d")
    await Partitions(database, keep=MONTH).run_once()
    assert [await exists(each) for each in (kept, archived, usual)] == [True, True, False]
    assert (await kept.info()).state == "cancelled"
    assert kept.id in {info.id for info in (await app.runs()).items}
    again = await kept.retry()
    assert (await again.info()).retry_of == kept.id


async def test_what_is_not_kept_is_gone_after_an_hour(app: App, database: Database, dsn: str) -> None:
    (brief,), (usual,) = await finished(app, keep="none"), await finished(app)
    await app.queue("noise").set(keep="none")
    (noise,) = await finished(app, queue="noise")
    (special,) = await finished(app, queue="noise", keep="forever")
    await Partitions(database, keep=MONTH).run_once()
    assert [await exists(each) for each in (brief, noise)] == [True, True], "who waits has an hour"
    await Clock(dsn).skip("61m")
    await Partitions(database, keep=MONTH).run_once()
    assert [await exists(each) for each in (brief, noise, special, usual)] == [False, False, True, True]


async def test_a_stray_of_a_day_without_partition_goes_too(app: App, database: Database, dsn: str) -> None:
    await Clock(dsn).skip("20d")  # no partition stands there yet
    (run,), (kept,) = await finished(app), await finished(app, keep="forever")
    await Clock(dsn).skip("31d")
    await Partitions(database, keep=MONTH).run_once()
    assert (await exists(run), await exists(kept)) == (False, True)


async def test_what_is_told_of_a_run_that_is_kept_for_ever_is_kept_with_it(
    app: App, database: Database, dsn: str
) -> None:
    @app.task(retry=Retry(attempts=2, delay=0), keep="forever")
    async def work() -> None:
        logging.getLogger("work").warning("attempt %d", current.attempt)
        current.progress("step", done=1)
        if current.attempt == 1:
            raise ValueError("once")

    async with app.worker():
        run = await work.start()
        await run.result(10)
    for _ in range(3):
        await Clock(dsn).skip("31d")
        await Partitions(database, keep=MONTH).run_once()
        await Partitions(database, keep=MONTH).run_once()
    assert [each.outcome for each in await run.attempts()] == ["failed", "completed"]
    assert [line.message for line in await run.logs()] == ["attempt 1", "attempt 2"]
    assert [each.step for each in await run.progress()] == ["step"]


async def test_attempts_stay_as_long_as_their_run(app: App, database: Database, dsn: str) -> None:
    live = a_start()
    await runs.start(database, [live])
    before = await days(database, "attempts")
    await Clock(dsn).skip("31d")
    await Partitions(database, keep=MONTH).run_once()
    assert min(before) in await days(database, "attempts"), "a run of that day is still live"
    await ends.cancel(database, [live.id])
    await Partitions(database, keep=MONTH).run_once()
    assert min(before) in await days(database, "attempts"), "and now it is finished, and kept"
    await Clock(dsn).skip("31d")
    await Partitions(database, keep=MONTH).run_once()  # its finished day goes …
    await Partitions(database, keep=MONTH).run_once()  # … and then the day it was started on
    assert min(before) not in await days(database, "attempts")


async def test_a_day_that_is_in_use_is_left_for_later_and_nobody_waits_for_it(
    app: App, database: Database, dsn: str
) -> None:
    (run,) = await finished(app)
    await Clock(dsn).skip("31d")
    reader = await database.connect()
    async with reader.transaction():
        await reader.fetch("select count(*) from stepwell.finished_runs")
        async with asyncio.timeout(30):
            assert await retention.drop_old_days(database, MONTH) == []
            claim = await claimed(database)  # type: ignore[arg-type]
            await ends.cancel(database, [claim.id])
    await reader.close()
    assert await exists(run)
    assert await retention.drop_old_days(database, MONTH) != []
    assert not await exists(run)


async def test_of_days_that_are_in_use_only_one_is_tried(app: App, database: Database, dsn: str) -> None:
    """Who reads them reads all: each try would hold up everybody who writes for as long as it waits."""
    await Clock(dsn).skip("33d")
    assert len(await retention.drop_old_days(_Counting(database), MONTH)) > 1  # type: ignore[arg-type]
    await retention.make_partitions(database)
    await Clock(dsn).skip("38d")
    reader, counting = await database.connect(), _Counting(database)
    async with reader.transaction():
        await reader.fetch("select count(*) from stepwell.finished_runs")
        await retention.drop_old_days(counting, MONTH)  # type: ignore[arg-type]
    await reader.close()
    assert counting.parents.count("finished_runs") == 1


class _Counting:
    """Notes of which table days were tried to be dropped."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.parents: list[str] = []

    async def rows(self, name: str, **values: Any) -> Any:
        if name == "drop_partition":
            self.parents.append(values["parent"])
        return await self._database.rows(name, **values)


async def test_a_day_takes_no_run_along_that_is_kept_for_ever_and_comes_into_it_at_the_last_moment(
    database: Database,
) -> None:
    """Its transaction began on that day, and commits while the day is being dropped."""
    late, dropping = await database.connect(), await database.connect()
    part = await dropping.fetchval(
        "select to_char(current_date - 40, '\"finished_runs_\"YYYYMMDD') "
        "from stepwell.make_partition('finished_runs', current_date - 40)"
    )
    for number in range(1, 6):
        await dropping.execute("select stepwell.make_partition('finished_runs', current_date - 40)")
        transaction = late.transaction()
        await transaction.start()
        await late.execute(LATE)
        drop = asyncio.create_task(dropping.fetchval("select stepwell.drop_partition('finished_runs', $1)", part))
        await asyncio.sleep(0.02)
        await transaction.commit()
        await drop
        found = "select (select count(*) from stepwell.kept_runs) + (select count(*) from stepwell.finished_runs)"
        assert await dropping.fetchval(found) == number
    await late.close()
    await dropping.close()


LATE = """
insert into stepwell.finished_runs (
    id, kind, name, queue, priority, state, input, result, retry, attempt, failures, created_at, finished_at, keep
)
select stepwell.new_run_id(), 'task', 'n', 'q', 50, 'completed', '{}', '1', '{}', 0, 0, at, at, 'forever'
  from (select now() - interval '40 days') a (at)
"""


async def test_what_is_kept_for_ever_still_tells_its_limit_key(app: App, database: Database, dsn: str) -> None:
    (run,) = await finished(app, limit_by=lambda n: f"key-{n}", keep="forever")
    await Clock(dsn).skip("32d")
    await Partitions(database, keep=MONTH).run_once()
    assert await database.rows("results", ids=[run.id])
    assert (await run.explain()).limit_key == "key-0"


def test_the_setting_is_checked_and_none_disables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert App("postgresql://h/d").settings.keep == MONTH
    assert App("postgresql://h/d", keep=None).settings.keep is None
    assert App("postgresql://h/d", keep="90d").settings.keep == timedelta(days=90)
    monkeypatch.setenv("STEPWELL_KEEP", "7d")
    assert App("postgresql://h/d").settings.keep == timedelta(days=7)
    assert App("postgresql://h/d", keep="30d").settings.keep == MONTH, "what the call says goes before"
    monkeypatch.setenv("STEPWELL_KEEP", "forever")
    assert App("postgresql://h/d").settings.keep is None
    with pytest.raises(InvalidSetting, match="keep"):
        App("postgresql://h/d", keep="1h")


def test_an_empty_setting_in_the_environment_means_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KEEP", "LEASE", "SCHEMA", "DSN", "HOME", "POOLER"):
        monkeypatch.delenv(f"STEPWELL_{name}", raising=False)
    unset = App().settings
    for name in ("KEEP", "LEASE", "SCHEMA", "DSN", "HOME", "POOLER"):
        monkeypatch.setenv(f"STEPWELL_{name}", "")
    assert App().settings == unset
