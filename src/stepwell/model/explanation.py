"""Why a run is where it is: facts in, reasons out.

Nothing here asks anything. What is known of a run and of what stands around it is gathered at one moment, by the
database's clock, and the moment is one of the facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from stepwell.model.notes import Progress
from stepwell.model.rate import Rate
from stepwell.model.states import State
from stepwell.model.telling import ago, ahead, among, at, nth, since
from stepwell.model.worker import WorkerInfo

REAPED_WITHIN = LOOKED_WITHIN = timedelta(seconds=5)
"""How often the reaper looks, and a worker that heard nothing."""


class Why(StrEnum):
    """What a cause is, for programs: a closed set, so that nobody parses texts."""

    FINISHED = "finished"
    RUNNING = "running"
    LEASE_EXPIRED = "lease_expired"
    NOT_DUE = "not_due"
    OVERDUE = "overdue"
    WAITING = "waiting"
    RUN_PAUSED = "run_paused"
    QUEUE_PAUSED = "queue_paused"
    QUEUE_NOT_SERVED = "queue_not_served"
    NAME_NOT_KNOWN = "name_not_known"
    MUST_BE_ALONE = "must_be_alone"
    CAP_FULL = "cap_full"
    KEY_CAP_FULL = "key_cap_full"
    RATE_SPENT = "rate_spent"
    SLOTS_FULL = "slots_full"
    IN_LINE = "in_line"
    NEXT = "next"
    EXPIRES = "expires"
    DEADLINE = "deadline"


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason: what it is for programs, what it means for people, and the facts it rests on."""

    code: Why
    text: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a run is where it is. The first reason is the one to mend first."""

    run_id: UUID
    name: str
    queue: str
    state: State
    limit_key: str | None
    deadline_at: datetime | None
    """As long as it is not finished."""
    reasons: list[Cause]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    id: UUID
    name: str
    queue: str
    state: State
    attempt: int = 0
    failures: int = 0
    alone: bool = False
    limit_key: str | None = None
    debounced: bool = False
    created_at: datetime
    due_at: datetime | None = None
    expires_at: datetime | None = None
    deadline_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    """Of a run that failed: type and message."""
    worker: UUID | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How the last attempt ended, of a run that has not finished."""

    attempt: int
    outcome: str
    error: str | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Taken:
    """Places of a limit, and some of the runs that hold them."""

    limit: int | None = None
    held: int = 0
    holders: Sequence[UUID] = ()

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.held >= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    paused_at: datetime | None = None
    paused_by: str | None = None
    places: Taken = Taken()
    key_places: Taken = Taken()
    rate: Rate | None = None
    spent_until: datetime | None = None
    """If the rate is spent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything but the run itself, at the moment `now`."""

    now: datetime
    queue: QueueFacts = field(default_factory=QueueFacts)
    workers: Sequence[WorkerInfo] = ()
    """The live ones."""
    lone: Mapping[UUID, UUID] = field(default_factory=dict)
    """Of the workers that run a run that must be alone: which one."""
    ahead: int = 0
    most_ahead: int = 10_000
    """How far was counted."""
    ended: Ended | None = None
    holder: WorkerInfo | None = None
    """Who has claimed it, if there is such a worker."""
    services: frozenset[str] = frozenset()
    """Those that a worker leads now."""
    calm_until: datetime | None = None
    """Nobody is reaped before: the server has just come up."""
    progress: Progress | None = None
    """What its body said last."""


def explain(run: RunFacts, around: Surroundings) -> Explanation:
    """Every reason that holds, the most telling first."""
    match run.state:
        case State.RUNNING:
            reasons = [_running(run, around), *_limits_of_time(run, around)]
        case State.PENDING:
            reasons = [*_pending(run, around), *_limits_of_time(run, around)]
        case State.SCHEDULED:
            reasons = [_scheduled(run, around), *_nobody(run, around), *_limits_of_time(run, around)]
        case State.WAITING:
            reasons = [_waiting(run, around), *_limits_of_time(run, around)]
        case State.PAUSED:
            text = "it is paused: it goes on when it is resumed"
            reasons = [Cause(Why.RUN_PAUSED, text, {}), *_limits_of_time(run, around)]
        case _:
            reasons = [_finished(run, around)]
    return Explanation(run.id, run.name, run.queue, run.state, run.limit_key, run.deadline_at, reasons)


# -- pending


def _pending(run: RunFacts, around: Surroundings) -> Iterator[Cause]:
    blocked = [*_nobody(run, around), *_alone(run, around), *_limits(run, around)]
    yield from blocked
    able = _able(run, around)
    if not blocked and (full := _slots(able)) is not None:
        yield full
        blocked.append(full)
    if around.ahead > 0:
        yield _in_line(run, around)
    elif not blocked:
        within = f"within {LOOKED_WITHIN.total_seconds():.0f} s"
        text = f"nothing stands in its way: it is claimed at the next look of {_names(able)}, {within}"
        yield Cause(Why.NEXT, text, {"workers": [each.id for each in able]})


def _able(run: RunFacts, around: Surroundings) -> list[WorkerInfo]:
    return [each for each in around.workers if each.serves(run.queue) and each.knows(run.name)]


def _nobody(run: RunFacts, around: Surroundings) -> Iterator[Cause]:
    """Why nobody would claim it, however much room there is."""
    queue = around.queue
    if queue.paused_at is not None:
        by = f" by {queue.paused_by}" if queue.paused_by else ""
        text = f"its queue {run.queue!r} is paused since {at(queue.paused_at)}{by}: `stepwell queue resume {run.queue}`"
        yield Cause(Why.QUEUE_PAUSED, text, {"queue": run.queue, "since": queue.paused_at, "by": queue.paused_by})
    serving = [each for each in around.workers if each.serves(run.queue)]
    if not serving:
        yield _not_served(run, around)
    elif not any(each.knows(run.name) for each in serving):
        yield _not_known(run, around, serving)


def _not_served(run: RunFacts, around: Surroundings) -> Cause:
    facts = {"queue": run.queue, "workers": [each.id for each in around.workers]}
    if not around.workers:
        return Cause(Why.QUEUE_NOT_SERVED, "no worker is alive: start `stepwell worker`", facts)
    served = among([f"{each.name} ({', '.join(each.queues or [])})" for each in around.workers])
    text = f"no live worker serves its queue {run.queue!r}; alive and serving others: {served}"
    return Cause(Why.QUEUE_NOT_SERVED, text, facts)


def _not_known(run: RunFacts, around: Surroundings, serving: Sequence[WorkerInfo]) -> Cause:
    elsewhere = [each for each in around.workers if each.names is not None and run.name in each.names]
    text = f"no live worker of its queue {run.queue!r} knows {run.name!r}; serving it: {_names(serving)}"
    if elsewhere:
        others = among([f"{each.name} ({', '.join(each.queues or [])})" for each in elsewhere])
        text += f"; knowing it, but serving other queues: {others}"
    facts = {
        "name": run.name,
        "queue": run.queue,
        "serving": [each.id for each in serving],
        "knowing": [each.id for each in elsewhere],
    }
    return Cause(Why.NAME_NOT_KNOWN, text, facts)


def _alone(run: RunFacts, around: Surroundings) -> Iterator[Cause]:
    able = _able(run, around)
    beside = [around.lone[each.id] for each in able if each.id in around.lone]
    if run.alone and able and len(beside) == len(able):
        text = (
            "it has lost its worker before, and one more loss would be its last, so it runs beside no other such "
            f"run; every worker that could take it runs one: {among(beside)}"
        )
        yield Cause(Why.MUST_BE_ALONE, text, {"runs": beside, "workers": [each.id for each in able]})


def _limits(run: RunFacts, around: Surroundings) -> Iterator[Cause]:
    queue = around.queue
    for code, taken, what in (
        (Why.CAP_FULL, queue.places, f"of its queue {run.queue!r}"),
        (Why.KEY_CAP_FULL, queue.key_places, f"of the key {run.limit_key!r} in its queue {run.queue!r}"),
    ):
        if taken.is_full:
            text = f"{taken.held} of {taken.limit} places {what} are taken, by {among(taken.holders, of=taken.held)}"
            facts = {"queue": run.queue, "limit": taken.limit, "held": taken.held, "runs": list(taken.holders)}
            yield Cause(code, text, facts | ({"key": run.limit_key} if code is Why.KEY_CAP_FULL else {}))
    if queue.rate is not None and queue.spent_until is not None:
        until = f"until {at(queue.spent_until)}, {ahead(queue.spent_until - around.now)}"
        text = f"the rate of its queue {run.queue!r}, {queue.rate}, is spent {until}"
        yield Cause(Why.RATE_SPENT, text, {"queue": run.queue, "rate": str(queue.rate), "until": queue.spent_until})


def _slots(able: Sequence[WorkerInfo]) -> Cause | None:
    slots, running = sum(each.slots for each in able), sum(each.running for each in able)
    if not able or any(each.running < each.slots for each in able):
        return None
    text = f"every slot of the workers that could run it is taken: {running} runs in {slots} slots of {_names(able)}"
    return Cause(Why.SLOTS_FULL, text, {"slots": slots, "running": running, "workers": [each.id for each in able]})


def _in_line(run: RunFacts, around: Surroundings) -> Cause:
    bounded = around.ahead > around.most_ahead
    number = f"more than {around.most_ahead:,}" if bounded else f"{around.ahead:,}"
    whose = f"of the key {run.limit_key!r}" if run.limit_key is not None else f"of its queue {run.queue!r}"
    text = f"it waits in line {whose}: {number} ahead of it"
    return Cause(Why.IN_LINE, text, {"ahead": min(around.ahead, around.most_ahead), "more": bounded})


# -- the other states


def _scheduled(run: RunFacts, around: Surroundings) -> Cause:
    due, kind, what = run.due_at or around.now, *_delay(run, around)
    facts: dict[str, Any] = {"due_at": due, "kind": kind, "attempt": run.attempt}
    if around.ended is not None and around.ended.error is not None:
        facts |= {"retry": run.failures, "error": around.ended.error}
    if due > around.now:
        return Cause(Why.NOT_DUE, f"it is not due before {at(due)}, {ahead(due - around.now)}: {what}", facts)
    late = f"it was due at {at(due)}, {ago(around.now - due)} ({what}), and was not moved yet"
    return Cause(Why.OVERDUE, late + _someone("due", around), facts)


def _delay(run: RunFacts, around: Surroundings) -> tuple[str, str]:
    ended = around.ended
    if ended is not None and ended.outcome == "failed":
        return "retry", f"its {nth(run.failures)} retry, after {ended.error}"
    if ended is not None and ended.outcome == "snoozed":
        return "snoozed", f"attempt {ended.attempt} snoozed it at {at(ended.at)}"
    if run.debounced:
        return "debounced", "a debounced start, which every other start with its name puts off"
    return "delayed", "a delayed start"


def _waiting(run: RunFacts, around: Surroundings) -> Cause:
    until = "" if run.due_at is None else f", or until {at(run.due_at)}, {ahead(run.due_at - around.now)}"
    text = f"it waits for something that it asked for{until}"
    return Cause(Why.WAITING, text, {"due_at": run.due_at})


def _running(run: RunFacts, around: Surroundings) -> Cause:
    holder, started = around.holder, run.started_at or around.now
    facts: dict[str, Any] = {"worker": run.worker, "since": started, "attempt": run.attempt}
    if holder is None:
        text = f"its worker {run.worker} is gone, and has no lease; {_reaped(around)}"
        return Cause(Why.LEASE_EXPIRED, text, facts)
    facts |= {"name": holder.name, "host": holder.host, "pid": holder.pid, "lease_until": holder.lease_until}
    who = f"{holder.name} (host {holder.host}, pid {holder.pid})"
    if holder.state == "live":
        running = f"it runs on {who} since {at(started)}, {since(around.now - started)}, attempt {run.attempt}"
        return Cause(Why.RUNNING, running + _progress(around), facts | {"progress": around.progress})
    ended = f"{at(holder.lease_until)}, {ago(around.now - holder.lease_until)}"
    lost = "left" if holder.state == "stopped" else "is lost: its lease ended"
    return Cause(Why.LEASE_EXPIRED, f"its worker {who} {lost} {ended}; {_reaped(around)}", facts)


def _progress(around: Surroundings) -> str:
    said = around.progress
    if said is None:
        return ""
    total = "" if said.total is None else f" of {said.total:g}"
    return f"; last progress {ago(around.now - said.at)}: {said.step} {said.done:g}{total}"


def _reaped(around: Surroundings) -> str:
    if "reaper" not in around.services:
        return "its claim is reaped when a worker is there to do it: start `stepwell worker`"
    calm = around.calm_until or around.now
    wait = max(calm - around.now, timedelta(0)) + REAPED_WITHIN
    return f"its claim is reaped within {wait.total_seconds():.0f} s, and its retry policy decides what follows"


def _finished(run: RunFacts, around: Surroundings) -> Cause:
    finished = run.finished_at or around.now
    facts = {"at": finished, "attempt": run.attempt, "error": run.error}
    after = f"{at(finished)}, {ago(around.now - finished)}"
    match run.state:
        case State.COMPLETED:
            text = f"it completed at {after}, at attempt {run.attempt}"
        case State.FAILED:
            text = f"it failed at {after}, at attempt {run.attempt}: {run.error}"
        case State.EXPIRED:
            text = f"it expired at {after}: it was not started, or not started again, in time"
        case _:
            text = f"it was {run.state.value} at {after}"
    return Cause(Why.FINISHED, text, facts)


def _limits_of_time(run: RunFacts, around: Surroundings) -> Iterator[Cause]:
    if run.expires_at is not None and run.state is not State.RUNNING:
        left, facts = run.expires_at - around.now, {"expires_at": run.expires_at}
        if left > timedelta(0):
            text = f"it expires at {at(run.expires_at)}, {ahead(left)}, unless it is started before"
        else:
            text = f"its time to be started ended at {at(run.expires_at)}: it expires" + _someone("due", around)
        yield Cause(Why.EXPIRES, text, facts)
    if run.deadline_at is not None:
        left, facts = run.deadline_at - around.now, {"deadline_at": run.deadline_at}
        if left > timedelta(0):
            text = f"it must have ended by {at(run.deadline_at)}, {ahead(left)}, or it fails"
        else:
            text = f"its deadline passed at {at(run.deadline_at)}: it fails" + _someone("due", around)
        yield Cause(Why.DEADLINE, text, facts)


def _someone(service: str, around: Surroundings) -> str:
    if service in around.services:
        return f" within {LOOKED_WITHIN.total_seconds():.0f} s"
    return " when a worker is there to see to it: start `stepwell worker`"


def _names(workers: Sequence[WorkerInfo]) -> str:
    return among([each.name for each in workers])
