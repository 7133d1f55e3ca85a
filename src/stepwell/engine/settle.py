"""Settling: how attempts end. Many outcomes become few statements, one for each kind of move, in one transaction.

plan   decides the move of every outcome and gathers the arrays: no I/O
apply  executes the statements; an id that does not come back has lost its claim
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, assert_never

from stepwell.engine import ends
from stepwell.engine.ends import ClaimEnd
from stepwell.engine.runs import by_id
from stepwell.model.errors import StepwellError
from stepwell.model.ids import RunId
from stepwell.model.outcome import (
    Completed,
    Failed,
    Move,
    Outcome,
    Released,
    Repeated,
    Retried,
    Snoozed,
    Waiting,
    decide,
)
from stepwell.model.retry import policy_of
from stepwell.model.run import Claim, Reason
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.store.pool import Tx
from stepwell.store.rows import stored_error, stored_usage

Settlement = tuple[Claim, Outcome]

PAGE = 500
"""Runs that one statement moves."""


@dataclass(slots=True)
class Batch:
    """The moves of one statement: its parameters as columns by name."""

    statement: str
    columns: dict[str, list[Any]] = field(default_factory=dict)
    wakes: set[str] = field(default_factory=set)
    """Queues that have work again once the statement is executed."""

    @property
    def soonest(self) -> timedelta | None:
        """The shortest delay until one of the runs is due again."""
        return min(self.columns["delays"]) if "delays" in self.columns else None

    def pages(self) -> Iterator[dict[str, list[Any]]]:
        """Yield the columns, a page at a time: the server finds an element of an array by walking over all elements
        before it."""
        count = len(self.columns["ids"])
        if count <= PAGE:
            yield self.columns
            return
        for first in range(0, count, PAGE):
            yield {name: values[first : first + PAGE] for name, values in self.columns.items()}

    def add(self, claim: Claim, **values: Any) -> None:
        """Append the values of one claim to the columns."""
        for name, value in {"ids": claim.id, "claim_ids": claim.claim_id, **values}.items():
            self.columns.setdefault(name, []).append(value)


@dataclass(slots=True)
class SettlePlan:
    """The plan for a group of outcomes: the runs that end, and a batch for each other kind of move."""

    endings: list[ClaimEnd] = field(default_factory=list)
    batches: dict[str, Batch] = field(default_factory=dict)
    moves: dict[Claim, Move] = field(default_factory=dict)
    """The decision for each claim whose outcome needed one: all but completed runs."""

    @property
    def is_one_statement(self) -> bool:
        """True if the plan needs no transaction: it is a single statement, from which nothing follows."""
        if len(self.batches) + bool(self.endings) > 1:
            return False
        return not any(
            each.claim.node is not None or each.claim.turn or each.state is State.FAILED for each in self.endings
        )

    def batch(self, statement: str) -> Batch:
        """Return the batch of a statement, made on first use."""
        return self.batches.setdefault(statement, Batch(statement))


@dataclass(slots=True)
class Settled:
    """The result of a plan: the runs that moved, those that finished, and what followed for others."""

    moved: set[RunId] = field(default_factory=set)
    moves: dict[Claim, Move] = field(default_factory=dict)
    """The decision for each claim but those of completed runs, whether or not the run moved."""
    finished: list[RunId] = field(default_factory=list)
    after: Consequences = field(default_factory=Consequences)


def plan(settlements: Sequence[Settlement], *, noise: Callable[[], float] = random.random) -> SettlePlan:
    """Decide the move of each outcome, in the order of their ids, so that two settlers hardly ever deadlock."""
    planned = SettlePlan()
    for claim, outcome in sorted(settlements, key=by_id):
        if type(outcome) is Completed:  # the most frequent outcome, and there is nothing to decide
            planned.endings.append(ClaimEnd(claim, State.COMPLETED, outcome.result))
        else:
            move = planned.moves[claim] = _move(claim, outcome, noise())
            _add(planned, claim, move)
    return planned


def _move(claim: Claim, outcome: Outcome, noise: float) -> Move:
    if isinstance(outcome, Waiting):
        raise AssertionError("a turn that waits is written by engine/turns.py, and is not settled here")
    if not isinstance(outcome, Failed):
        return outcome
    try:
        retry = policy_of(claim.retry, turn=claim.turn)
    except (AttributeError, StepwellError, TypeError, ValueError) as error:
        # One unreadable row must not block the others of its batch, pass after pass.
        unread = f"{outcome.error.message}\n(and its retry policy cannot be read: {error})"
        return Failed(replace(outcome.error, message=unread, reason=Reason.GAVE_UP))
    return decide(outcome, retry=retry, failures=claim.failures, noise=noise, left=claim.left)


def _add(planned: SettlePlan, claim: Claim, move: Move) -> None:
    usage = stored_usage(claim.usage)
    match move:
        case Completed(result):
            planned.endings.append(ClaimEnd(claim, State.COMPLETED, result))
        case Failed(error):
            planned.endings.append(ClaimEnd(claim, State.FAILED, error=error))
        case Retried(error, delay, alone):
            planned.batch("retry_runs").add(
                claim, errors=stored_error(error), usages=usage, delays=delay, alones=alone
            )  # fmt: skip
        case Repeated(error, alone):
            planned.batch("repeat_runs").add(claim, errors=stored_error(error), usages=usage, alones=alone)
            planned.batch("repeat_runs").wakes.add(claim.queue)
        case Snoozed(delay):
            planned.batch("snooze_runs").add(claim, usages=usage, delays=delay)
        case Released():
            planned.batch("release_runs").add(claim)
            planned.batch("release_runs").wakes.add(claim.queue)
        case _:
            assert_never(move)


async def apply(tx: Tx, planned: SettlePlan, *, told: bool = False) -> Settled:
    """running -> completed, failed, scheduled, pending: execute the plan. It needs a transaction, unless it is one
    statement. `told` says that the workflows that wait for these runs already know of their end."""
    settled = Settled()
    settled.moves = planned.moves
    if planned.endings:
        ended = await ends.end(tx, planned.endings, settled.after, told=told)
        settled.finished = [each.claim.id for each in planned.endings if each.claim.id in ended.moved]
        settled.moved |= ended.moved
    for _, batch in sorted(planned.batches.items()):
        for page in batch.pages():
            settled.moved.update(RunId(row["id"]) for row in await tx.rows(batch.statement, **page))
        settled.after.wakes |= batch.wakes
        settled.after.due_in(batch.soonest)
    return settled
