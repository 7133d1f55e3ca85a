"""`app.operator.bulk`: count what a filter finds, then do it to many runs in chunks."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from stepwell import App, Filter, InvalidSetting, State
from stepwell.operator.filters import filter_of
from tests.operator.answers import as_json

MAIL = Filter(queue="mail")


async def start(app: App, count: int, queue: str = "mail") -> list[UUID]:
    definition = app.definition("tests.task").options(queue=queue)
    return [run.id for run in await definition.start_many([(n,) for n in range(count)])]


async def states(app: App, **which: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for info in (await app.runs(limit=1000, **which)).items:
        found[info.state.value] = found.get(info.state.value, 0) + 1
    return found


async def test_a_dry_run_counts_shows_a_few_and_changes_nothing(app: App) -> None:
    ids = await start(app, 8)
    counted = await app.operator.bulk.count(MAIL, "cancel")
    assert (counted.count, counted.more, [info.id for info in counted.sample]) == (8, False, ids[:5])
    assert await states(app) == {"pending": 8}
    assert as_json(counted)["upto"] == counted.upto


async def test_a_count_is_bounded(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.operator.bulk.PAGE", 2)
    await start(app, 8)
    pages, matching = [], app.operator.bulk._many.matching

    async def counting(*arguments: Any, **options: Any) -> list[UUID]:
        pages.append(options["after"])
        return await matching(*arguments, **options)

    monkeypatch.setattr(app.operator.bulk._many, "matching", counting)
    counted = await app.operator.bulk.count(MAIL, "cancel", most=3)
    assert (counted.count, counted.more, len(pages)) == (3, True, 2)
    done = [progress.done async for progress in app.operator.bulk.cancel(MAIL, upto=counted.upto)]
    assert done[-1] == 8


async def test_a_run_that_is_started_after_the_count_is_not_touched(app: App) -> None:
    await start(app, 3)
    counted = await app.operator.bulk.count(MAIL, "cancel")
    await start(app, 2)
    async for progress in app.operator.bulk.cancel(MAIL, upto=counted.upto):
        last = progress
    assert (last.matched, last.done) == (3, 3)
    assert await states(app) == {"cancelled": 3, "pending": 2}


async def test_many_runs_are_cancelled_in_chunks_and_each_tells_how_far_it_is(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.operator.bulk.CHUNK", 20)
    monkeypatch.setattr("stepwell.operator.bulk.PAGE", 30)
    await start(app, 70)
    await start(app, 2, queue="other")
    done = [progress async for progress in app.operator.bulk.cancel(MAIL)]
    assert [each.done for each in done] == [20, 30, 50, 60, 70]
    assert as_json(done[-1]) == {"matched": 70, "done": 70, "asked": 0}
    assert await states(app) == {"cancelled": 70, "pending": 2}


async def test_what_a_bulk_retry_starts_is_not_started_once_more(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.operator.bulk.CHUNK", 2)
    monkeypatch.setattr("stepwell.operator.bulk.PAGE", 3)
    bulk = app.operator.bulk
    await finish(app, await start(app, 5))
    done = []
    async for progress in bulk.retry(Filter(states=[State.CANCELLED])):
        done.append(progress.done)
        assert len(done) < 10, "it goes on for ever"
        # What it has started is finished at once, and then matches the filter, too.
        await finish(app, [info.id for info in (await app.runs(state="pending")).items])
    assert done[-1] == 5
    assert await states(app) == {"cancelled": 10}


async def finish(app: App, ids: list[UUID]) -> None:
    async for _ in app.operator.bulk.cancel(ids):
        pass


async def test_without_a_state_only_failed_runs_are_retried(app: App) -> None:
    ids = await start(app, 2)
    await finish(app, ids)
    assert (await app.operator.bulk.count(MAIL, "retry")).count == 0
    assert await app.operator.bulk.matching(filter_of(queue="mail", state="cancelled"), "retry") == ids


async def test_a_workflow_that_was_only_asked_is_counted_apart(app: App, checkout: Any, until_it_waits: Any) -> None:
    async with app.worker():
        run = await checkout.start(1)
        await until_it_waits(run, "pay")
    (asked,) = [progress async for progress in app.operator.bulk.cancel([run.id])]
    assert (asked.matched, asked.done, asked.asked) == (1, 0, 1)
    (ended,) = [progress async for progress in app.operator.bulk.cancel([run.id], force=True)]
    assert (ended.done, ended.asked) == (1, 0)


@pytest.mark.parametrize(
    ("action", "which"),
    [
        ("cancel", Filter(states=[State.COMPLETED])),
        ("retry", Filter(states=[State.PENDING])),
        ("cancel", Filter(error="ValueError")),
        ("cancel", Filter(blocked=True)),
        ("retry", Filter(blocked=True)),
    ],
)
async def test_a_filter_that_means_nothing_to_an_action_is_refused_and_not_ignored(
    app: App, action: Any, which: Filter
) -> None:
    await start(app, 2)
    bulk = app.operator.bulk
    with pytest.raises(InvalidSetting):
        await bulk.count(which, action)
    with pytest.raises(InvalidSetting):
        await bulk.matching(which, action)
    with pytest.raises(InvalidSetting):
        async for _ in bulk.cancel(which) if action == "cancel" else bulk.retry(which):
            pass
    assert await states(app) == {"pending": 2}


async def test_a_mark_that_no_count_gave_is_refused(app: App) -> None:
    await start(app, 1)
    with pytest.raises(InvalidSetting, match=r"bulk\.count"):
        async for _ in app.operator.bulk.cancel(MAIL, upto="yesterday"):
            pass
    assert await states(app) == {"pending": 1}
