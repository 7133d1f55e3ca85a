"""Explain why a workflow is in its state: what it waits for, and whether its code fits its history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from stepwell.model.facts import Cause, RunFacts, Surroundings, Why
from stepwell.model.wording import ago, ahead, among, at, near, times
from stepwell.model.worker import WorkerInfo


def waits(run: RunFacts, around: Surroundings) -> list[Cause]:
    """Return the causes of a wait; none for a run that is not a workflow."""
    if run.blocked is not None:
        return [_blocked(run)]
    if run.kind != "workflow":
        return []
    return [*_for_runs(around), *_for_signals(run, around), *_not_taken(run), *_for_time(run, around)]


def _blocked(run: RunFacts) -> Cause:
    told = run.blocked or {}
    since = f" since {at(datetime.fromisoformat(told['at']))}" if "at" in told else ""
    text = (
        f"its code does not fit its history{since}: event {told.get('idx')} is {told.get('recorded')}, but "
        f"the code of version {told.get('version')} does {told.get('new')} ({told.get('line')}). It goes on "
        "by itself when a worker with other code starts: bring the old code back, or guard the new with "
        'workflow.patched("…")'
    )
    return Cause(Why.BLOCKED, text, {name: value for name, value in told.items() if name != "message"})


def _for_runs(around: Surroundings) -> Iterator[Cause]:
    if around.awaited:
        runs = among([f"{each.name} {each.id}, which is {each.state.value}" for each in around.awaited],
                     of=around.awaited_in_all)  # fmt: skip
        facts = {
            "runs": [{"id": each.id, "name": each.name, "state": each.state} for each in around.awaited],
            "of": around.awaited_in_all,
        }
        yield Cause(Why.WAITS_FOR_RUN, f"it waits for {runs}", facts)
    if around.untold:
        text = (
            f"it waits for {among([str(each) for each in around.untold])}, which ended or whose row is gone, but it "
            "was never notified: were rows deleted or restored by hand? The service `teller` notifies it within the "
            "hour"
        )
        yield Cause(Why.WAITS_FOR_RUN, text, {"untold": list(around.untold)})


def _for_signals(run: RunFacts, around: Surroundings) -> Iterator[Cause]:
    for name in run.signals:
        since = around.quiet_since
        quiet = "" if since is None else f" since {at(since)}, {ago(around.now - since)}"
        text = f"it waits for the signal {name!r}{quiet}: `stepwell signal {run.id} {name} JSON`"
        yield Cause(Why.WAITS_FOR_SIGNAL, text, {"signal": name, "since": since})


def _not_taken(run: RunFacts) -> Iterator[Cause]:
    if run.untaken:
        facts = {"untaken": dict(run.untaken), "signals": list(run.signals)}
        yield Cause(Why.SIGNAL_NOT_TAKEN, untaken_in_words(run.untaken, run.signals), facts)


def untaken_in_words(untaken: Mapping[str, int], awaited: Sequence[str]) -> str:
    """Describe signals that arrived and were not taken, and the signals that are awaited."""
    for name, count in untaken.items():
        if (meant := near(name, awaited)) is not None:
            return f"the signal {name!r} arrived {times(count)}, and it waits for {meant!r}: a typo?"
    came = among([f"{name!r} {times(count)}" for name, count in untaken.items()])
    instead = f"it waits for {among([repr(name) for name in awaited])}" if awaited else "it waits for no signal now"
    return f"signals arrived that its code has not taken: {came}; {instead}"


def _for_time(run: RunFacts, around: Surroundings) -> Iterator[Cause]:
    if run.due_at is not None:
        text = f"it waits for a timer until {at(run.due_at)}, {ahead(run.due_at - around.now)}"
        yield Cause(Why.WAITS_FOR_TIME, text, {"due_at": run.due_at})


def paused(run: RunFacts, around: Surroundings) -> Cause:
    by = f", by {run.paused_by}" if run.paused_by else ""
    since = "" if run.paused_at is None else f" since {at(run.paused_at)}, {ago(around.now - run.paused_at)}"
    text = f"it is paused{since}{by}: it goes on when it is resumed, `stepwell resume {run.id}`"
    return Cause(Why.RUN_PAUSED, text, {"since": run.paused_at, "by": run.paused_by})


def pinned(run: RunFacts, serving: Sequence[WorkerInfo]) -> Cause:
    """Explain a wait for a version that no live worker has."""
    has = {each.name: (each.versions or {}).get(run.name) for each in serving}
    others = among([f"{name} ({version})" for name, version in has.items() if version is not None])
    text = f"it is pinned to version {run.pin}, which no live worker has; having others: {others}"
    return Cause(Why.PINNED, text, {"version": run.pin, "workers": has})


def turn(run: RunFacts) -> str:
    """Return the addition to the text about a workflow in a turn."""
    return ", and is to be paused after it" if run.pausing else ""
