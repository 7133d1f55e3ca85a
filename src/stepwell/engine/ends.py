"""Ends of runs: the only place where a run becomes a finished run, and everything that follows from its end.

    end                by the worker that claimed it: fenced by (id, claim_id)          ──┐
    end_from_outside   without a claim: cancelled, expired, past its deadline           ──┼──► _follow
    exchange_runs      the hot path, in claims.sql: completed, and nothing follows      ──┘

These follow in the same transaction: the last event of a workflow that did not end by its own code, the end of the runs
that it started, the arrival for the workflow that waits for this run, and the start of a failure handler. Locks are
taken upwards: a child before its parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from stepwell.engine import arrivals
from stepwell.model.ids import RunId
from stepwell.model.run import OVERDUE, Cancelled, Claim, EndedRun, Error
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.model.word import Word
from stepwell.store import rows
from stepwell.store.pool import Row, Tx

PAGE = 500
"""Runs that one statement ends."""
PAGE_BYTES = 8 * 1024 * 1024
"""Bytes of results per statement."""
CHILDREN = 2_000
"""Children of workflows that one statement looks up."""

_NO_RESULT = b"null"


@dataclass(frozen=True, slots=True, eq=False)
class ClaimEnd:
    """A claim that ends its run: with a result, an error, or as cancelled."""

    claim: Claim
    state: State
    result: bytes = _NO_RESULT
    error: Error | None = None


@dataclass(slots=True)
class EndResult:
    """The outcome of a call of `end`."""

    moved: set[RunId] = field(default_factory=set)
    """Runs that have ended. The other claims were lost."""
    said: bool = False
    """True if the notification was sent with this statement."""


@dataclass(slots=True)
class _Following:
    """Ended runs, grouped by what follows from their end."""

    workflows: list[UUID] = field(default_factory=list)
    parts: list[UUID] = field(default_factory=list)
    handled: list[UUID] = field(default_factory=list)


async def end(
    tx: Tx,
    endings: Sequence[ClaimEnd],
    after: Consequences,
    *,
    by_own_code: bool = False,
    told: bool = False,
    word: Word | None = None,
) -> EndResult:
    """running -> completed, failed, cancelled: end claims, with all that follows. A run that is not in `moved` has lost
    its claim.

    `by_own_code` says that the workflows among them have written their last event. `told` says that the waiting
    workflows already know of these ends. Without a transaction, nothing may follow from them.
    """
    ended = EndResult()
    endings = sorted(endings, key=lambda each: (each.claim.id.bytes, each.claim.attempt))
    for page in _pages(endings):
        ids = [each.claim.id for each in page]
        (row,) = await tx.rows("end_runs", **_columns(page), channel=word and word.channel, word=word and word.text)
        ended.moved.update(ids if row["moved"] is None else row["moved"])
        ended.said = row["said"]
        follows = _Following([] if by_own_code else row["workflows"], [] if told else row["parts"], row["handled"])
        await _follow(tx, follows, after)
    return ended


async def end_from_outside(
    tx: Tx, ids: Sequence[UUID], state: State, after: Consequences, *, error: Error | None = None, force: bool = True
) -> dict[UUID, Cancelled]:
    """scheduled, waiting, pending, running, paused -> failed, cancelled, expired: end runs without a claim, with all
    that follows. Without `force`, a workflow that has begun is left alone."""
    ended = await _end_unclaimed(tx, ids, state, error=error, force=force)
    follows = _Following(
        [row["id"] for row in ended if row["is_workflow"]],
        [row["id"] for row in ended if row["is_part"]],
        [row["id"] for row in ended if row["is_handled"]],
    )
    await _follow(tx, follows, after)
    return {row["id"]: Cancelled(rows.ended_run(row), row["freed"]) for row in ended}


async def cancel(tx: Tx, ids: Sequence[UUID], *, force: bool = False) -> tuple[dict[UUID, Cancelled], Consequences]:
    """scheduled, waiting, pending, running, paused -> cancelled: cancel runs, with all that follows. Without `force`, a
    workflow that has begun is asked to end instead, so that it can clean up."""
    after = Consequences()
    if force:
        await lock_children(tx, ids)
    moved = await end_from_outside(tx, sorted(set(ids)), State.CANCELLED, after, force=force)
    after.asked += await arrivals.ask_to_end(tx, sorted(set(ids) - moved.keys()), after)
    after.wakes |= {each.freed for each in moved.values() if each.freed is not None}
    after.gone += [each.run for each in moved.values()]
    return moved, after


async def expire(tx: Tx, after: Consequences, *, limit: int) -> list[EndedRun]:
    """scheduled, waiting, pending, paused -> expired: expire runs that were not started in time, with all that
    follows."""
    late = [row["id"] for row in await tx.rows("expired_runs", limit=limit)]
    ended = await end_from_outside(tx, sorted(late), State.EXPIRED, after) if late else {}
    return [each.run for each in ended.values()]


async def fail_overdue(tx: Tx, after: Consequences, *, limit: int) -> list[EndedRun]:
    """scheduled, waiting, pending, paused -> failed: fail runs that did not end by their deadline, with all that
    follows."""
    await lock_children(tx, [row["id"] for row in await tx.rows("overdue_workflows", limit=limit)])
    late = [row["id"] for row in await tx.rows("overdue_runs", limit=limit)]
    ended = await end_from_outside(tx, sorted(late), State.FAILED, after, error=OVERDUE) if late else {}
    return [each.run for each in ended.values()]


async def lock_children(tx: Tx, ids: Sequence[UUID]) -> list[UUID]:
    """Lock the live runs that these workflows started. Call it before locking the workflows: a child is locked before
    its parent."""
    return [row["id"] for row in await tx.rows("children_of", ids=list(ids))] if ids else []


async def cancel_children(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
    """Cancel the live runs that these workflows started."""
    await cancel_parts(tx, await lock_children(tx, ids), after)


async def cancel_parts(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
    """Cancel runs that no workflow waits for any longer. A workflow among them is asked to end, so that it can clean
    up.

    Tasks are locked before workflows, as everywhere: a workflow may be the parent of such a task.
    """
    ids = sorted(set(ids))
    for page in [ids[first : first + CHILDREN] for first in range(0, len(ids), CHILDREN)]:
        tasks = [row["id"] for row in await tx.rows("kinds_of", ids=page) if row["kind"] != "workflow"]
        ended = await _end_unclaimed(tx, tasks, State.CANCELLED, force=False) if tasks else []
        after.cancelled += [row["id"] for row in ended]
        after.gone += [rows.ended_run(row) for row in ended]
        await arrivals.ask_to_end(tx, sorted(set(page).difference(after.cancelled)), after)


async def tell_parents(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
    """waiting -> pending: tell the workflows that wait for runs which ended in this transaction."""
    for row in await tx.rows("tell_parents", ids=list(ids)):
        arrivals.note(row, after)


async def note_parents(tx: Tx, ids: Sequence[UUID], after: Consequences) -> None:
    """Note the workflows that wait for these finished runs, when the answer that named them was lost."""
    for row in await tx.rows("parents_of", ids=list(ids)):
        arrivals.note(row, after)


async def _end_unclaimed(
    tx: Tx, ids: Sequence[UUID], state: State, *, force: bool, error: Error | None = None
) -> Sequence[Row]:
    """scheduled, waiting, pending, running, paused -> failed, cancelled, expired: one statement, without what
    follows."""
    stored = None if error is None else rows.stored_error(error)
    return await tx.rows("end_unclaimed_runs", ids=list(ids), state=state, error=stored, force=force)


async def _follow(tx: Tx, ended: _Following, after: Consequences) -> None:
    """Do what follows from ends of runs: end histories, cancel children, tell parents, start failure handlers."""
    if ended.workflows:
        left = [row["run_id"] for row in await tx.rows("end_histories", ids=ended.workflows)]
        await cancel_children(tx, left, after)
    if ended.parts:
        await tell_parents(tx, ended.parts, after)
    if ended.handled:
        for row in await tx.rows("start_handlers", ids=ended.handled):
            if row["state"] == State.PENDING:
                after.wakes.add(row["queue"])
            else:
                after.due_in(timedelta(seconds=row["wait"]))


def _columns(page: Sequence[ClaimEnd]) -> dict[str, object]:
    return {
        "ids": [each.claim.id for each in page],
        "claim_ids": [each.claim.claim_id for each in page],
        "states": [each.state.value for each in page],
        "results": _json([each.result for each in page]),
        "errors": _json([None if each.error is None else rows.stored_error(each.error) for each in page]),
        "usages": _json([rows.stored_usage(each.claim.usage) for each in page]),
    }


def _json(values: Sequence[bytes | None]) -> bytes | None:
    """Return one JSON array of the values, or None if all of them are empty."""
    if not any(values):
        return None
    return b"[%b]" % b",".join([b"null" if each is None else each for each in values])


def _pages(endings: Sequence[ClaimEnd]) -> Iterator[Sequence[ClaimEnd]]:
    """Split the endings by number and by bytes: one JSON array holds no more than 256 MB."""
    first = size = 0
    for place, each in enumerate(endings):
        size += len(each.result)
        if place > first and (place - first >= PAGE or size > PAGE_BYTES):
            yield endings[first:place]
            first, size = place, len(each.result)
    if endings:
        yield endings[first:]
