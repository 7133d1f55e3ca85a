"""Finished runs leave when their time is past, by whole days, and nobody waits for that."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import App, InvalidSetting, NotFound, Run
from stepwell.engine import retention, runs
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


async def test_attempts_stay_as_long_as_their_run(app: App, database: Database, dsn: str) -> None:
    live = a_start()
    await runs.start(database, [live])
    before = await days(database, "attempts")
    await Clock(dsn).skip("31d")
    await Partitions(database, keep=MONTH).run_once()
    assert min(before) in await days(database, "attempts"), "a run of that day is still live"
    await runs.cancel(database, [live.id])
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
        async with asyncio.timeout(5):
            assert await retention.drop_old_days(database, MONTH) == []
            claim = await claimed(database)  # type: ignore[arg-type]
            await runs.cancel(database, [claim.id])
    await reader.close()
    assert await exists(run)
    assert await retention.drop_old_days(database, MONTH) != []
    assert not await exists(run)


def test_the_setting_is_checked_and_none_disables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert App("postgresql://h/d").settings.keep == MONTH
    assert App("postgresql://h/d", keep=None).settings.keep is None
    assert App("postgresql://h/d", keep="90d").settings.keep == timedelta(days=90)
    monkeypatch.setenv("STEPWELL_KEEP", "7d")
    assert App("postgresql://h/d").settings.keep == timedelta(days=7)
    monkeypatch.setenv("STEPWELL_KEEP", "forever")
    assert App("postgresql://h/d").settings.keep is None
    with pytest.raises(InvalidSetting, match="keep"):
        App("postgresql://h/d", keep="1h")
