"""Explain why a run is in its state: facts in, causes out.

Nothing here queries the database. The caller gathers the facts about a run and its surroundings at one moment, by the
database's clock; that moment is one of the facts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from stepwell.model.facts import Cause, EndFacts, Explanation, QueueFacts, RunFacts, Surroundings, Taken, Why
from stepwell.model.states import State
from stepwell.model.wording import ago, ahead, among, at, nth, since
from stepwell.model.worker import WorkerInfo
from stepwell.model.workflow_causes import paused, pinned, turn, waits

__all__ = ["Cause", "EndFacts", "Explanation", "QueueFacts", "RunFacts", "Surroundings", "Taken", "Why", "explain"]

REAPED_WITHIN = LOOKED_WITHIN = timedelta(seconds=5)
"""The interval at which the reaper polls, and a worker that was not notified."""


def explain(run: RunFacts, around: Surroundings) -> Explanation:
    """Return every cause that applies, the most important first."""
    match run.state:
        case State.RUNNING:
            causes = [_running(run, around), *_limits_of_time(run, around)]
        case State.PENDING:
            causes = [*_pending(run, around), *_limits_of_time(run, around)]
        case State.SCHEDULED:
            causes = [_scheduled(run, around), *_unclaimable(run, around), *_limits_of_time(run, around)]
        case State.WAITING:
            causes = [*(waits(run, around) or [_waiting(run, around)]), *_limits_of_time(run, around)]
        case State.PAUSED:
            causes = [paused(run, around), *waits(run, around), *_limits_of_time(run, around)]
        case _:
            causes = [_finished(run, around)]
    return Explanation(run.id, run.name, run.queue, run.state, run.limit_key, run.deadline_at, causes)


# -- pending


def _pending(run: RunFacts, around: Surroundings) -> Iterator[Cause]:
    blocked = [*_unclaimable(run, around), *_alone(run, around), *_limits(run, around)]
    yield from blocked
    able = _able(run, around)
    if not blocked and (full := _slots(able)) is not None:
        yield full
        blocked.append(full)
    if around.ahead > 0:
        yield _in_line(run, around)
    elif not blocked:
        within = f"within {LOOKED_WITHIN.total_seconds():.0f} s"
        text = f"nothing blocks it: it is claimed at the next poll of {_names(able)}, {within}"
        yield Cause(Why.NEXT, text, {"workers": [each.id for each in able]})


def _able(run: RunFacts, around: Surroundings) -> list[WorkerInfo]:
    return [each for each in around.workers if each.serves(run.queue) and each.knows(run.name, run.pin)]


def _unclaimable(run: RunFacts, around: Surroundings) -> Iterator[Cause]:
    """Yield the reasons why no worker would claim the run, even with free slots."""
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
    elif run.pin is not None and not any(each.knows(run.name, run.pin) for each in serving):
        yield pinned(run, serving)


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
            "it has lost its worker before, and one more loss would fail it, so it runs beside no other such "
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
    return Cause(Why.OVERDUE, late + _done_by("due", around), facts)


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
    if run.kind == "workflow" and not (run.awaits or run.signals or run.due_at):
        text = (
            "its code waits for itself, such as for an asyncio.Event that it does not set: no run, signal or timer "
            "will wake it, but only an update, if it has one, or a cancellation"
        )
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
        runs = "it runs" if run.kind != "workflow" else "it is in a turn"
        running = f"{runs} on {who} since {at(started)}, {since(around.now - started)}, {_try(run)}"
        return Cause(Why.RUNNING, running + _progress(around) + turn(run), facts | {"progress": around.progress})
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
        return "its claim is reaped as soon as a worker runs: start `stepwell worker`"
    calm = around.calm_until or around.now
    wait = max(calm - around.now, timedelta(0)) + REAPED_WITHIN
    return f"its claim is reaped within {wait.total_seconds():.0f} s, and its retry policy decides what follows"


def _finished(run: RunFacts, around: Surroundings) -> Cause:
    finished = run.finished_at or around.now
    facts = {"at": finished, "attempt": run.attempt, "error": run.error}
    after = f"{at(finished)}, {ago(around.now - finished)}"
    match run.state:
        case State.COMPLETED:
            text = f"it completed at {after}, {_last_try(run)}"
        case State.FAILED:
            text = f"it failed at {after}, {_last_try(run)}: {run.error}"
        case State.EXPIRED:
            text = f"it expired at {after}: it was not started, or not started again, in time"
        case _:
            text = f"it was {run.state.value} at {after}"
    return Cause(Why.FINISHED, text, facts)


def _try(run: RunFacts) -> str:
    """Name the attempt by its number; the attempt of a workflow is a turn."""
    return f"{'turn' if run.kind == 'workflow' else 'attempt'} {run.attempt}"


def _last_try(run: RunFacts) -> str:
    return f"{'in' if run.kind == 'workflow' else 'at'} {_try(run)}"


def _limits_of_time(run: RunFacts, around: Surroundings) -> Iterator[Cause]:
    if run.expires_at is not None and run.state is not State.RUNNING:
        left, facts = run.expires_at - around.now, {"expires_at": run.expires_at}
        if left > timedelta(0):
            text = f"it expires at {at(run.expires_at)}, {ahead(left)}, unless it is started before"
        else:
            text = f"its time to be started ended at {at(run.expires_at)}: it expires" + _done_by("due", around)
        yield Cause(Why.EXPIRES, text, facts)
    if run.deadline_at is not None:
        left, facts = run.deadline_at - around.now, {"deadline_at": run.deadline_at}
        if left > timedelta(0):
            text = f"it must have ended by {at(run.deadline_at)}, {ahead(left)}, or it fails"
        else:
            text = f"its deadline passed at {at(run.deadline_at)}: it fails" + _done_by("due", around)
        yield Cause(Why.DEADLINE, text, facts)


def _done_by(service: str, around: Surroundings) -> str:
    if service in around.services:
        return f" within {LOOKED_WITHIN.total_seconds():.0f} s"
    return " as soon as a worker runs: start `stepwell worker`"


def _names(workers: Sequence[WorkerInfo]) -> str:
    return among([each.name for each in workers])
