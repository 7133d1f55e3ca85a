from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from stepwell.engine import reads, runs, settle
from stepwell.model.errors import KeyConflict, NotFinished, NotFound
from stepwell.model.ids import new_run_id
from stepwell.model.outcome import Completed
from stepwell.model.states import State
from stepwell.store.pool import Database, Transaction
from tests.factory import a_run, a_start, claimed, execute, row_of, state_of


async def test_a_start_is_pending_and_a_delayed_one_scheduled(tx: Transaction) -> None:
    now, later = a_start(), a_start(delay=timedelta(minutes=5))
    on_time = a_start(at=datetime(2031, 5, 1, tzinfo=UTC))
    await runs.start(tx, [now, later, on_time])
    assert await state_of(tx, now.id) is State.PENDING
    row = await row_of(tx, later.id)
    assert row["state"] == State.SCHEDULED
    assert row["due_at"] - row["created_at"] == timedelta(minutes=5)
    assert (await row_of(tx, on_time.id))["due_at"] == datetime(2031, 5, 1, tzinfo=UTC)


async def test_a_start_repeated_with_its_id_is_one_run(tx: Transaction) -> None:
    start = a_start()
    assert await runs.start(tx, [start]) == await runs.start(tx, [start]) == [start.id]
    assert len(await tx.rows("existing_runs", ids=[start.id])) == 1


async def test_a_start_repeated_after_its_run_finished_does_not_run_it_again(tx: Transaction) -> None:
    start = a_start(queue="once")
    claim = await claimed(tx, start)
    await settle.apply(tx, settle.plan([(claim, Completed(b"1"))]))
    await runs.start(tx, [start])
    await runs.undo_finished_starts(tx, [start.id])
    assert await state_of(tx, start.id) is State.COMPLETED


async def test_the_same_key_and_input_is_the_same_run(tx: Transaction) -> None:
    first, second = (a_start(key="order-7", digest=b"same") for _ in range(2))
    assert await runs.start(tx, [first]) == [first.id]
    assert await runs.start(tx, [second]) == [first.id]
    assert not await reads.existing(tx, [second.id])


async def test_the_same_key_with_other_input_is_refused(tx: Transaction) -> None:
    first, second = a_start(key="k", digest=b"one"), a_start(key="k", digest=b"two")
    await runs.start(tx, [first])
    with pytest.raises(KeyConflict) as refused:
        await runs.start(tx, [second])
    assert refused.value.run_id == first.id


async def test_a_key_still_holds_when_its_run_has_finished(tx: Transaction) -> None:
    start = a_start(key="k", digest=b"d", queue="keyed")
    claim = await claimed(tx, start)
    await settle.apply(tx, settle.plan([(claim, Completed(b"1"))]))
    assert await runs.start(tx, [a_start(key="k", digest=b"d")]) == [start.id]


async def test_an_expired_key_is_free_unless_its_run_is_live(tx: Transaction) -> None:
    live, done = a_start(key="live", digest=b"d", queue="a"), a_start(key="done", digest=b"d", queue="b")
    await runs.start(tx, [live])
    await settle.apply(tx, settle.plan([(await claimed(tx, done), Completed(b"1"))]))
    await execute(tx, "update stepwell.keys set expires_at = stepwell.now() - interval '1s'")
    other = a_start(key="done", digest=b"other")
    assert await runs.start(tx, [a_start(key="live", digest=b"d")]) == [live.id]
    assert await runs.start(tx, [other]) == [other.id]
    await tx.rows("forget_keys", limit=10)
    assert await reads.id_by_key(tx, "live") == live.id


async def test_a_hundred_starts_with_one_key_make_one_run(database: Database) -> None:
    starts = [a_start(key="once", digest=b"d") for _ in range(100)]
    ids = await asyncio.gather(*(runs.start(database, [each]) for each in starts))
    assert len({run_id for (run_id,) in ids}) == 1
    assert len(await reads.existing(database, [each.id for each in starts])) == 1


async def test_a_key_whose_transaction_rolled_back_is_free(database: Database) -> None:
    first, second = a_start(key="k", digest=b"1"), a_start(key="k", digest=b"2")
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as tx:
            await runs.start(tx, [first])
            raise ZeroDivisionError
    assert await runs.start(database, [second]) == [second.id]


async def test_a_run_started_by_a_run_knows_its_family(tx: Transaction) -> None:
    parent, root = new_run_id(), new_run_id()
    start = a_start(parent_id=parent, root_id=root)
    await runs.start(tx, [start])
    info = await reads.run_info(tx, start.id)
    assert (info.parent_id, info.root_id) == (parent, root)
    alone = a_start()
    await runs.start(tx, [alone])
    assert (await reads.run_info(tx, alone.id)).root_id == alone.id


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED, State.EXPIRED])
async def test_a_retried_run_is_a_new_one_that_names_its_origin(tx: Transaction, state: State) -> None:
    made, new_id = await a_run(tx, state), new_run_id()
    await runs.start_again(tx, made.id, new_id)
    again = await reads.run_info(tx, new_id)
    assert (again.state, again.retry_of, again.input, again.attempt) == (State.PENDING, made.id, {"n": 1}, 0)
    assert await state_of(tx, made.id) is state


async def test_a_live_or_missing_run_cannot_be_retried(tx: Transaction) -> None:
    with pytest.raises(NotFinished):
        await runs.start_again(tx, (await a_run(tx, State.PENDING)).id, new_run_id())
    with pytest.raises(NotFound):
        await runs.start_again(tx, new_run_id(), new_run_id())


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""}, {"queue": ""}, {"priority": 0}, {"priority": 101}, {"input": b"[1]"}, {"tags": b"[]"},
        {"key": "", "digest": b""}, {"timeout": timedelta(0)}, {"name": "x" * 201},
    ],
)  # fmt: skip
async def test_the_table_itself_refuses_an_impossible_row(tx: Transaction, wrong: dict[str, object]) -> None:
    import asyncpg

    start = a_start(**wrong)
    for make in [runs.start, runs.start_plain] if start.is_plain else [runs.start]:
        with pytest.raises(asyncpg.CheckViolationError):
            async with tx.connection.transaction():
                await make(tx, [start])


@pytest.mark.parametrize(
    "impossible",
    [
        "state = 'running'",
        "state = 'completed'",
        "claim_id = gen_random_uuid()",
        "attempt = -1",
        "failures = 1",
        "due_at = now()",
        "state = 'scheduled'",
        "kind = 'job'",
    ],
)
async def test_the_table_itself_refuses_an_impossible_change(tx: Transaction, impossible: str) -> None:
    import asyncpg

    start = a_start()
    await runs.start(tx, [start])
    with pytest.raises(asyncpg.CheckViolationError):
        await execute(tx, f"update stepwell.runs set {impossible} where id = $1", start.id)


@pytest.mark.parametrize("table", ["finished_runs", "attempts", "events"])
async def test_what_happened_is_never_changed(tx: Transaction, table: str) -> None:
    import asyncpg

    column = "name = 'x'" if table == "finished_runs" else "run_id = run_id"
    with pytest.raises(asyncpg.IntegrityConstraintViolationError, match="record of what happened"):
        await execute(tx, f"update stepwell.{table} set {column}")
