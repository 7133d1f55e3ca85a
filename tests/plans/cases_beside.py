"""The statements beside the hot path whose plans are pinned too: what bodies say on their way, what people ask, and
what leaves in the end. They are asked of a database that is in trouble, or run beside others' work.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from big_database import Ids
from plan_cases import BATCH, case

from stepwell.engine.reads import LOOKED_AT

NOTHING = UUID(int=0)
MINUTE, HOUR, MONTH = timedelta(minutes=1), timedelta(hours=1), timedelta(days=30)
COUNTED = 10_000
"""How far people's questions count: the bounds of `explain` and `doctor`."""
FINISHED = "finished_runs_pkey kept_runs_pkey"
KEEPING, FAILED = "finished_runs_keep_id_idx", "finished_runs_id_idx"
"""What Postgres calls the partitions' parts of finished_runs_keeping and finished_runs_failed."""


def steps(run_ids: list[UUID]) -> dict[str, Any]:
    columns = {"steps": "load", "attempts": 2, "dones": 1.0, "totals": None, "details": None, "ages": timedelta(0)}
    return {"run_ids": run_ids, **{name: [value] * len(run_ids) for name, value in columns.items()}}


def lines(run_ids: list[UUID]) -> dict[str, Any]:
    columns = {"attempts": 1, "idxs": 0, "ages": timedelta(0), "levels": "info", "loggers": "shop", "messages": "new"}
    return {"run_ids": run_ids, **{name: [value] * len(run_ids) for name, value in columns.items()}}


def matching(*, since: datetime | None = None, after: UUID = NOTHING, **given: Any) -> dict[str, Any]:
    nothing = {"states": None, "name": None, "queue": None, "kind": None, "tags": None, "since": since}
    return {**nothing, "after": after, "limit": 500, **given}


def listing(after: UUID) -> dict[str, Any]:
    return {**matching(error=None, queue="media", after=after, limit=51), "most": LOOKED_AT}


def of_one_state(after: UUID | None) -> dict[str, Any]:
    values = matching(error=None, limit=51)
    del values["states"]
    return {**values, "after": after}


def yesterday() -> UUID:
    """An id of its morning, in the midst of what finished lately."""
    morning = datetime.now(UTC).replace(hour=6) - timedelta(days=1)
    return UUID(f"{int(morning.timestamp() * 1000):012x}70008000000000000000")


def among(ids: Ids, queue: str, **given: Any) -> dict[str, Any]:
    """Where a pending run of this queue stands."""
    return {"queue": queue, "priority": 50, "id": ids.pending[0], "most": COUNTED, **given}


NOTES = {
    "save a checkpoint": case(
        "save_checkpoint", 1, 30, "runs_pkey",
        lambda ids: {"id": ids.running[0], "claim_id": ids.claims[0], "schema": 1, "state": b"{}", "after": 1},
    ),
    "load a checkpoint": case(
        "load_checkpoint", 1, 20, "runs_pkey checkpoints_pkey",
        lambda ids: {"id": ids.running[0], "claim_id": ids.claims[0]},
    ),
    "forget checkpoints": case(
        "forget_checkpoints", 1, 10_000, "runs_pkey checkpoints_pkey", lambda ids: {"last": NOTHING, "limit": 1000}
    ),
    "note steps": case("note_steps", 0, 2800, "", lambda ids: steps(ids.finished)),
    "note lines": case("note_lines", 0, 2800, "", lambda ids: lines(ids.finished)),
    "progress of a run": case("progress_of", 1, 20, "progress_pkey", lambda ids: {"id": ids.finished[0]}),
    "logs of a run": case(
        "logs_of", 2, 20, "run_logs_pkey", lambda ids: {"id": ids.finished[0], "attempt": None, "limit": 10_000}
    ),
    "logs of an attempt": case(
        "logs_of", 1, 20, "run_logs_pkey", lambda ids: {"id": ids.finished[0], "attempt": 2, "limit": 10_000}
    ),
}  # fmt: skip

EXPLAIN = {
    "facts of a live run": case("run_facts", 1, 200, f"runs_pkey {FINISHED}", lambda ids: {"id": ids.pending[0]}),
    "facts of a finished run": case("run_facts", 1, 200, f"runs_pkey {FINISHED}", lambda ids: {"id": ids.finished[0]}),
    "last attempt": case("last_attempt", 1, 10, "attempts_pkey", lambda ids: {"id": ids.finished[0]}),
    "facts of a queue": case(
        "queue_facts", 1, 40, "runs_keyed runs_slots rate_uses_pkey",
        lambda ids: {"queue": "narrow", "limit_key": "nobody", "most": COUNTED},
    ),
    "facts of a queue with keys": case(
        "queue_facts", 1, 60, "runs_keyed runs_slots rate_uses_pkey",
        lambda ids: {"queue": "tenants", "limit_key": "tenant 7", "most": COUNTED},
    ),
    "who holds the places": case(
        "slot_holders", 20, 20, "runs_slots", lambda ids: {"queue": "narrow", "limit_key": None, "limit": 20}
    ),
    "who comes before": case("runs_ahead", 1, 4300, "runs_pending", lambda ids: among(ids, "media")),
    "who comes before with this key": case(
        "runs_ahead_of_key", 1, 200, "runs_keyed", lambda ids: among(ids, "tenants", limit_key="tenant 7")
    ),
    "who is alone": case("lone_runs", 0, 10, "runs_alone", lambda ids: {"limit": COUNTED}),
}  # fmt: skip

RETENTION = {
    "days that are past": case(
        "old_partitions", 8, 1600, f"runs_pkey {FINISHED}", lambda ids: {"keep": timedelta(days=0)}
    ),
    "forget strays": case("forget_strays", 0, 10, "finished_runs_pkey", lambda ids: {"keep": MONTH, "limit": 1000}),
    "forget what is not kept": case(
        "forget_brief_runs", BATCH, 1500, f"{KEEPING} finished_runs_pkey",
        lambda ids: {"after": HOUR, "limit": BATCH},
    ),
    "forget queues that are not kept": case(
        "forget_brief_queues", 1, 2500, "finished_runs_pkey",
        lambda ids: {"queues": ["media"], "last": yesterday(), "after": HOUR, "limit": 10 * BATCH},
    ),
}  # fmt: skip

BULK = {
    "match live runs": case(
        "matching_live_runs", 500, 2000, "runs_pkey",
        lambda ids: matching(states=["pending"], after=ids.workflows.blocked[-1]),
    ),
    "match live runs of one queue": case(
        "matching_live_runs", 500, 2000, "runs_pkey", lambda ids: matching(queue="media", after=ids.pending[0])
    ),
    "match finished runs": case(
        "matching_finished_runs", 500, 2500, FINISHED, lambda ids: matching(name="task_3", error=None)
    ),
    "match what finished lately": case(
        "matching_finished_runs", 500, 500, FINISHED,
        lambda ids: matching(since=datetime.now(UTC).replace(hour=6) - timedelta(days=1), error=None),
    ),
    "runs whose ids begin so": case(
        "runs_between", 6, 200, f"runs_pkey {FINISHED}",
        lambda ids: {"first": NOTHING, "last": ids.pending[-1], "limit": 6},
    ),
    "list runs": case("list_runs", 51, 350, f"runs_pkey {FINISHED}", lambda ids: listing(ids.pending[0])),
    "list runs that hardly match": case(
        "list_runs", 1, 5600, f"runs_pkey {FINISHED}",
        lambda ids: {**listing(ids.pending[0]), "name": "rare"},
    ),
    "list failed runs": case(
        "list_failed_runs", 0, 100, f"{FAILED} kept_runs_failed",
        lambda ids: {**of_one_state(None), "most": LOOKED_AT},
    ),
    "list running runs": case("list_running_runs", 51, 18_000, "runs_claimed", lambda ids: of_one_state(None)),
    "list blocked runs": case(
        "list_blocked_runs", 51, 20_000, "runs_blocked runs_pkey", lambda ids: {**of_one_state(None), "states": None}
    ),
    "what runs wait for": case("waits_of", BATCH, 600, "runs_pkey", lambda ids: {"ids": ids.pending[:BATCH]}),
    "match failed runs": case(
        "matching_failed_runs", 0, 100, f"{FAILED} kept_runs_failed", lambda ids: of_one_state(NOTHING)
    ),
    "attempts of a run": case(
        "attempts_of", 2, 120, f"runs_pkey {FINISHED} attempts_pkey", lambda ids: {"id": ids.finished[0]}
    ),
    "start many finished runs again": case(
        "start_runs_again", BATCH, 5600, FINISHED,
        lambda ids: {"ids": sorted(uuid4() for _ in ids.finished), "origins": ids.finished},
    ),
}  # fmt: skip

OVERVIEW = {
    "longest running": case("longest_running", 10, 18_000, "runs_claimed", lambda ids: {"limit": 10}),
    "starts lately": case(
        "starts_lately", 1, 1000, "runs_pkey finished_runs_pkey",
        lambda ids: {"since": timedelta(seconds=10), "most": 100_000},
    ),
    "lost holders": case("lost_holders", 1, 1000, "runs_claimed", lambda ids: {}),
    "late runs": case(
        "late_runs", 1, 2300, "runs_due runs_expiring runs_deadline", lambda ids: {"late": MINUTE, "most": COUNTED}
    ),
    "what there is to do": case("work_facts", 1, 270_000, "runs_pending runs_keyed runs_claimed", lambda ids: {}),
    "blocked workflows": case("blocked_workflows", 20, 2200, "runs_blocked", lambda ids: {"most": COUNTED}),
    "fronts of the lines": case("fronts", 22, 20_000, "runs_pending runs_keyed", lambda ids: {"each": 100}),
    "signals that nobody takes": case(
        "untaken_signals", 0, 20_000, "runs_pkey", lambda ids: {"most": LOOKED_AT, "limit": 50}
    ),
    "what moves": case(
        "moving_runs", 1000, 3500, "runs_pkey finished_runs_pkey attempts_pkey",
        lambda ids: {"since": MINUTE, "limit": 500, "most": 5000},
    ),
}  # fmt: skip

BESIDE = {**NOTES, **EXPLAIN, **RETENTION, **BULK, **OVERVIEW}
