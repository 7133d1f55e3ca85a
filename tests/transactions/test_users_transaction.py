"""A start in a transaction of the user's is there if and only if it commits, whoever the driver is."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import asyncpg
import pytest

from stepwell import App, Call, KeyConflict, NotFound, Retry, State, Task, Unavailable
from tests.transactions.drivers import Driver
from tests.waiting_for import all_ears, hearing

Sql: TypeAlias = "asyncpg.Connection[Any]"
Echo: TypeAlias = "Task[[Any], Any]"

HOSTILE = [
    "it's \"so\" \\ here", "%s %(p1)s %%", ":p1 ::text \\:x", "$1 $$", "{NULL,\"a\"}", "NULL", "", "\n\t",
    "Ærø 日本 🪜",
    {"nested": [1, 2.5, None, True, {"a": "b\\\"c"}]},
]  # fmt: skip


async def count(sql: Sql) -> int:
    found: int = await sql.fetchval("select count(*) from stepwell.all_runs")
    return found


@pytest.mark.usefixtures("only_by_word")
async def test_it_is_seen_and_done_once_the_transaction_has_committed(
    app: App, driver: Driver, echo: Echo, sql: Sql
) -> None:
    with hearing(app, "worker.ready") as ready:
        async with app.worker():
            await ready.wait()
            await all_ears(app, echo)
            await driver.begin()
            run = await driver.start(echo, "a")
            assert await count(sql) == 1
            with pytest.raises(NotFound):
                await run.info()
            await driver.commit()
            assert await run.result(timeout=30) == "a"


async def test_it_never_was_if_the_transaction_is_rolled_back(app: App, driver: Driver, echo: Echo, sql: Sql) -> None:
    await driver.begin()
    run = await driver.start(echo, "a", key="k")
    runs = await driver.start_many(echo, [("b",), Call(("c",), options={"key": "m"})])
    await driver.roll_back()
    assert await count(sql) == 0
    assert await sql.fetchval("select count(*) from stepwell.keys") == 0
    for each in (run, *runs):
        with pytest.raises(NotFound):
            await each.result(timeout=30)


async def test_the_users_own_writes_and_the_run_stand_or_fall_together(driver: Driver, echo: Echo, sql: Sql) -> None:
    await sql.execute("create table orders (n int)")
    for ends, there in ((driver.roll_back, 0), (driver.commit, 1)):
        await driver.begin()
        await driver.execute("insert into orders values (1)")
        await driver.start(echo, "order")
        await ends()
        assert (await sql.fetchval("select count(*) from orders"), await count(sql)) == (there, there)


async def test_many_are_started_by_one_commit_and_all_are_done(app: App, driver: Driver, echo: Echo) -> None:
    calls = [*((text,) for text in HOSTILE), Call((7,), options={"key": "seven", "queue": "other", "priority": 1})]
    async with app.worker():
        await driver.begin()
        runs = await driver.start_many(echo, calls)
        await driver.commit()
        assert [await run.result(timeout=10) for run in runs] == [*HOSTILE, 7]
        assert (await app.run("seven").info()).queue == "other"


async def test_nothing_is_lost_between_us_the_driver_and_the_server(app: App, driver: Driver, echo: Echo) -> None:
    await driver.begin()
    runs = [await driver.start(echo, text, tags={"t": text}) for text in HOSTILE]
    runs.append(await driver.start(echo, HOSTILE, key='it\'s \\ "k" %s :p1 {}'))
    await driver.commit()
    infos = [await run.info() for run in runs]
    assert [info.input["what"] for info in infos] == [*HOSTILE, HOSTILE]
    assert [info.tags["t"] for info in infos[:-1]] == HOSTILE
    assert infos[-1].key == 'it\'s \\ "k" %s :p1 {}'


SOME = pytest.mark.parametrize("driver", ["asyncpg", "psycopg2", "SQLAlchemy, async"], indirect=True)
"""Where all that matters of the driver is tested elsewhere."""
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "delay": {"delay": "90m"},
    "at": {"at": datetime(2041, 5, 1, 12, 30, 0, 250_000, tzinfo=UTC)},
    "expires": {"expires": timedelta(days=2, seconds=3, microseconds=4)},
    "deadline": {"deadline": 60, "timeout": 7.5},
    "place": {"queue": "vip's", "priority": 3, "tags": {"tenant": "acme"}},
    "retry": {"retry": Retry(attempts=7, backoff=[1, 2.5], never=("ValueError",))},
    "unique": {"unique": "only"},
    "debounce": {"unique": "quiet", "debounce": "5m"},
}
COLUMNS = """select name, queue, priority, state, input, tags, retry, timeout, due_at - created_at as due,
    expires_at - created_at as expires, deadline_at - created_at as deadline, unique_key, debounce_key, limit_key
    from stepwell.runs where id = $1"""


async def test_every_option_means_the_same_in_it(driver: Driver, echo: Echo, sql: Sql) -> None:
    for title, given in OPTIONS.items():
        outside = await echo.options(**given).start("x")
        theirs = dict(await sql.fetchrow(COLUMNS, outside.id) or {})
        await outside.cancel()
        await driver.begin()
        inside = await driver.start(echo, "x", **given)
        await driver.commit()
        ours = dict(await sql.fetchrow(COLUMNS, inside.id) or {})
        if title == "at":
            assert abs(theirs.pop("due") - ours.pop("due")) < timedelta(seconds=10)
        assert (title, ours) == (title, theirs)


@SOME
async def test_a_limit_key_comes_along(app: App, driver: Driver, sql: Sql) -> None:
    @app.task(limit_by=lambda tenant: tenant, per_key=2)
    async def limited(tenant: str) -> None: ...

    await driver.begin()
    run = await driver.start(limited, "acme")
    await driver.commit()
    row = await sql.fetchrow("select limit_key, per_key from stepwell.runs where id = $1", run.id)
    assert tuple(row or ()) == ("acme", 2)


async def test_a_key_leads_to_its_run_or_is_refused_and_the_transaction_goes_on(
    driver: Driver, echo: Echo, sql: Sql
) -> None:
    before = await echo.options(key="k").start("a")
    await driver.begin()
    assert await driver.start(echo, "a", key="k") == before
    with pytest.raises(KeyConflict) as refused:
        await driver.start(echo, "b", key="k")
    assert refused.value.run_id == before.id
    other = await driver.start(echo, "b", key="k2")
    assert await driver.start(echo, "b", key="k2") == other
    await driver.commit()
    assert await count(sql) == 2


async def test_of_many_with_a_refused_key_none_is_started_even_if_it_commits(
    driver: Driver, echo: Echo, sql: Sql
) -> None:
    await echo.options(key="taken").start("a")
    await driver.begin()
    calls = [("x",), Call(("y",), options={"key": "free"}), Call(("b",), options={"key": "taken"})]
    with pytest.raises(KeyConflict):
        await driver.start_many(echo, calls)
    with pytest.raises(KeyConflict):
        await driver.start_many(echo, [Call((n,), options={"key": "same"}) for n in (1, 2)])
    await driver.commit()
    assert await count(sql) == 1
    assert [row["key"] for row in await sql.fetch("select key from stepwell.keys")] == ["taken"]


@SOME
async def test_of_many_beside_a_unique_run_that_finishes_at_this_moment_none_is_started(
    driver: Driver, echo: Echo, sql: Sql
) -> None:
    """It was in the way of the insert, and is gone when it is looked up: a trigger does the same each time."""
    await sql.execute("create function pass_over() returns trigger language plpgsql as 'begin return null; end'")
    await sql.execute("create trigger gone before insert on stepwell.runs for each row"
                      " when (new.unique_key is not null) execute function pass_over()")  # fmt: skip
    await driver.begin()
    with pytest.raises(Unavailable, match="finished while this start looked for it"):
        await driver.start_many(echo, [("x",), Call(("y",), options={"unique": "box"})])
    await driver.commit()
    assert await count(sql) == 0


async def test_a_cancel_holds_if_and_only_if_its_transaction_commits(app: App, driver: Driver, echo: Echo) -> None:
    run = await echo.options(key="k").start("a")
    await driver.begin()
    await driver.cancel(run)
    assert (await run.info()).state is State.PENDING
    await driver.roll_back()
    assert (await run.info()).state is State.PENDING
    await driver.begin()
    await driver.cancel(app.run(key="k"))
    await driver.commit()
    assert (await run.info()).state is State.CANCELLED


@SOME
async def test_what_is_started_and_cancelled_in_one_transaction_is_cancelled(
    app: App, driver: Driver, echo: Echo
) -> None:
    await driver.begin()
    run = await driver.start(echo, "a", key="k")
    await driver.cancel(app.run(key="k"))
    await driver.commit()
    assert (await run.info()).state is State.CANCELLED


@SOME
@pytest.mark.usefixtures("only_by_word")
async def test_a_running_body_is_told_of_a_cancel_when_it_commits(app: App, driver: Driver) -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    @app.task
    async def endless() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with app.worker():
        run = await endless.start()
        await began.wait()
        await driver.begin()
        await driver.cancel(run)
        await driver.commit()
        async with asyncio.timeout(30):
            await ended.wait()


async def test_the_wake_is_heard_with_the_commit_and_once(driver: Driver, echo: Echo, sql: Sql) -> None:
    heard: list[tuple[str, str]] = []
    for channel in ("stepwell_pending", "stepwell_scheduled"):
        await sql.add_listener(channel, lambda _c, _pid, name, word: heard.append((name, str(word))))
    await driver.begin()
    for _ in range(3):
        await driver.start(echo, "a", queue="mail")
    await driver.start(echo, "a", delay="1h")
    await sql.fetch("select 1")
    assert heard == []
    await driver.commit()
    async with asyncio.timeout(30):
        while len(heard) < 2:  # noqa: ASYNC110 - the driver's own callback
            await asyncio.sleep(0.01)
    await sql.fetch("select 1")
    assert sorted(heard) == [("stepwell_pending", "mail"), ("stepwell_scheduled", "0")]


@SOME
async def test_what_commits_late_is_not_passed_over_in_a_busy_queue(app: App, driver: Driver, echo: Echo) -> None:
    """Its id is older than those that were claimed meanwhile."""
    done = asyncio.Event()

    async def keep_busy() -> None:
        while not done.is_set():
            await echo.start_many([(n,) for n in range(400)])
            await asyncio.sleep(0.05)

    await driver.begin()
    late = await driver.start(echo, "late")
    async with app.worker():
        load = asyncio.create_task(keep_busy())
        await (await echo.start("after some of them")).result(timeout=10)
        await driver.commit()
        assert await late.result(timeout=15) == "late"
        done.set()
        await load
