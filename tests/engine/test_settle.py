from __future__ import annotations

from datetime import timedelta

import pytest

from stepwell.engine import ends, leaders, reads, runs, settle, workers
from stepwell.engine.claim_lookup import already_settled
from stepwell.engine.settle import apply, plan
from stepwell.model.ids import new_worker_id
from stepwell.model.outcome import Completed, Failed, Outcome, Released, Snoozed
from stepwell.model.retry import Retry
from stepwell.model.run import Error, Reason
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.store.pool import Transaction
from tests.factory import BOOM, a_run, a_start, a_worker, another_claim, attempts_of, claimed, execute, row_of, state_of

LOST = Failed(Error("WorkerLost", "gone", Reason.WORKER_LOST))


async def test_a_mixed_batch_ends_each_attempt_its_own_way(tx: Transaction) -> None:
    outcomes: list[tuple[Outcome, State]] = [
        (Completed(b'{"ok": true}'), State.COMPLETED),
        (Failed(BOOM), State.SCHEDULED),
        (Failed(Error("Fatal", "no", Reason.GAVE_UP)), State.FAILED),
        (Snoozed(timedelta(hours=1)), State.SCHEDULED),
        (Released(), State.PENDING),
        (LOST, State.PENDING),
    ]
    claims = [await claimed(tx) for _ in outcomes]
    settled = await apply(tx, plan([(claim, outcome) for claim, (outcome, _) in zip(claims, outcomes, strict=True)]))
    assert settled.moved == {claim.id for claim in claims}
    assert set(settled.finished) == {claims[0].id, claims[2].id}
    assert settled.after.wakes == {claims[4].queue, claims[5].queue}
    for claim, (_, state) in zip(claims, outcomes, strict=True):
        assert await state_of(tx, claim.id) is state


async def test_a_failure_is_counted_and_a_release_or_snooze_is_not(tx: Transaction) -> None:
    for outcome, failures in ((Failed(BOOM), 1), (LOST, 1), (Released(), 0), (Snoozed(timedelta(1)), 0)):
        claim = await claimed(tx)
        await apply(tx, plan([(claim, outcome)]))
        assert (await row_of(tx, claim.id))["failures"] == failures


async def test_an_attempt_that_did_not_finish_its_run_leaves_its_record(tx: Transaction) -> None:
    claim = await claimed(tx)
    await apply(tx, plan([(claim, Failed(BOOM))]))
    (attempt,) = await reads.attempts(tx, claim.id)
    assert (attempt.attempt, attempt.outcome) == (1, "failed")
    assert attempt.error is not None
    assert (attempt.error.type, attempt.error.message, attempt.error.traceback) == ("ValueError", "boom", "Traceback …")
    assert attempt.ended_at is not None
    assert attempt.started_at <= attempt.ended_at


async def test_every_attempt_of_a_finished_run_is_shown(tx: Transaction) -> None:
    start, worker = a_start(retry=Retry(attempts=3)), await a_worker(tx)
    for outcome in (LOST, Released(), Completed(b"1")):
        claim = await claimed(tx, start, worker=worker)
        await apply(tx, plan([(claim, outcome)]))
    assert [each["outcome"] for each in await attempts_of(tx, start.id)] == ["failed", "released", "completed"]
    assert {each["claimed_by"] for each in await attempts_of(tx, start.id)} == {worker}


async def test_an_error_that_holds_what_postgres_cannot_store_is_stored_all_the_same(tx: Transaction) -> None:
    claim = await claimed(tx)
    ugly = Error("E", "nul \x00 and surrogate \ud800", Reason.GAVE_UP, traceback="\x00")
    await apply(tx, plan([(claim, Failed(ugly))]))
    info = await reads.run_info(tx, claim.id)
    assert info.error is not None
    assert "\x00" not in info.error.message


async def test_a_lost_claim_is_told_and_its_neighbours_are_settled(tx: Transaction) -> None:
    good, bad = await claimed(tx), another_claim(await claimed(tx))
    settled = await apply(tx, plan([(bad, Completed(b"1")), (good, Completed(b"2"))]))
    assert settled.moved == {good.id}


async def test_a_settling_whose_answer_was_lost_is_found(tx: Transaction) -> None:
    outcomes: list[Outcome] = [Completed(b"1"), Failed(BOOM), Snoozed(timedelta(1)), Released(), LOST]
    claims = [await claimed(tx) for _ in outcomes]
    unsettled, cancelled = await claimed(tx), await claimed(tx)
    await apply(tx, plan(list(zip(claims, outcomes, strict=True))))
    await ends.cancel(tx, [cancelled.id])
    found = await already_settled(tx, [*claims, unsettled, cancelled], Consequences())
    assert found == {claim.id for claim in claims}


async def test_a_run_whose_worker_lost_its_lease_is_reaped_and_a_live_one_left(tx: Transaction) -> None:
    lost = await claimed(tx, worker=await a_worker(tx))
    kept = await claimed(tx, worker=await a_worker(tx))
    await execute(
        tx,
        "update stepwell.workers set lease_until = stepwell.now() where id = $1",
        (await row_of(tx, lost.id))["claimed_by"],
    )
    claims = await runs.lock_lost_claims(tx, limit=10, calm=timedelta(0))
    assert [(claim.id, claim.claim_id) for claim in claims] == [(lost.id, lost.claim_id)]
    await apply(tx, plan([(claim, LOST) for claim in claims]))
    assert await state_of(tx, lost.id) is State.PENDING
    assert await state_of(tx, kept.id) is State.RUNNING


async def test_a_run_is_reaped_even_if_its_workers_row_is_gone(tx: Transaction) -> None:
    claim = await claimed(tx)
    await execute(tx, "delete from stepwell.workers")
    assert [each.id for each in await runs.lock_lost_claims(tx, limit=10, calm=timedelta(0))] == [claim.id]


async def test_a_zombie_whose_run_was_reaped_and_taken_again_is_refused(tx: Transaction) -> None:
    start = a_start(queue="zombie")
    zombie = await claimed(tx, start)
    await apply(tx, plan([(zombie, LOST)]))
    successor = await claimed(tx, start)
    assert (await apply(tx, plan([(zombie, Completed(b'"zombie"'))]))).moved == set()
    assert (await apply(tx, plan([(successor, Completed(b'"successor"'))]))).moved == {start.id}
    assert (await reads.run_info(tx, start.id)).result == "successor"


async def test_a_run_that_keeps_losing_its_worker_fails_at_its_limit(tx: Transaction) -> None:
    start = a_start(queue="poison", retry=Retry(attempts=2))
    for _ in range(2):
        claim = await claimed(tx, start)
        await apply(tx, plan([(claim, LOST)]))
    info = await reads.run_info(tx, start.id)
    assert info.state is State.FAILED
    assert info.error is not None
    assert info.error.reason is Reason.WORKER_LOST


async def test_cancelling_moves_a_claimed_run_at_once_and_its_worker_is_refused(tx: Transaction) -> None:
    claim = await claimed(tx)
    assert list((await ends.cancel(tx, [claim.id]))[0]) == [claim.id]
    assert (await apply(tx, plan([(claim, Completed(b"1"))]))).moved == set()
    assert await state_of(tx, claim.id) is State.CANCELLED


async def test_one_leader_at_a_time_and_the_term_counts_changes(tx: Transaction) -> None:
    one, two, hold = new_worker_id(), new_worker_id(), timedelta(seconds=10)
    assert await leaders.lead(tx, worker=one, services=["due", "reaper"], hold=hold) == {"due": 1, "reaper": 1}
    assert await leaders.lead(tx, worker=two, services=["due"], hold=hold) == {}
    assert await leaders.lead(tx, worker=one, services=["due"], hold=hold) == {"due": 1}
    await leaders.resign(tx, one)
    assert await leaders.lead(tx, worker=two, services=["due"], hold=hold) == {"due": 2}


async def test_a_worker_that_left_holds_no_lease(tx: Transaction) -> None:
    worker = await a_worker(tx)
    claim = await claimed(tx, worker=worker)
    await workers.leave(tx, worker)
    assert [each.id for each in await runs.lock_lost_claims(tx, limit=10, calm=timedelta(0))] == [claim.id]


@pytest.mark.parametrize("state", [State.COMPLETED, State.RUNNING, State.SCHEDULED])
async def test_a_page_shows_every_run_once_whatever_its_state(tx: Transaction, state: State) -> None:
    made = [await a_run(tx, state) for _ in range(5)]
    seen, after = [], None
    while True:
        page = await reads.page(tx, reads.Filter(states=[state]), limit=2, after=after)
        seen += [item.id for item in page.items]
        after = page.next
        if after is None:
            break
    assert seen == sorted((each.id for each in made), reverse=True)


def test_settling_goes_in_one_order_for_everyone() -> None:
    assert settle.plan([]) == settle.SettlePlan()
