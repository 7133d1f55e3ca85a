"""How attempts end. Many outcomes become few statements, one for each kind of move, in one transaction.

plan   decides the move of every outcome and gathers the arrays: no I/O
apply  speaks the statements; an id that does not come back has lost its claim
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, assert_never

import msgspec

from stepwell.engine import workflows
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
from stepwell.model.retry import LOST_TURNS, Retry
from stepwell.model.run import Claim, Reason
from stepwell.model.turn import Consequences
from stepwell.store.pool import Tx
from stepwell.store.rows import stored_error, stored_usage

Settlement = tuple[Claim, Outcome]

PAGE = 500
"""Runs that one statement moves."""


@dataclass(slots=True)
class Batch:
    """One statement's worth of moves: columns by name, as it takes them."""

    statement: str
    columns: dict[str, list[Any]] = field(default_factory=dict)
    wakes: set[str] = field(default_factory=set)
    """The queues that have work again once it is spoken."""
    turns: bool = False
    """Whether there may be workflows among them."""
    parts: bool = False
    """Whether there is more to it: the end of a run that its parent waits for, or of a workflow."""

    @property
    def soonest(self) -> timedelta | None:
        """How soon the first of them is due again."""
        return min(self.columns["delays"]) if "delays" in self.columns else None

    def pages(self) -> Iterator[dict[str, list[Any]]]:
        """Its columns, a page at a time: to find one of many results in an array, a server goes along those before."""
        count = len(self.columns["ids"])
        if count <= PAGE:
            yield self.columns
            return
        for first in range(0, count, PAGE):
            yield {name: values[first : first + PAGE] for name, values in self.columns.items()}

    def add(self, claim: Claim, **values: Any) -> None:
        self.turns = self.turns or claim.turn
        self.parts = self.parts or claim.node is not None or claim.turn
        for name, value in {"ids": claim.id, "claim_ids": claim.claim_id, **values}.items():
            self.columns.setdefault(name, []).append(value)


@dataclass(slots=True)
class Settled:
    """What became of a plan: the runs that moved, those that finished, and the queues with new work."""

    moved: set[RunId] = field(default_factory=set)
    finished: list[RunId] = field(default_factory=list)
    wakes: set[str] = field(default_factory=set)
    soonest: timedelta | None = None
    """How soon the first that was put off is due again."""
    beyond: Consequences = field(default_factory=Consequences)
    """What followed from it for others."""


FINISHING = frozenset({"complete_runs", "fail_runs"})


def plan(
    settlements: Sequence[Settlement], *, noise: Callable[[], float] = random.random, told: bool = False
) -> list[Batch]:
    """The statements that settle these, in one order for everyone: two settlers hardly ever wait in a circle. With
    `told`, whoever waits for them knows already."""
    batches: dict[str, Batch] = {}
    completed: list[tuple[Claim, bytes]] = []
    for claim, outcome in sorted(settlements, key=by_id):
        if type(outcome) is Completed:  # nearly all of them, and there is nothing to decide
            completed.append((claim, outcome.result))
        else:
            _add(batches, claim, _move(claim, outcome, noise()))
    if completed:
        batches["complete_runs"] = Batch("complete_runs", {
            "ids": [claim.id for claim, _ in completed],
            "claim_ids": [claim.claim_id for claim, _ in completed],
            "results": [result for _, result in completed],
            "usages": [stored_usage(claim.usage) for claim, _ in completed],
        }, parts=not told and any(claim.node is not None for claim, _ in completed))  # fmt: skip
    return [batches[name] for name in sorted(batches)]


def _move(claim: Claim, outcome: Outcome, noise: float) -> Move:
    if isinstance(outcome, Waiting):
        raise AssertionError("a turn is written by itself")
    if not isinstance(outcome, Failed):
        return outcome
    try:
        packed = msgspec.json.decode(claim.retry)
        # Who started a workflow by its name alone did not know that it has turns.
        retry = LOST_TURNS if claim.turn and not packed else Retry.unpacked(packed)
    except (AttributeError, StepwellError, TypeError, ValueError) as error:
        # One row that cannot be read must not stop the others of its batch, pass after pass.
        unread = f"{outcome.error.message}\n(and its retry policy cannot be read: {error})"
        return Failed(replace(outcome.error, message=unread, reason=Reason.GAVE_UP))
    return decide(outcome, retry=retry, failures=claim.failures, noise=noise, left=claim.left)


def _add(batches: dict[str, Batch], claim: Claim, move: Move) -> None:
    def batch(statement: str) -> Batch:
        return batches.setdefault(statement, Batch(statement))

    usage = stored_usage(claim.usage)
    match move:
        case Completed():
            raise AssertionError("completed runs are gathered apart")
        case Failed(error):
            batch("fail_runs").add(claim, errors=stored_error(error), usages=usage)
        case Retried(error, delay, alone):
            batch("retry_runs").add(claim, errors=stored_error(error), usages=usage, delays=delay, alones=alone)
        case Repeated(error, alone):
            batch("repeat_runs").add(claim, errors=stored_error(error), usages=usage, alones=alone)
            batches["repeat_runs"].wakes.add(claim.queue)
        case Snoozed(delay):
            batch("snooze_runs").add(claim, usages=usage, delays=delay)
        case Released():
            batch("release_runs").add(claim)
            batches["release_runs"].wakes.add(claim.queue)
        case _:
            assert_never(move)


async def apply(tx: Tx, batches: Sequence[Batch]) -> Settled:
    """running -> completed, failed, scheduled or pending: as planned. In a transaction, if there are several
    statements or one of them has `parts`."""
    settled = Settled()
    for batch in batches:
        moved = [RunId(row["id"]) for page in batch.pages() for row in await tx.rows(batch.statement, **page)]
        settled.moved.update(moved)
        settled.wakes |= batch.wakes
        delays = [each for each in (settled.soonest, batch.soonest) if each is not None]
        settled.soonest = min(delays, default=None)
        if batch.statement in FINISHING:
            settled.finished += moved
            if batch.parts:
                await workflows.ended_from_outside(tx, moved, settled.beyond, turns=batch.turns)
    settled.wakes |= settled.beyond.wakes
    return settled
