"""The matrix: every move against every state. A move goes where the table says, or nothing happens."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from stepwell.engine import arrivals, ends, runs, turns, workflows
from stepwell.engine.ends import ClaimEnd
from stepwell.model.commands import Ended
from stepwell.model.events import Event, EventType
from stepwell.model.ids import new_claim_id
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim, Order, Place, Wanted
from stepwell.model.states import FINISHED, LIVE, MOVES, STARTS, State
from stepwell.model.turn import Advance, Consequences
from stepwell.replay.replay import LONG_AGO
from stepwell.store.pool import Transaction
from stepwell.store.rows import stored_error
from stepwell.store.statements import load
from tests.factory import BOOM, Made, a_run, a_worker, another_claim, attempts_of, execute, row_of, state_of

Speak = Callable[[Transaction, Claim], Awaitable[Any]]
FENCED = (
    "exchange_runs",
    "end_runs",
    "retry_runs",
    "repeat_runs",
    "snooze_runs",
    "release_runs",
    "advance_turns",
    "complete_turns",
)


def settling(statement: str, **columns: Any) -> Speak:
    async def speak(tx: Transaction, claim: Claim) -> Any:
        return await tx.rows(statement, ids=[claim.id], claim_ids=[claim.claim_id], **columns)

    return speak


async def claim_it(tx: Transaction, claim: Claim) -> Any:
    wanted = Wanted(await a_worker(tx), [claim.queue], ["tests.task"], 9, alone=True)
    return await runs.claim(tx, wanted, new_claim_id())


async def claim_from_its_queue(tx: Transaction, claim: Claim) -> Any:
    wanted = Wanted(await a_worker(tx), None, ["tests.task"], 9, alone=False)
    return await runs.claim_from(tx, claim.queue, wanted, new_claim_id())


async def claim_limited_it(tx: Transaction, claim: Claim) -> Any:
    await execute(tx, "insert into stepwell.queues (name, concurrency) values ($1, 9)", claim.queue)
    wanted = Wanted(await a_worker(tx), [claim.queue], ["tests.task"], 9, alone=True)
    return await runs.claim_limited(tx, wanted, new_claim_id())


async def exchange_it(tx: Transaction, claim: Claim) -> Any:
    """Complete it, and go on in its queue from the very front."""
    order = Order(new_claim_id(), [Place(claim.queue, 0, UUID(int=0))], 9)
    completed = [(claim, Completed(b"1"))]
    exchanged = await runs.exchange(tx, completed, order, worker=await a_worker(tx), names=["tests.task"])
    return [] if exchanged.lost else [{"id": claim.id}]


def ending(state: State) -> Speak:
    async def speak(tx: Transaction, claim: Claim) -> Any:
        result, error = (b"null", BOOM) if state is State.FAILED else (b"1", None)
        ended = await ends.end(tx, [ClaimEnd(claim, state, result, error)], Consequences())
        return [{"id": run_id} for run_id in ended.moved]

    return speak


async def expire_it(tx: Transaction, claim: Claim) -> Any:
    await execute(tx, "update stepwell.runs set expires_at = stepwell.now() - interval '1s' where id = $1", claim.id)
    return await ends.expire(tx, Consequences(), limit=1000)


async def fail_overdue_it(tx: Transaction, claim: Claim) -> Any:
    await execute(tx, "update stepwell.runs set deadline_at = stepwell.now() - interval '1s' where id = $1", claim.id)
    return await ends.fail_overdue(tx, Consequences(), limit=1000)


async def cancel_it(tx: Transaction, claim: Claim) -> Any:
    return await ends.cancel(tx, [claim.id])


async def as_workflow(tx: Transaction, claim: Claim, **more: Any) -> None:
    await execute(
        tx,
        "update stepwell.runs set kind = 'workflow', recorded = 0, arrived = 0, blocked = $2 where id = $1",
        claim.id,
        more.get("blocked"),
    )


async def advance_it(tx: Transaction, claim: Claim) -> Any:
    await as_workflow(tx, claim)
    advance = Advance(claim, recorded=0, seen=0)
    advanced = await turns.advance(tx, [advance], worker=await a_worker(tx), claim_id=new_claim_id())
    return [{"id": run_id} for run_id in advanced.turns]


async def complete_turn(tx: Transaction, claim: Claim) -> Any:
    await as_workflow(tx, claim)
    ended = Ended(EventType.WORKFLOW_COMPLETED, b"1")
    advance = Advance(claim, recorded=1, events=[Event(1, ended.type, LONG_AGO, value=b"1")], ended=ended).leave()
    advanced = await turns.advance(tx, [advance], worker=await a_worker(tx), claim_id=new_claim_id())
    return [{"id": run_id} for run_id in advanced.turns]


async def tell_it(tx: Transaction, claim: Claim) -> Any:
    """A run of its own has ended."""
    await as_workflow(tx, claim)
    child = await a_run(tx, State.RUNNING)
    await execute(tx, "update stepwell.runs set parent_id = $2, node = '1' where id = $1", child.id, claim.id)
    await SPEAK["end_runs"](tx, child.claim)
    return await tx.rows("tell_parents", ids=[child.id])


async def arrive_it(tx: Transaction, claim: Claim) -> Any:
    await as_workflow(tx, claim)
    return await arrivals.arrive(tx, claim.id, Event(0, EventType.CANCEL_REQUESTED, LONG_AGO), Consequences())


async def unblock_it(tx: Transaction, claim: Claim) -> Any:
    await as_workflow(tx, claim, blocked=b'{"version": "old"}')
    return await workflows.unblock(tx, {"tests.task": "new"})


SPEAK: dict[str, Speak] = {
    "claim_runs": claim_it,
    "claim_from_queue": claim_from_its_queue,
    "claim_limited_runs": claim_limited_it,
    "exchange_runs": exchange_it,
    "end_runs": ending(State.COMPLETED),
    "retry_runs": settling(
        "retry_runs", errors=[stored_error(BOOM)], usages=[None], delays=[timedelta(seconds=5)], alones=[False]
    ),
    "repeat_runs": settling("repeat_runs", errors=[stored_error(BOOM)], usages=[None], alones=[False]),
    "snooze_runs": settling("snooze_runs", usages=[None], delays=[timedelta(seconds=5)]),
    "release_runs": settling("release_runs"),
    "due_runs": lambda tx, _claim: tx.rows("due_runs", limit=1000),
    "end_unclaimed_runs": cancel_it,
    "advance_turns": advance_it,
    "complete_turns": complete_turn,
    "tell_parents": tell_it,
    "arrive": arrive_it,
    "unblock_runs": unblock_it,
    "pause_runs": lambda tx, claim: tx.rows("pause_runs", ids=[claim.id], by="me"),
    "resume_runs": lambda tx, claim: tx.rows("resume_runs", ids=[claim.id]),
}


def test_every_move_of_the_table_is_in_the_matrix() -> None:
    assert SPEAK.keys() == MOVES.keys()


def test_the_sql_declares_the_moves_of_the_table() -> None:
    declared = {statement.name: statement.moves for statement in load("stepwell").values() if statement.moves}
    assert declared.keys() == MOVES.keys() | STARTS.keys()
    for name, text in declared.items():
        moves = {}
        for each in text.split(";"):
            sources, targets = (
                {State(word.strip()) for word in side.split(",") if word.strip()} for side in each.split("->")
            )
            moves |= dict.fromkeys(sources or [None], targets)
        assert moves == ({None: STARTS[name]} if name in STARTS else MOVES[name]), name


def test_no_other_statement_changes_a_state() -> None:
    for statement in load("stepwell").values():
        if statement.moves is None:
            assert "set state" not in statement.sql, statement.name
            assert "into stepwell.runs" not in statement.sql, statement.name
            assert "into stepwell.finished_runs" not in statement.sql, statement.name


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("move", list(MOVES))
async def test_a_move_goes_where_the_table_says_or_nothing_happens(tx: Transaction, move: str, state: State) -> None:
    made = await a_run(tx, state)
    before, history = await row_of(tx, made.id), await attempts_of(tx, made.id)
    await SPEAK[move](tx, made.claim)
    allowed = MOVES[move].get(state)
    if allowed:
        assert await state_of(tx, made.id) in allowed
    else:
        after = await row_of(tx, made.id)
        changed = {"expires_at", "deadline_at", "kind", "recorded", "arrived", "blocked", "pausing"}
        assert {k: v for k, v in after.items() if k not in changed} == {
            k: v for k, v in before.items() if k not in changed
        }
        assert await attempts_of(tx, made.id) == history


@pytest.mark.parametrize("move", FENCED)
async def test_a_move_by_another_claim_is_refused_in_the_right_state(tx: Transaction, move: str) -> None:
    made = await a_run(tx, State.RUNNING)
    before = await row_of(tx, made.id)
    assert await SPEAK[move](tx, another_claim(made.claim)) == []
    assert {**await row_of(tx, made.id), "kind": "task"} == before
    assert [each["outcome"] for each in await attempts_of(tx, made.id)] == ["running"]


@pytest.mark.parametrize("move", FENCED)
async def test_a_move_says_which_runs_it_moved(tx: Transaction, move: str) -> None:
    made = await a_run(tx, State.RUNNING)
    assert [row["id"] for row in await SPEAK[move](tx, made.claim)] == [made.id]


@pytest.mark.parametrize("move", FENCED)
async def test_a_move_made_twice_moves_once(tx: Transaction, move: str) -> None:
    made: Made = await a_run(tx, State.RUNNING)
    await SPEAK[move](tx, made.claim)
    after = await row_of(tx, made.id)
    assert await SPEAK[move](tx, made.claim) == []
    assert await row_of(tx, made.id) == after


ENDS: dict[str, tuple[Speak, frozenset[State], State]] = {
    "complete": (ending(State.COMPLETED), frozenset({State.RUNNING}), State.COMPLETED),
    "fail": (ending(State.FAILED), frozenset({State.RUNNING}), State.FAILED),
    "end as cancelled": (ending(State.CANCELLED), frozenset({State.RUNNING}), State.CANCELLED),
    "expire": (expire_it, LIVE - {State.RUNNING}, State.EXPIRED),
    "fail what is overdue": (fail_overdue_it, LIVE - {State.RUNNING}, State.FAILED),
    "cancel": (cancel_it, LIVE, State.CANCELLED),
}


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("how", list(ENDS))
async def test_a_run_ends_from_the_states_of_its_ending_and_from_no_other(
    tx: Transaction, how: str, state: State
) -> None:
    made = await a_run(tx, state)
    speak, sources, target = ENDS[how]
    await speak(tx, made.claim)
    assert await state_of(tx, made.id) is (target if state in sources else state)


async def test_a_failed_attempt_counts_and_a_passed_deadline_does_not(tx: Transaction) -> None:
    failed, late = await a_run(tx, State.RUNNING), await a_run(tx, State.PENDING)
    await ending(State.FAILED)(tx, failed.claim)
    await fail_overdue_it(tx, late.claim)
    assert (await row_of(tx, failed.id))["failures"] == 1
    assert (await row_of(tx, late.id))["failures"] == 0


def test_live_and_finished_states_are_all_states() -> None:
    assert set(State) == LIVE | FINISHED
    assert not LIVE & FINISHED
