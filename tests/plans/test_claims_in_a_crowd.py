"""What a claim does when the planner is pushed around, when others hold rows, and behind a trail of dead ones."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from big_database import LOST, NAMES, OURS
from plan_cases import UNSAID, claim
from plan_reading import Session
from plan_survey import Survey, session

from stepwell.store.pool import Transaction
from stepwell.store.statements import load

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("plans")]

PUSHES = {
    "as it is": {},
    "only nested loops": {"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_material": "off"},
    "no nested loops": {"enable_nestloop": "off"},
    "no index scans": {"enable_indexscan": "off", "enable_indexonlyscan": "off", "enable_bitmapscan": "on"},
    "no sorts": {"enable_sort": "off", "enable_incremental_sort": "off"},
}


def behind(place: UUID, queue: str, *, share: int = 100) -> dict[str, Any]:
    """An exchange of nothing for what stands behind this place."""
    nothing: dict[str, Any] = {"ids": [], "claim_ids": [], "results": b"[]"}
    where = {"queues": [queue], "priorities": [50], "places": [place], "share": share}
    return {**nothing, **where, "worker": OURS, "names": list(NAMES), "claim_id": UUID(int=1), **UNSAID}


LIMITED = {
    "claim_runs": claim(["mail"], limit=7),
    "exchange_runs": behind(UUID(int=0), "mail", share=7),
    "due_runs": {"limit": 7},
    "expired_runs": {"limit": 7},
    "lock_lost_claims": {"limit": 7, "calm": timedelta(0)},
}
SETTLED = {
    "retry_runs": {"errors": b"{}", "usages": None, "delays": timedelta(hours=1), "alones": False},
    "repeat_runs": {"errors": b"{}", "usages": None, "alones": False},
    "snooze_runs": {"usages": None, "delays": timedelta(hours=1)},
    "release_runs": {},
}
CHURNED, BEHIND = 20_000, 200


def speaking(session: Session) -> Transaction:
    return Transaction(session.connection, load("stepwell"))


@pytest.mark.parametrize("push", PUSHES)
@pytest.mark.parametrize("statement", LIMITED)
async def test_the_limit_holds_however_the_planner_is_pushed(alone: Session, statement: str, push: str) -> None:
    async with rolled_back(alone):
        for setting, value in PUSHES[push].items():
            await alone.connection.execute(f"set local {setting} = {value}")
        assert len(await speaking(alone).rows(statement, **LIMITED[statement])) == 7


@pytest.mark.parametrize("queues", [["mail"], ["mail", "media", "bulk"], None])
async def test_rows_that_another_claim_holds_are_skipped_without_waiting(
    alone: Session, another: Session, queues: list[str] | None
) -> None:
    async with rolled_back(alone), rolled_back(another):
        await another.connection.execute("set local lock_timeout = '1ms'")
        first = await speaking(alone).rows("claim_runs", **claim(queues))
        second = await speaking(another).rows("claim_runs", **claim(queues))
        assert min(len(first), len(second)) >= 99
        assert not {row["id"] for row in first} & {row["id"] for row in second}
        third = await another.explain_here("claim_runs", **claim(queues))
        assert third.buffers <= 5000


async def test_settling_a_batch_ten_times_as_large_costs_ten_times_as_much(alone: Session) -> None:
    """Joined with its arrays, a batch of 1000 was a loop over a million pairs: 180 ms instead of 12."""
    for name, columns in SETTLED.items():
        small, large = [await alone.explain(name, **await running(alone, count, columns)) for count in (100, 1000)]
        assert (small.rows, large.rows) == (100, 1000)
        assert large.buffers <= 15 * small.buffers
        assert large.tuples <= 15 * small.tuples <= 15 * 1000


async def test_ending_a_batch_ten_times_as_large_costs_ten_times_as_much(alone: Session) -> None:
    columns: dict[str, Any] = {"states": "completed"}
    plain = {"errors": None, "usages": None, **UNSAID}
    small, large = [
        await alone.explain("end_runs", **await running(alone, count, columns), results=ones(count), **plain)
        for count in (100, 1000)
    ]
    assert large.buffers <= 15 * small.buffers
    assert large.tuples <= 15 * small.tuples <= 15 * 1000


async def test_exchanging_a_batch_ten_times_as_large_costs_ten_times_as_much(alone: Session) -> None:
    small, large = [await alone.explain("exchange_runs", **await exchanged(alone, count)) for count in (100, 1000)]
    assert (small.rows, large.rows) == (100, 1000)
    assert large.buffers <= 15 * small.buffers
    assert large.tuples <= 15 * small.tuples <= 15 * 2000


async def exchanged(session: Session, count: int) -> dict[str, Any]:
    done = await running(session, count, {})
    return {**behind(UUID(int=0), "mail", share=count), **done, "results": ones(count)}


def ones(count: int) -> bytes:
    return b"[%b]" % b",".join([b"1"] * count)


async def test_a_claim_is_not_slowed_by_what_was_just_claimed_and_completed(alone: Session, another: Session) -> None:
    async with churn(another, "churn"):
        first, second = [await alone.explain("claim_runs", **claim(["churn"])) for _ in range(2)]
        assert first.rows == second.rows == 100
        assert first.buffers <= 5000
        assert second.buffers <= 3000


async def test_a_claim_passes_rows_that_an_old_snapshot_keeps_page_by_page(
    alone: Session, another: Session, survey: Survey
) -> None:
    old = await session(survey.dsn)
    try:
        await old.connection.execute("begin isolation level repeatable read; select 1")
        async with churn(another, "churn_kept"):
            first, second = [await alone.explain("claim_runs", **claim(["churn_kept"])) for _ in range(2)]
            assert first.rows == second.rows == 100
            assert max(first.buffers, second.buffers) <= 5000
    finally:
        await old.connection.close()


async def test_an_exchange_reads_nothing_of_what_was_taken_before_its_place(
    alone: Session, another: Session, survey: Survey
) -> None:
    """Though an old snapshot keeps all of it, and a claim from the front has to step over each."""
    old = await session(survey.dsn)
    try:
        await old.connection.execute("begin isolation level repeatable read; select 1")
        async with churn(another, "churn_behind") as taken:
            first = await alone.connection.fetchval(
                "select min(id::text)::uuid from stepwell.runs where state = 'pending' and queue = 'churn_behind'"
            )
            place = max(each for each in taken if each < first)
            exchange, again = [await alone.explain("exchange_runs", **behind(place, "churn_behind")) for _ in range(2)]
            for each in (exchange, again):
                assert (each.rows, each.parts["next"] <= 700) == (100, True)
            # Not of the second: that steps over what the first had locked, and let go of.
            front = await alone.explain("claim_runs", **claim(["churn_behind"]))
            assert front.parts["next"] > exchange.parts["next"]
    finally:
        await old.connection.close()


async def running(session: Session, count: int, columns: dict[str, Any]) -> dict[str, Any]:
    """The arrays that settle this many running runs alike."""
    found = await session.connection.fetch(
        "select id, claim_id from stepwell.runs where claimed_by = $1 order by id limit $2", LOST, count
    )
    arrays = {column: [value] * count for column, value in columns.items()}
    return {"ids": [row["id"] for row in found], "claim_ids": [row["claim_id"] for row in found], **arrays}


@asynccontextmanager
async def churn(session: Session, queue: str) -> AsyncIterator[list[UUID]]:
    """A queue through which these runs have just passed, with a few pending behind them."""
    speak = speaking(session)
    await pend(session, queue, CHURNED)
    # In one statement each, so that no later claim has already marked the dead entries it passed.
    taken = claim([queue], limit=CHURNED)
    ids = sorted(row["id"] for row in await speak.rows("claim_runs", **taken))
    same = {"claim_ids": [taken["claim_id"]] * CHURNED, "states": ["completed"] * CHURNED, "usages": None}
    (ended,) = await speak.rows("end_runs", ids=ids, **same, results=ones(CHURNED), errors=None, **UNSAID)
    assert ended["moved"] is None
    await pend(session, queue, BEHIND)
    yield ids
    await session.connection.execute(f"delete from stepwell.runs where queue = '{queue}' and state = 'pending'")


async def pend(session: Session, queue: str, count: int) -> None:
    await session.connection.execute(
        """insert into stepwell.runs (id, name, queue, priority, state, input, retry)
           select public.id_at(clock_timestamp() + interval '1 hour', n), 'task_1', $1, 50, 'pending', '{}', '{}'
             from generate_series(1, $2) n""",
        queue,
        count,
    )


@asynccontextmanager
async def rolled_back(session: Session) -> AsyncIterator[None]:
    transaction = session.connection.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()
