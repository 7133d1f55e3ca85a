"""The states of a run, and the table of legal moves.

The table is data; production code does not use it. The WHERE clause of each statement enforces the moves. Tests keep
the two equal: every `-- moves:` line must equal its entry here, and every statement is tried against every state.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    SCHEDULED = "scheduled"
    WAITING = "waiting"
    PENDING = "pending"
    RUNNING = "running"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    SKIPPED = "skipped"

    @property
    def finished(self) -> bool:
        return self in FINISHED


LIVE = frozenset({State.SCHEDULED, State.WAITING, State.PENDING, State.RUNNING, State.PAUSED})
FINISHED = frozenset(State) - LIVE

Moves = dict[State, frozenset[State]]


def _from(*states: State, to: State) -> Moves:
    return {state: frozenset({to}) for state in states}


# Statement -> {from: {to}}. A start creates a row, so it has no earlier state.
STARTS: dict[str, frozenset[State]] = {
    "start_runs": frozenset({State.PENDING, State.SCHEDULED}),
    "start_run": frozenset({State.PENDING}),
    "start_claimed_runs": frozenset({State.RUNNING, State.PENDING}),
    "debounce_run": frozenset({State.SCHEDULED}),
    "start_runs_again": frozenset({State.PENDING}),
    "fork_run": frozenset({State.PENDING}),
    "fork_children": frozenset({State.PENDING, State.SCHEDULED}),
    "start_handlers": frozenset({State.PENDING, State.SCHEDULED}),
}
MOVES: dict[str, Moves] = {
    "claim_runs": _from(State.PENDING, to=State.RUNNING),
    "claim_from_queue": _from(State.PENDING, to=State.RUNNING),
    "claim_limited_runs": _from(State.PENDING, to=State.RUNNING),
    "exchange_runs": _from(State.RUNNING, to=State.COMPLETED) | _from(State.PENDING, to=State.RUNNING),
    "end_runs": {State.RUNNING: frozenset({State.COMPLETED, State.FAILED, State.CANCELLED})},
    "retry_runs": _from(State.RUNNING, to=State.SCHEDULED),
    "repeat_runs": _from(State.RUNNING, to=State.PENDING),
    "snooze_runs": _from(State.RUNNING, to=State.SCHEDULED),
    "release_runs": _from(State.RUNNING, to=State.PENDING),
    "due_runs": _from(State.SCHEDULED, State.WAITING, to=State.PENDING),
    "end_unclaimed_runs": dict.fromkeys(sorted(LIVE), frozenset({State.FAILED, State.CANCELLED, State.EXPIRED})),
    "complete_turns": _from(State.RUNNING, to=State.COMPLETED),
    "advance_turns": {State.RUNNING: frozenset({State.WAITING, State.PENDING, State.PAUSED})},
    "tell_parents": _from(State.WAITING, to=State.PENDING),
    "arrive": _from(State.WAITING, to=State.PENDING),
    "unblock_runs": _from(State.WAITING, to=State.PENDING),
    "pause_runs": _from(State.SCHEDULED, State.WAITING, State.PENDING, to=State.PAUSED),
    "resume_runs": {State.PAUSED: frozenset({State.SCHEDULED, State.PENDING})},
}
