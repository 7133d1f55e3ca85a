"""Limits hold for all workers together, at every moment, and cost those who have none nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import App, InvalidSetting, Limits
from stepwell.engine import ends, queues, runs, settle, workers
from stepwell.model.ids import WorkerId, new_claim_id, new_worker_id
from stepwell.model.outcome import Completed, Released
from stepwell.model.rate import Rate
from stepwell.model.run import Claim, Wanted
from stepwell.store.pool import Database, Transaction, Tx
from tests.factory import a_start, a_worker, execute
from tests.waiting_for import until


async def limited(tx: Tx, worker: WorkerId, limit: int = 100, *, alone: bool = True) -> list[Claim]:
    wanted = Wanted(worker, None, ["tests.task"], limit, alone)
    return (await runs.claim_limited(tx, wanted, new_claim_id())).claims


async def allow(tx: Tx, queue: str = "mail", **limits: Any) -> None:
    await queues.set_limits(tx, queue, Limits(**limits), sets=limits)


async def start(tx: Tx, count: int, **how: Any) -> None:
    await runs.start(tx, [a_start(**{"queue": "mail", **how}) for _ in range(count)])


async def complete(tx: Tx, *claims: Claim) -> None:
    await settle.apply(tx, settle.plan([(claim, Completed(b"1")) for claim in claims]))


# -- concurrency


async def test_no_more_than_the_cap_are_claimed_and_a_slot_is_free_when_its_run_has_ended(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await allow(tx, concurrency=3)
    await start(tx, 10)
    held = await limited(tx, worker)
    assert len(held) == 3
    assert await limited(tx, worker) == []
    await complete(tx, held[0])
    assert len(await limited(tx, worker)) == 1


async def test_a_released_a_retried_and_a_cancelled_run_hold_no_slot(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await allow(tx, concurrency=2)
    await start(tx, 4)
    first, second = await limited(tx, worker)
    await settle.apply(tx, settle.plan([(first, Released())]))
    await ends.cancel(tx, [second.id])
    assert len(await limited(tx, worker)) == 2


async def test_the_plain_claim_leaves_limited_queues_alone_and_says_that_there_is_work(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await allow(tx, concurrency=3)
    await start(tx, 5)
    wanted = Wanted(worker, None, ["tests.task"], 100, alone=True)
    claimed = await runs.claim(tx, wanted, new_claim_id())
    assert (claimed.claims, claimed.others) == ([], True)
    await start(tx, 2, queue="free")
    claimed = await runs.claim(tx, wanted, new_claim_id())
    assert ([claim.queue for claim in claimed.claims], claimed.others) == (["free", "free"], True)
    assert len(await limited(tx, worker)) == 3


async def test_where_nothing_is_limited_the_plain_claim_says_so(tx: Transaction) -> None:
    await start(tx, 2)
    wanted = Wanted(await a_worker(tx), None, ["tests.task"], 100, alone=True)
    assert not (await runs.claim(tx, wanted, new_claim_id())).others


async def test_claims_at_the_same_moment_do_not_exceed_the_cap(database: Database) -> None:
    """Twenty at once, again and again: whoever counted too soon takes nothing."""
    worker = await a_worker(database)  # type: ignore[arg-type]
    await allow(database, concurrency=5)
    await start(database, 200)
    done = 0
    while done < 200:
        rounds = await asyncio.gather(*(limited(database, worker, 3) for _ in range(20)))
        held = [claim for claims in rounds for claim in claims]
        assert len(held) <= 5
        await complete(database, *held)
        done += len(held)


async def test_what_ran_before_the_cap_was_set_counts(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await start(tx, 5)
    wanted = Wanted(worker, None, ["tests.task"], 2, alone=True)
    before = (await runs.claim(tx, wanted, new_claim_id())).claims
    await allow(tx, concurrency=3)
    assert len(await limited(tx, worker)) == 1, "at once, and not only after a second statement"
    await complete(tx, *before)
    assert len(await limited(tx, worker)) == 2


async def test_setting_a_cap_does_not_wait_for_a_run_that_somebody_holds(app: App, dsn: str) -> None:
    gate = asyncio.Event()

    @app.task(queue="mail")
    async def send() -> None:
        await gate.wait()

    user = await asyncpg.connect(dsn)
    async with app.worker():
        first, second = await send.start_many([(), ()])
        await until(lambda: running(app, 2))
        async with asyncio.timeout(60), user.transaction():
            await first.cancel(tx=user)
            await app.queue("mail").set(concurrency=2)
            third = await send.start()
            await until(lambda: running(app, 3))  # the one that is going holds no place any more
        gate.set()
        for run in (second, third):
            await run.result(10)
    await user.close()


async def running(app: App, count: int) -> bool:
    return (await app.queue("mail").info()).running == count


async def test_a_limit_that_is_lifted_is_gone(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await allow(tx, concurrency=1)
    await start(tx, 3)
    assert len(await limited(tx, worker)) == 1
    await allow(tx, concurrency=None)
    wanted = Wanted(worker, None, ["tests.task"], 100, alone=True)
    assert len((await runs.claim(tx, wanted, new_claim_id())).claims) == 2


async def test_a_paused_queue_gives_nothing_limited_or_not(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await allow(tx, concurrency=3)
    await start(tx, 3)
    await queues.pause(tx, "mail", by="ann")
    wanted = Wanted(worker, None, ["tests.task"], 100, alone=True)
    claimed = await runs.claim(tx, wanted, new_claim_id())
    assert (claimed.claims, claimed.others, await limited(tx, worker)) == ([], False, [])
    assert (await queues.seen(tx, "mail"))[0].paused_by == "ann"
    assert await queues.resume(tx, "mail")
    assert len(await limited(tx, worker)) == 3


async def test_who_has_no_lease_or_has_left_gets_nothing_that_is_limited(tx: Transaction) -> None:
    await allow(tx, concurrency=3)
    await start(tx, 1)
    await start(tx, 1, queue="other", limit_key="k", per_key=1)
    left = await a_worker(tx)
    await workers.leave(tx, left)
    await execute(
        tx, "update stepwell.workers set lease_until = stepwell.now() + interval '1h'"
    )  # a clock that went back
    for worker in (new_worker_id(), await a_worker(tx, lease=0), left):
        assert await limited(tx, worker) == []
    assert len(await limited(tx, await a_worker(tx))) == 2


async def test_a_run_on_its_last_chance_comes_alone_out_of_limited_queues_too(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await allow(tx, concurrency=9)
    await start(tx, 3)
    await execute(tx, "update stepwell.runs set alone = true where queue = 'mail'")
    assert await limited(tx, worker, alone=False) == []
    assert len(await limited(tx, worker)) == 1


async def test_an_expired_run_on_its_last_chance_is_in_nobodys_way(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await allow(tx, concurrency=9)
    await start(tx, 2)
    await execute(tx, "update stepwell.runs set alone = true where queue = 'mail'")
    first = "(select min(id::text)::uuid from stepwell.runs where queue = 'mail')"
    await execute(tx, f"update stepwell.runs set expires_at = stepwell.now() - interval '1 s' where id = {first}")
    assert len(await limited(tx, worker)) == 1


# -- rate


async def test_no_more_than_the_rate_are_claimed_in_any_such_time(database: Database) -> None:
    """However many ask, and however often: by the database's clock, it is exact."""
    period, left, longest = timedelta(seconds=0.5), 20, 0.0
    await allow(database, rate=Rate(5, period))
    await start(database, left)

    async def ask_on_and_on() -> None:
        nonlocal left, longest
        worker = await a_worker(database)  # type: ignore[arg-type]
        while left:
            asked = time.monotonic()
            claims = await limited(database, worker)
            left -= len(claims)
            await asyncio.sleep(0.01)
            longest = max(longest, time.monotonic() - asked)

    async with asyncio.timeout(60):
        await asyncio.gather(ask_on_and_on(), ask_on_and_on())
    async with database.transaction() as tx:
        rows = await tx.connection.fetch("select started_at from stepwell.runs order by started_at")
    claimed = [row["started_at"] for row in rows]
    assert min(later - at for at, later in zip(claimed, claimed[5:], strict=False)) >= period
    late = timedelta(seconds=4 * longest)  # each time that there is room again, somebody asks so soon
    assert claimed[-1] - claimed[0] < timedelta(seconds=4) + late, "and nearly all of the rate can be used"


async def test_who_asks_when_told_to_gets_what_the_rate_allows(database: Database) -> None:
    worker = await a_worker(database)  # type: ignore[arg-type]
    await allow(database, rate=Rate(5, timedelta(seconds=0.3)))
    await start(database, 20)
    wanted, left = Wanted(worker, None, ["tests.task"], 100, alone=True), 20
    async with asyncio.timeout(10):
        while left:
            found = await runs.claim_limited(database, wanted, new_claim_id())
            left -= len(found.claims)
            if left:
                assert found.again is not None
                await asyncio.sleep(found.again)


def test_rates_are_written_as_people_do() -> None:
    assert Rate.of("100/s") == Rate(100, timedelta(seconds=1))
    assert Rate.of("500/min") == Rate(500, timedelta(minutes=1))
    assert Rate.of(" 10 / 5m ") == Rate(10, timedelta(minutes=5))
    assert Rate.of("7/day") == Rate(7, timedelta(days=1))
    assert [str(Rate.of(text)) for text in ("100/s", "500/min", "1/h", "10/5m")] == [
        "100/s",
        "500/min",
        "1/h",
        "10/300s",
    ]
    for wrong in ("", "100", "0/s", "-1/s", "1/", "/s", "1/fortnight", "1/1ms", "1/40d", "x/s"):
        with pytest.raises(InvalidSetting, match="rate"):
            Rate.of(wrong)


# -- keys


async def test_keys_have_their_turn_however_many_wait_behind_one(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await start(tx, 500, limit_key="big", per_key=2)
    for key in ("a", "c", "z"):
        await start(tx, 3, limit_key=key, per_key=2)

    async def keys(claims: list[Claim]) -> Counter[str]:
        found = await tx.connection.fetch(
            "select slot from stepwell.runs where id = any($1)", [claim.id for claim in claims]
        )
        return Counter(row["slot"] for row in found)

    first = await limited(tx, worker, 4)
    assert await keys(first) == {"a": 1, "big": 1, "c": 1, "z": 1}
    second = await limited(tx, worker, 2)
    assert await keys(second) == {"a": 1, "big": 1}, "it goes on behind the last that was served"
    third = await limited(tx, worker, 100)
    assert await keys(third) == {"c": 1, "z": 1}, "and nobody has more than two"
    assert await limited(tx, worker) == []


async def test_the_queue_may_allow_a_key_more_or_less_than_the_task(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await start(tx, 10, limit_key="acme", per_key=2)
    await allow(tx, per_key=5)
    assert len(await limited(tx, worker)) == 5


async def test_keys_and_a_cap_hold_together(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await allow(tx, concurrency=5)
    for key in "abcd":
        await start(tx, 5, limit_key=key, per_key=2)
    await start(tx, 5)
    claimed = await limited(tx, worker)
    found = await tx.connection.fetch("select slot from stepwell.runs where state = 'running'")
    counts = Counter(row["slot"] for row in found)
    assert len(claimed) == 5
    assert counts == {"": 1, "a": 1, "b": 1, "c": 1, "d": 1}


async def test_a_retry_of_a_finished_run_is_limited_as_it_was(app: App) -> None:
    async def work(tenant: str) -> None: ...

    task = app.task(limit_by=lambda tenant: tenant, per_key=3)(work)
    async with app.worker():
        run = await task.start("acme")
        await run.result(10)
    again = await run.retry()
    row = await app._opening.database.rows("run_by_id", id=again.id)
    assert row
    connection = await app._opening.database.connect()
    assert dict(await connection.fetchrow("select limit_key, per_key from stepwell.runs where id = $1", again.id)) == {
        "limit_key": "acme",
        "per_key": 3,
    }
    await connection.close()


# -- ageing


async def test_who_is_less_urgent_is_slower_and_does_not_starve(tx: Transaction) -> None:
    worker = await a_worker(tx)
    wanted = Wanted(worker, None, ["tests.task"], 10, alone=True)
    await start(tx, 3, priority=90)
    long_ago = "stepwell.id_at(now() - interval '10 minutes')"
    await execute(
        tx, f"update stepwell.runs set id = overlay(id::text placing left({long_ago}::text, 13) from 1)::uuid"
    )
    await start(tx, 100, priority=10)
    claimed = (await runs.claim(tx, wanted, new_claim_id())).claims
    assert Counter(claim.priority for claim in claimed) == {10: 9, 90: 1}


async def test_who_has_not_waited_long_is_not_aged(tx: Transaction) -> None:
    wanted = Wanted(await a_worker(tx), None, ["tests.task"], 10, alone=True)
    await start(tx, 3, priority=90)
    await start(tx, 100, priority=10)
    claimed = (await runs.claim(tx, wanted, new_claim_id())).claims
    assert Counter(claim.priority for claim in claimed) == {10: 10}


# -- through an app


async def test_wrong_limits_are_refused_where_they_are_given(app: App) -> None:
    with pytest.raises(InvalidSetting, match="concurrency"):
        await app.queue("mail").set(concurrency=0)
    with pytest.raises(InvalidSetting, match="per_key"):
        await app.queue("mail").set(per_key=True)
    with pytest.raises(InvalidSetting, match="rate"):
        await app.queue("mail").set(rate="fast")
    with pytest.raises(InvalidSetting, match="queue"):
        app.queue("")
    with pytest.raises(InvalidSetting, match="limit_by"):
        app.task(per_key=2)(_nothing)
    with pytest.raises(InvalidSetting, match="limit_by"):
        app.task(limit_by="tenant")(_nothing)  # type: ignore[call-overload]
    assert await app.queues() == []


async def _nothing() -> None: ...


async def test_a_queue_tells_since_when_its_oldest_waits_with_limit_keys_too(app: App) -> None:
    async def work(key: str) -> None: ...

    assert (await app.queue("mail").info()).first_pending is None
    keyed = app.task(queue="mail", limit_by=lambda key: key)(work)
    first = await keyed.start("b")
    await keyed.start("a")
    await app.definition("other").options(queue="mail", priority=1).start()
    assert (await app.queue("mail").info()).first_pending == (await first.info()).created_at


async def test_settings_that_are_not_named_stay_as_they_are(app: App) -> None:
    queue = app.queue("mail")
    await queue.set(concurrency=3, rate="100/s")
    await queue.set(per_key=2)
    assert (await queue.info()).limits == Limits(3, Rate.of("100/s"), 2)
    await queue.set(concurrency=None)
    assert (await queue.info()).limits == Limits(None, Rate.of("100/s"), 2)


async def test_two_workers_respect_a_cap_and_finish_everything(app: App) -> None:
    live = peak = 0

    @app.task(queue="narrow")
    async def work(n: int) -> int:
        nonlocal live, peak
        live += 1
        peak = max(peak, live)
        await asyncio.sleep(0.005)
        live -= 1
        return n

    await app.queue("narrow").set(concurrency=3)
    async with app.worker(), app.worker():
        started = await work.start_many([(n,) for n in range(60)])
        assert [await run.result(30) for run in started] == list(range(60))
    assert peak == 3


@pytest.mark.usefixtures("only_by_word")
async def test_a_limit_lifted_or_a_queue_resumed_is_heard_of_at_once(app: App) -> None:
    gate = asyncio.Event()
    began: list[int] = []

    @app.task(queue="narrow")
    async def work(n: int) -> None:
        began.append(n)
        await gate.wait()

    await app.queue("narrow").set(concurrency=1)
    async with app.worker():
        started = await work.start_many([(n,) for n in range(3)])
        async with asyncio.timeout(30):
            while len(began) < 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await app.queue("narrow").set(concurrency=None)
        async with asyncio.timeout(30):
            while len(began) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        gate.set()
        for run in started:
            await run.result(10)
        await app.queue("narrow").pause(by="test")
        paused = await work.start(9)
        assert (await app.queue("narrow").info()).paused_by == "test"
        await app.queue("narrow").resume()
        await paused.result(30)
