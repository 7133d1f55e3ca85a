"""Conversion of telemetry facts to the events that hooks receive. Events without a hook are not made."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from stepwell.model.errors import StepwellError
from stepwell.model.events import EventType
from stepwell.model.hooks import Event, RunEvent, RunEventName, WorkerEvent, WorkerEventName
from stepwell.model.outcome import Completed, Failed, Move, Outcome, Repeated, Retried, Snoozed
from stepwell.model.pins import plain_name
from stepwell.model.retry import policy_of
from stepwell.model.run import Claim, EndedRun, Error, Reason
from stepwell.model.turn import Advance

Facts = Mapping[str, Any]
Names = Collection[str]
Make = Callable[[Facts, Names], Iterator[Event]]

ENDS: dict[EventType, RunEventName] = {
    EventType.WORKFLOW_COMPLETED: "run.completed",
    EventType.WORKFLOW_FAILED: "run.failed",
    EventType.WORKFLOW_CANCELLED: "run.cancelled",
}


def events_of(name: str, facts: Facts, wanted: Names) -> Iterator[Event]:
    """Yield the events that follow from this fact, of the types in `wanted`."""
    make = _MAKERS.get(name)
    if make is not None:
        for event in make(facts, wanted):
            if event.type in wanted:
                yield event


def _settled(facts: Facts, wanted: Names) -> Iterator[Event]:
    moves: Mapping[Claim, Move] = facts["moves"]
    if not moves and "run.completed" not in wanted:
        return
    group: Sequence[tuple[Claim, Outcome]] = facts["settlements"]
    # If the group has two claims of one run, only the later one can have been settled.
    last: dict[UUID, int] = {}
    for claim, _ in group:
        last[claim.id] = max(claim.attempt, last.get(claim.id, 0))
    lost = facts["lost"]
    for claim, outcome in group:
        if claim.id not in lost and claim.attempt == last[claim.id]:
            move = outcome if isinstance(outcome, Completed) else moves.get(claim)
            event = None if move is None else _of_move(claim, move, _worker(facts))
            if event is not None:
                yield event


def _of_move(claim: Claim, move: Move, worker: UUID | None) -> RunEvent | None:
    match move:
        case Completed():
            return _of_claim("run.completed", claim, worker)
        case Failed(error):
            return _of_claim("run.failed", claim, worker, error=error, max_attempts=_max_attempts(claim))
        case Retried(error, delay, _):
            most = _max_attempts(claim)
            return _of_claim("run.retrying", claim, worker, error=error, max_attempts=most, again_in=delay)
        case Repeated(error, _):
            most = _max_attempts(claim)
            return _of_claim("run.retrying", claim, worker, error=error, max_attempts=most, again_in=timedelta(0))
        case Snoozed(delay):
            return _of_claim("run.snoozed", claim, worker, again_in=delay)
        case _:
            return None  # a released run has neither ended nor failed


def _advanced(facts: Facts, wanted: Names) -> Iterator[Event]:
    advances: Sequence[Advance] = facts["advances"]
    for advance in advances:
        type = None if advance.ended is None else ENDS.get(advance.ended.type)
        if advance.ended is not None and type is not None and type in wanted:
            yield _of_claim(type, advance.claim, _worker(facts), error=advance.ended.error)


def _blocked(facts: Facts, _wanted: Names) -> Iterator[Event]:
    error = Error("stepwell.Nondeterminism", str(facts["error"]), Reason.RAISED)
    yield _of_claim("workflow.blocked", facts["claim"], _worker(facts), error=error)


def _reaped(facts: Facts, wanted: Names) -> Iterator[Event]:
    yield from _settled(facts, wanted)
    for info in facts["workers"]:
        if info.state == "lost":
            queues = None if info.queues is None else tuple(info.queues)
            yield WorkerEvent(
                type="worker.lost", worker=info.id, name=info.name, host=info.host, pid=info.pid, queues=queues,
                slots=info.slots, at=_now(),
            )  # fmt: skip


def _due(facts: Facts, _wanted: Names) -> Iterator[Event]:
    error: Error | None = facts["error"]
    for run in facts["runs"]:
        yield _of_ended("run.expired" if error is None else "run.failed", run, error=error)


def _cancelled(facts: Facts, _wanted: Names) -> Iterator[Event]:
    for run in facts["runs"]:
        yield _of_ended("run.cancelled", run)


def _worker_event(type: WorkerEventName) -> Make:
    def make(facts: Facts, _wanted: Names) -> Iterator[Event]:
        who = facts.get("worker")
        if who is not None:
            queues = None if who.queues is None else tuple(who.queues)
            yield WorkerEvent(
                type=type, worker=who.id, name=who.name, host=who.host, pid=who.pid, queues=queues, slots=who.slots,
                at=_now(),
            )  # fmt: skip

    return make


_MAKERS: dict[str, Make] = {
    "worker.settled": _settled,
    "worker.advanced": _advanced,
    "workflow.blocked": _blocked,
    "reaper.reaped": _reaped,
    "due.ended": _due,
    "runs.cancelled": _cancelled,
    "worker.ready": _worker_event("worker.ready"),
    "worker.stopping": _worker_event("worker.stopping"),
    "worker.stopped": _worker_event("worker.stopped"),
}


def _of_claim(
    type: RunEventName,
    claim: Claim,
    worker: UUID | None,
    *,
    error: Error | None = None,
    max_attempts: int | None = None,
    again_in: timedelta | None = None,
) -> RunEvent:
    now, failed = _now(), error is not None and type != "workflow.blocked"
    return RunEvent(
        type=type,
        run_id=_plain(claim.id),
        name=plain_name(claim.name),
        kind="workflow" if claim.turn else "task",
        queue=claim.queue,
        attempt=claim.attempt,
        failures=claim.failures + failed,
        max_attempts=max_attempts,
        error=error,
        next_at=None if again_in is None else now + again_in,
        duration=time.monotonic() - claim.begun_at if claim.begun_at and not claim.turn else None,
        worker=None if (holder := claim.holder or worker) is None else _plain(holder),
        key=claim.key,
        tags=_tags(claim.tags),
        at=now,
    )


def _of_ended(type: RunEventName, run: EndedRun, *, error: Error | None = None) -> RunEvent:
    return RunEvent(
        type=type, run_id=_plain(run.id), name=plain_name(run.name),
        kind="workflow" if run.kind == "workflow" else "task", queue=run.queue, attempt=run.attempt,
        failures=run.failures, error=error, key=run.key, tags=_tags(run.tags), at=_now(),
    )  # fmt: skip


def _max_attempts(claim: Claim) -> int | None:
    try:
        return policy_of(claim.retry, turn=claim.turn).attempts
    except (AttributeError, StepwellError, TypeError, ValueError):
        return None  # the retry policy on the row cannot be read: the event's error says so


def _worker(facts: Facts) -> UUID | None:
    who = facts.get("worker")
    return None if who is None else who.id


def _plain(given: UUID) -> UUID:
    """Convert to Python's own UUID. The driver's type differs in comparisons of types, and cannot be unpickled without
    the driver."""
    return given if type(given) is UUID else UUID(bytes=given.bytes)


def _tags(packed: bytes | None) -> dict[str, Any]:
    return {} if packed is None else msgspec.json.decode(packed)


def _now() -> datetime:
    return datetime.now(UTC)
