"""Where there are limits nobody starves: no queue, no key, no run without one, none that is less urgent."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import asyncpg
import pytest

from stepwell import App, Limits
from stepwell.engine import queues, runs, settle
from stepwell.model.ids import WorkerId, new_claim_id
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim, Claimed, Wanted
from stepwell.store.pool import Database, Transaction, Tx
from tests.factory import a_start, a_worker, execute

OLD = """
update stepwell.runs r
   set id = overlay(r.id::text placing left(stepwell.id_at(t.at)::text, 13) from 1 for 13)::uuid
  from (select o.id, stepwell.now() - interval '1 hour' - o.priority * interval '1 minute' as at
          from stepwell.runs o) t
 where r.id = t.id and r.priority > 10
"""
"""The less urgent a run is, the longer it has waited: all of them long enough."""


async def look(tx: Tx, worker: WorkerId, limit: int = 100) -> Claimed:
    return await runs.claim_limited(tx, Wanted(worker, None, ["tests.task"], limit, alone=True), new_claim_id())


async def limited(tx: Tx, worker: WorkerId, limit: int = 100) -> list[Claim]:
    return (await look(tx, worker, limit)).claims


async def claim(tx: Tx, worker: WorkerId, limit: int) -> list[Claim]:
    return (await runs.claim(tx, Wanted(worker, None, ["tests.task"], limit, alone=True), new_claim_id())).claims


async def allow(tx: Tx, queue: str = "mail", **limits: Any) -> None:
    await queues.set_limits(tx, queue, Limits(**limits), sets=limits)


async def start(tx: Tx, count: int, **how: Any) -> None:
    await runs.start(tx, [a_start(**{"queue": "mail", **how}) for _ in range(count)])


async def complete(tx: Tx, *claims: Claim) -> None:
    await settle.apply(tx, settle.plan([(claim, Completed(b"1")) for claim in claims]))


# -- keys


async def test_full_keys_at_the_front_do_not_starve_those_behind(tx: Transaction) -> None:
    worker = await a_worker(tx)
    for number in range(250):
        await start(tx, 2, limit_key=f"a{number:03}", per_key=1)
    assert sum([len(await limited(tx, worker, 500)) for _ in range(4)]) == 250
    await start(tx, 1, limit_key="a2005", per_key=1)
    assert sum([len(await limited(tx, worker, 500)) for _ in range(3)]) == 1


async def test_keys_of_names_that_nobody_here_knows_do_not_starve_those_behind(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await runs.start(tx, [a_start("old.task", queue="mail", limit_key=f"a{n:03}", per_key=1) for n in range(200)])
    await start(tx, 1, limit_key="z", per_key=1)
    await allow(tx, per_key=1)
    first = await look(tx, worker, 500)
    assert (first.claims, first.further) == ([], True), "there are more keys than it looked at"
    second = await look(tx, worker, 500)
    assert len(second.claims) == 1


async def test_who_has_seen_every_key_knows_that_there_are_no_further_ones(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await runs.start(tx, [a_start("old.task", queue="mail", limit_key=f"a{n:03}", per_key=1) for n in range(150)])
    assert not (await look(tx, worker, 500)).further


async def test_a_worker_goes_on_by_itself_behind_keys_that_give_nothing(app: App, database: Database) -> None:
    @app.task(queue="mail", limit_by=lambda: "z")
    async def send() -> int:
        return 1

    old = [a_start("old.task", queue="mail", limit_key=f"a{n:03}", per_key=1) for n in range(900)]
    await runs.start(database, old)
    run = await send.start()
    async with app.worker():
        assert await run.result(timeout=10) == 1


async def test_runs_with_a_key_are_not_starved_by_those_without_nor_the_other_way_round(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await allow(tx, concurrency=1)
    await start(tx, 50)
    for key in ("k", "l"):
        await start(tx, 20, limit_key=key, per_key=1)
    seen: Counter[str] = Counter()
    for _ in range(30):
        (claim,) = await limited(tx, worker, 10)
        seen[await tx.connection.fetchval("select slot from stepwell.runs where id = $1", claim.id)] += 1
        await complete(tx, claim)
    assert seen == {"": 10, "k": 10, "l": 10}


async def test_the_first_claims_of_a_new_queue_with_keys_do_not_exceed_them(database: Database) -> None:
    """Its row is made by the first of them; the others, at the same moment, take nothing."""
    worker = await a_worker(database)  # type: ignore[arg-type]
    for number in range(5):
        for key in "ab":
            await start(database, 9, queue=f"new-{number}", limit_key=key, per_key=2)
        rounds = await asyncio.gather(*(limited(database, worker, 50) for _ in range(20)))
        assert sum(map(len, rounds)) == 4


async def test_a_last_chance_behind_a_full_key_is_in_nobodys_way(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await start(tx, 1, limit_key="full", per_key=1)
    assert len(await limited(tx, worker)) == 1
    await start(tx, 1, limit_key="full", per_key=1)
    await start(tx, 1, limit_key="free", per_key=1)
    await execute(tx, "update stepwell.runs set alone = true where state = 'pending'")
    assert len(await limited(tx, worker)) == 1


async def test_a_last_chance_is_not_starved_by_more_urgent_runs_of_its_key(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await start(tx, 1, limit_key="k", per_key=1, priority=90)
    await execute(tx, "update stepwell.runs set alone = true")
    await start(tx, 5, limit_key="k", per_key=1, priority=10)
    assert [claim.alone for claim in await limited(tx, worker)] == [True]


async def test_two_limited_queues_share_one_slot(tx: Transaction) -> None:
    worker = await a_worker(tx)
    for queue in ("a", "b"):
        await allow(tx, queue, concurrency=5)
        await start(tx, 50, queue=queue)
    seen: Counter[str] = Counter()
    for _ in range(40):
        (claim,) = await limited(tx, worker, 1)
        seen[claim.queue] += 1
        await complete(tx, claim)
    assert min(seen["a"], seen["b"]) > 5, seen


# -- rates


async def test_a_slower_rate_does_not_count_the_uses_of_a_faster_one_for_ever(app: App) -> None:
    """Parts are numbered by their length: those of a shorter period are all in the future of a longer one."""

    @app.task(queue="mail")
    async def send(n: int) -> int:
        return n

    await app.queue("mail").set(rate="3/s")
    async with app.worker():
        for run in await send.start_many([(n,) for n in range(3)]):
            await run.result(timeout=10)
        await app.queue("mail").set(rate="3/2s")
        assert await (await send.start(99)).result(timeout=30) == 99


# -- priorities


@pytest.mark.parametrize("key", [None, "k"])
async def test_less_urgent_runs_of_a_limited_queue_do_not_starve(tx: Transaction, key: str | None) -> None:
    worker = await a_worker(tx)
    keyed = {} if key is None else {"limit_key": key, "per_key": 10}
    await allow(tx, concurrency=10)
    await start(tx, 1, priority=90, **keyed)
    await start(tx, 50, priority=50, **keyed)
    await execute(tx, OLD)
    await start(tx, 50, priority=10, **keyed)
    seen: list[int] = []
    for _ in range(3):
        claims = await limited(tx, worker, 10)
        seen += [claim.priority for claim in claims]
        await complete(tx, *claims)
    assert Counter(seen) == {10: 27, 50: 2, 90: 1}


async def test_the_least_urgent_are_not_starved_by_the_less_urgent(tx: Transaction) -> None:
    """All of them old enough: of 10 and 50 there is a backlog, and of 90 one that is older than all."""
    worker = await a_worker(tx)
    await start(tx, 1, priority=90)
    await start(tx, 100, priority=50)
    await execute(tx, OLD)
    await start(tx, 100, priority=10)
    claims = await claim(tx, worker, 20)
    assert Counter(claim.priority for claim in claims) == {10: 18, 50: 1, 90: 1}


async def test_the_most_urgent_are_not_starved_by_what_has_aged_where_there_is_one_slot(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await start(tx, 200, priority=50)
    await execute(tx, OLD)
    await start(tx, 200, priority=10)
    seen = Counter([(await claim(tx, worker, 1))[0].priority for _ in range(200)])
    assert 2 <= seen[50] <= 60, seen


# -- queues


@pytest.mark.parametrize("pause", [0, 0.01])
@pytest.mark.parametrize("slots", [1, 20])
async def test_a_limited_queue_is_not_starved_by_a_busy_plain_one(app: App, slots: int, pause: float) -> None:
    order: list[str] = []

    @app.task(queue="plain")
    async def plain(n: int) -> None:
        if pause:
            await asyncio.sleep(pause)
        order.append("plain")

    @app.task(queue="limited")
    async def careful(n: int) -> None:
        order.append("limited")

    count = slots * 100 if pause else 10_000
    await app.queue("limited").set(concurrency=5)
    await plain.start_many([(n,) for n in range(count)])
    started = await careful.start_many([(n,) for n in range(3)])
    async with app.worker(slots=slots):
        for run in started:
            await run.result(timeout=30)
    assert order.index("limited") < count / 2


async def test_a_plain_queue_is_not_starved_by_a_busy_limited_one(app: App) -> None:
    order: list[str] = []

    @app.task(queue="plain")
    async def plain(n: int) -> None:
        order.append("plain")

    @app.task(queue="limited")
    async def careful(n: int) -> None:
        await asyncio.sleep(0.005)
        order.append("limited")

    await app.queue("limited").set(concurrency=5)
    await careful.start_many([(n,) for n in range(200)])
    started = await plain.start_many([(n,) for n in range(20)])
    async with app.worker(slots=1):
        for run in started:
            await run.result(timeout=30)
    assert Counter(order)["limited"] < 150


@pytest.mark.parametrize("capped", [True, False])
async def test_a_long_transaction_that_started_the_first_run_with_a_key_is_in_nobodys_way(
    app: App, dsn: str, capped: bool
) -> None:
    @app.task(queue="mail")
    async def send(n: int) -> int:
        return n

    @app.task(queue="mail", limit_by=lambda n: "k")
    async def keyed(n: int) -> int:
        return n

    if capped:
        await app.queue("mail").set(concurrency=5)
    user = await asyncpg.connect(dsn)
    async with app.worker(), user.transaction():
        await keyed.options(tx=user).start(1)
        await user.execute("select stepwell.start($1, '{\"n\": 1}', queue => 'mail', limit_key => 'l')", keyed.name)
        assert await (await send.start(2)).result(timeout=10) == 2
        assert await (await keyed.start(3)).result(timeout=10) == 3
    await user.close()
