from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

from stepwell import Limits
from stepwell.engine import ends, queues, runs, workers
from stepwell.model.ids import WorkerId, new_claim_id, new_worker_id
from stepwell.model.run import Claim, Claimed, Order, Place, Wanted
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.store.pool import Database, Transaction, Tx
from tests.factory import a_start, a_worker, execute, state_of


async def take(
    tx: Tx,
    worker: WorkerId,
    queues: Sequence[str] | None = None,
    names: Sequence[str] = ("tests.task",),
    limit: int = 10,
) -> list[Claim]:
    claimed = await runs.claim(tx, Wanted(worker, queues, names, limit, alone=True), new_claim_id())
    return claimed.claims


async def test_the_most_urgent_goes_first_and_then_the_oldest(tx: Transaction) -> None:
    starts = [a_start(priority=p) for p in (50, 10, 50, 10, 90)]
    await runs.start(tx, starts)
    claims = await take(tx, await a_worker(tx), limit=3)
    assert {claim.id for claim in claims} == {starts[1].id, starts[3].id, starts[0].id}


async def test_a_worker_claims_only_from_its_queues_and_only_names_it_knows(tx: Transaction) -> None:
    mine = a_start(queue="mine")
    await runs.start(tx, [mine, a_start(queue="theirs"), a_start("unknown.name", queue="mine")])
    worker = await a_worker(tx)
    assert [claim.id for claim in await take(tx, worker, ["mine"])] == [mine.id]
    assert await take(tx, worker, ["mine"]) == []


async def test_a_worker_of_all_queues_claims_from_every_one(tx: Transaction) -> None:
    starts = [a_start(queue=queue) for queue in ("a", "b", "b", "zz", "Ü")]
    await runs.start(tx, starts)
    claims = await take(tx, await a_worker(tx))
    assert {claim.id for claim in claims} == {start.id for start in starts}


async def test_a_claim_never_takes_more_than_its_limit_over_many_queues(tx: Transaction) -> None:
    await runs.start(tx, [a_start(queue=f"q{n % 5}") for n in range(50)])
    worker = await a_worker(tx)
    assert 0 < len(await take(tx, worker, limit=7)) <= 7
    assert 0 < len(await take(tx, worker, limit=3)) <= 3


async def test_every_queue_with_work_gets_the_same_share(tx: Transaction) -> None:
    await runs.start(tx, [a_start(queue="crowd", priority=1) for _ in range(100)])
    await runs.start(tx, [a_start(queue="lonely", priority=99) for _ in range(3)])
    worker = await a_worker(tx)
    first = Counter(claim.queue for claim in await take(tx, worker, ["crowd", "lonely", "empty"], limit=10))
    assert first == {"crowd": 5, "lonely": 3}


async def test_a_claim_says_how_much_any_queue_could_give(tx: Transaction) -> None:
    await runs.start(tx, [a_start(queue=queue) for queue in ("a", "a", "a", "b")])
    worker = await a_worker(tx)

    async def given(limit: int) -> tuple[dict[str, int], int]:
        claimed = await runs.claim(tx, Wanted(worker, None, ["tests.task"], limit, alone=True), new_claim_id())
        return Counter(claim.queue for claim in claimed.claims), claimed.share

    assert await given(4) == ({"a": 2, "b": 1}, 2)
    assert await given(4) == ({"a": 1}, 4)
    assert await given(4) == ({}, 4)


async def test_what_a_claim_does_not_take_is_left_for_others(database: Database) -> None:
    await runs.start(database, [a_start(queue=f"q{n % 3}") for n in range(150)])
    one, other = await a_worker(database), await a_worker(database)  # type: ignore[arg-type]
    async with database.transaction() as tx:
        taken = await take(tx, one, limit=99)
        assert len(taken) == 99
        assert len(await take(database, other, limit=99)) == 51


async def test_a_paused_queue_is_not_claimed_from(tx: Transaction) -> None:
    await runs.start(tx, [a_start(queue="held")])
    await execute(tx, "insert into stepwell.queues (name, paused_at) values ('held', stepwell.now())")
    worker = await a_worker(tx)
    assert await take(tx, worker, ["held"]) == []
    assert await take(tx, worker) == []


async def test_a_worker_without_a_lease_claims_nothing(tx: Transaction) -> None:
    start = a_start()
    await runs.start(tx, [start])
    assert await take(tx, new_worker_id()) == []
    assert await take(tx, await a_worker(tx, lease=0)) == []
    assert await state_of(tx, start.id) is State.PENDING


async def a_worker_that_left(tx: Transaction) -> WorkerId:
    """And whose lease seems to last, by a clock that went back since."""
    worker = await a_worker(tx)
    await workers.leave(tx, worker)
    later = "update stepwell.workers set lease_until = stepwell.now() + interval '1h' where id = $1"
    await execute(tx, later, worker)
    return worker


async def test_a_worker_that_has_left_claims_nothing_however_late_its_last_claim_arrives(tx: Transaction) -> None:
    await runs.start(tx, [a_start()])
    assert await take(tx, await a_worker_that_left(tx)) == []
    assert len(await take(tx, await a_worker(tx))) == 1


async def exchanged(tx: Transaction, worker: WorkerId, queue: str) -> list[Claim]:
    """What comes in by an exchange that found the queue busy before."""
    order = Order(new_claim_id(), [Place(queue, 0, UUID(int=0))], 10)
    return (await runs.exchange(tx, [], order, worker=worker, names=["tests.task"])).claims


async def test_an_exchange_claims_nothing_from_a_queue_that_was_paused_or_limited_since(tx: Transaction) -> None:
    worker = await a_worker(tx)
    await runs.start(tx, [a_start(queue="busy") for _ in range(4)])
    await queues.pause(tx, "busy", by=None)
    assert await exchanged(tx, worker, "busy") == []
    await queues.resume(tx, "busy")
    await queues.set_limits(tx, "busy", Limits(concurrency=1), sets=["concurrency"])
    assert await exchanged(tx, worker, "busy") == []
    await queues.set_limits(tx, "busy", Limits(), sets=["concurrency"])
    assert len(await exchanged(tx, worker, "busy")) == 4


async def test_an_exchange_of_who_has_no_lease_or_has_left_claims_nothing(tx: Transaction) -> None:
    await runs.start(tx, [a_start(queue="busy")])
    for worker in (new_worker_id(), await a_worker(tx, lease=0), await a_worker_that_left(tx)):
        assert await exchanged(tx, worker, "busy") == []
    assert len(await exchanged(tx, await a_worker(tx), "busy")) == 1


async def test_what_has_expired_is_not_claimed(tx: Transaction) -> None:
    start = a_start(expires=timedelta(0))
    await runs.start(tx, [start])
    assert await take(tx, await a_worker(tx)) == []
    assert [each.id for each in await ends.expire(tx, Consequences(), limit=10)] == [start.id]


async def test_each_claim_counts_an_attempt_and_has_an_id_of_its_own(tx: Transaction) -> None:
    await runs.start(tx, [a_start()])
    worker = await a_worker(tx)
    (first,) = await take(tx, worker)
    await tx.rows("release_runs", ids=[first.id], claim_ids=[first.claim_id])
    (second,) = await take(tx, worker)
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.claim_id != second.claim_id


async def test_claimers_at_once_never_take_the_same_run(database: Database) -> None:
    starts = [a_start() for _ in range(300)]
    await runs.start(database, starts)
    workers = [await a_worker(database) for _ in range(10)]  # type: ignore[arg-type]
    taken = await asyncio.gather(*(take(database, worker, limit=40) for worker in workers))
    ids = [claim.id for claims in taken for claim in claims]
    assert len(ids) == len(set(ids)) == 300


async def test_a_locked_run_is_skipped_not_waited_for(database: Database) -> None:
    locked, free = a_start(priority=1), a_start()
    await runs.start(database, [locked, free])
    worker = await a_worker(database)  # type: ignore[arg-type]
    async with database.transaction() as tx:
        await execute(tx, "select from stepwell.runs where id = $1 for update", locked.id)
        assert [claim.id for claim in await take(database, worker)] == [free.id]


async def test_of_runs_that_must_be_alone_one_is_claimed_at_a_time(tx: Transaction) -> None:
    suspects, others = [a_start() for _ in range(3)], [a_start() for _ in range(3)]
    await runs.start(tx, [*suspects, *others])
    await execute(tx, "update stepwell.runs set alone = true where id = any($1)", [each.id for each in suspects])
    worker = await a_worker(tx)
    first = await take(tx, worker, limit=10)
    assert [claim.alone for claim in first].count(True) == 1
    assert len(first) == 4
    busy = await runs.claim(tx, Wanted(worker, None, ["tests.task"], 10, alone=False), new_claim_id())
    assert busy.claims == []
    assert [claim.alone for claim in await take(tx, worker, limit=1)] == [True]


async def test_one_queue_gives_the_most_urgent_and_then_the_oldest(tx: Transaction) -> None:
    starts = [a_start(queue="mine", priority=p) for p in (50, 10, 50, 10, 90)]
    await runs.start(tx, [*starts, a_start(queue="theirs"), a_start("unknown.name", queue="mine", priority=1)])
    wanted = Wanted(await a_worker(tx), None, ["tests.task"], 3, alone=False)
    claimed = await runs.claim_from(tx, "mine", wanted, new_claim_id())
    assert {claim.id for claim in claimed.claims} == {starts[1].id, starts[3].id, starts[0].id}
    assert not claimed.others
    rest = await runs.claim_from(tx, "mine", wanted, new_claim_id())
    assert {claim.id for claim in rest.claims} == {starts[2].id, starts[4].id}


async def test_one_queue_tells_of_what_only_a_look_at_all_finds(tx: Transaction) -> None:
    """Limited by a key, by its queue, or to be alone: whoever asks one queue gets none of it, and hears of it."""
    keyed, capped, alone = (a_start(queue=queue) for queue in ("keyed", "capped", "alone"))
    keyed.limit_key, keyed.terms = "k", replace(keyed.terms, per_key=1)
    await runs.start(tx, [keyed, capped, alone])
    await queues.set_limits(tx, "capped", Limits(concurrency=1), sets={"concurrency"})
    await execute(tx, "update stepwell.runs set alone = true where queue = 'alone'")
    wanted = Wanted(await a_worker(tx), None, ["tests.task"], 10, alone=True)
    for queue in ("keyed", "capped", "alone"):
        assert await runs.claim_from(tx, queue, wanted, new_claim_id()) == Claimed([], 10, others=True)


async def test_one_queue_gives_nothing_while_it_is_paused_nor_to_who_has_no_lease(tx: Transaction) -> None:
    await runs.start(tx, [a_start(queue="mine"), a_start(queue="paused")])
    await queues.pause(tx, "paused", by="me")
    for worker, queue in ((await a_worker(tx), "paused"), (await a_worker(tx, lease=-1), "mine")):
        wanted = Wanted(worker, None, ["tests.task"], 10, alone=True)
        assert await runs.claim_from(tx, queue, wanted, new_claim_id()) == Claimed([], 10)
