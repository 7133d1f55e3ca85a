"""Forks: a new run that begins with a part of another run's history. Retrying a failed workflow is a fork."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from msgspec.structs import replace

from stepwell.engine import reads, runs, workflows
from stepwell.model.errors import NotFound, WrongUse
from stepwell.model.events import Event
from stepwell.model.forks import Cut, cut, last_good
from stepwell.model.ids import RunId
from stepwell.model.pins import pin_of, plain_name
from stepwell.model.turn import OpenRun
from stepwell.replay.called import ChildIds
from stepwell.replay.timers import NEVER
from stepwell.store import history as stored
from stepwell.store.pool import Tx


async def fork(tx: Tx, origin: UUID, new_id: RunId, *, at: int | None, again: bool = False) -> set[str]:
    """-> pending: start a run with another run's history up to this event, or up to its last good point. Return the
    queues with work.

    What was under way at that event is started anew: tasks and children with their inputs, timers with their remaining
    time.
    """
    if again:
        # The first try may have committed. It was one transaction, so it did all or nothing.
        await runs.note_repeated_starts(tx, [new_id])
        if await reads.existing(tx, [new_id]):
            return set()
    found = await tx.rows("run_by_id", id=origin)
    if not found:
        raise NotFound("id", str(origin))
    if found[0]["kind"] != "workflow":
        raise WrongUse(f"{found[0]['name']} {origin} is a {found[0]['kind']}: only a workflow has a history to fork")
    events = await workflows.history(tx, origin)
    part = cut(events, last_good(events) if at is None else at)
    await _refuse_if_gone(tx, origin, part)
    return await _begin(tx, origin, new_id, name=found[0]["name"], part=part, events=events, again=again)


async def _begin(
    tx: Tx, origin: UUID, new_id: RunId, *, name: str, part: Cut, events: Sequence[Event], again: bool
) -> set[str]:
    """-> pending: insert the fork, the children that were under way, and the copied history."""
    begun = part.begun.idx if part.begun is not None else 0
    made = await tx.rows(
        "fork_run",
        id=new_id,
        name=name,
        origin=origin,
        recorded=part.last,
        history_from=begun,
        repeated=again,
        deadline=_time_left(events, part.last),
    )
    queues = {row["queue"] for row in made}
    if part.begun is None or not made:
        return queues
    ids = ChildIds(new_id, begun)
    new_ids = {each.idx: ids.id(each.command or 0, each.at) for each in part.runs}
    queues |= await _start_children(tx, new_id, part, new_ids)
    changed = await _changed(tx, origin, part, events, new_ids)
    await tx.rows(
        "copy_history", id=new_id, origin=origin, last=part.last,
        idxs=[each.idx for each in changed], datas=[stored.details(each) for each in changed],
    )  # fmt: skip
    if part.published is not None:
        await tx.rows("copy_published", id=new_id, state=part.published.value)
    return queues


def _time_left(events: Sequence[Event], last: int) -> timedelta | None:
    """Return how much of the workflow's timeout was left at that event."""
    if not events or (by := events[0].when) is None:
        return None
    return max(by - events[max(last, 1) - 1].at, timedelta(0))


async def _start_children(tx: Tx, new_id: RunId, part: Cut, new_ids: dict[int, RunId]) -> set[str]:
    """-> pending, scheduled: start anew the children that were under way."""
    if not part.runs:
        return set()
    made = await tx.rows(
        "fork_children", parent=new_id, ids=[new_ids[each.idx] for each in part.runs],
        origins=[each.run_id for each in part.runs], nodes=[str(each.command) for each in part.runs],
    )  # fmt: skip
    return {row["queue"] for row in made}


async def _refuse_if_gone(tx: Tx, origin: UUID, part: Cut) -> None:
    """Raise WrongUse if a run that must be started anew is no longer kept. Called before anything is written."""
    there = await reads.existing(tx, [each.run_id for each in part.runs if each.run_id is not None])
    for each in part.runs:
        if each.run_id not in there:
            raise WrongUse(
                f"cannot fork {origin} at event {part.last}: {each.name} {each.run_id} was under way there, and its "
                "run is no longer kept, so it cannot be started anew. Fork at an event before or after it was under way"
            )


async def _changed(tx: Tx, origin: UUID, part: Cut, events: Sequence[Event], new_ids: dict[int, RunId]) -> list[Event]:
    """Return the events that differ in the fork."""
    assert part.begun is not None
    # The first event names the origin, because the fork repeats the origin's random numbers.
    changed = [replace(part.begun, run_id=part.begun.run_id or origin)]
    changed += [replace(each, run_id=new_ids[each.idx]) for each in part.runs]
    if part.timers:
        passed = (await tx.rows("time_now"))[0]["now"] - events[part.last - 1].at
        later = max(passed, timedelta(0))
        changed += [replace(each, when=_moved(each.when, later)) for each in part.timers if each.when is not None]
    return changed


def _moved(when: datetime, later: timedelta) -> datetime:
    """Postpone a timer, unless it is one that never fires."""
    return when if when > NEVER - later else when + later


async def start_again(tx: Tx, origin: UUID, new_id: RunId, *, again: bool) -> set[str]:
    """-> pending: start a finished run once more. A failed workflow goes on from its last good point. Return the queues
    with work."""
    if await failed_workflows(tx, [origin]):
        return await fork(tx, origin, new_id, at=None, again=again)
    queue = await runs.start_again(tx, origin, new_id)
    if again:
        await runs.undo_finished_starts(tx, [new_id])
        await runs.note_repeated_starts(tx, [new_id])
    return {queue}


async def failed_workflows(tx: Tx, ids: Sequence[UUID]) -> set[UUID]:
    """Return the ids of those runs that are failed workflows."""
    return {row["id"] for row in await tx.rows("forkable", ids=list(ids))}


async def open_runs(tx: Tx, *, after: UUID, limit: int) -> list[OpenRun]:
    """Return workflows that have begun and are not finished, oldest first, behind `after`."""
    return [
        OpenRun(
            row["id"], plain_name(row["name"]), pin_of(row["name"]), row["key"], row["queue"], row["parent_id"],
            row["root_id"], row["tags"], row["input"], row["history_from"],
        )
        for row in await tx.rows("open_workflows", after=after, limit=limit)
    ]  # fmt: skip


async def count_open(tx: Tx) -> int:
    """Count the workflows that have begun and are not finished."""
    return int((await tx.rows("count_open_workflows"))[0]["runs"])
