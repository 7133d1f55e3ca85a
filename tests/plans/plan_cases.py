"""The statements whose plans are pinned: what each is given, the indexes it may read by, and how many buffers.

`most` leaves about twice the room of what was measured on Postgres 18; the numbers are in
docs/lab/2026-11-16-buffers-read-per-statement.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from big_database import LOST, NAMES, OURS, Ids

BATCH = 100
CLAIMING = "runs_pending runs_alone runs_pkey runs_keyed"
LIMITED = f"{CLAIMING} runs_slots rate_uses_pkey"
HOT = ("claim one queue", "claim three queues", "claim every queue", "exchange", "complete", "due", "reap")

UNSAID = {"channel": None, "word": None}
_ERROR = b'{"type": "ValueError"}'

Values = Callable[[Ids], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Case:
    statement: str
    values: Values
    rows: int
    most: int
    by: frozenset[str]
    """The indexes it reads runs, finished runs, attempts and keys by."""
    most_before_17: int | None = None
    """Older servers descend an index once for each id of an array, in each partition."""

    def allowed(self, server: int) -> int:
        return self.most if server >= 17 or self.most_before_17 is None else self.most_before_17


def claim(queues: list[str] | None, *, limit: int = BATCH, names: tuple[str, ...] = NAMES) -> dict[str, Any]:
    return {
        "queues": queues,
        "names": list(names),
        "limit": limit,
        "alone": True,
        "worker": OURS,
        "claim_id": uuid4(),
        "ageing": timedelta(seconds=1),
        "aged": max(1, limit // 10),
    }


def claim_from(queue: str, *, limit: int = BATCH) -> dict[str, Any]:
    return {"queue": queue, "names": list(NAMES), "worker": OURS, "limit": limit, "claim_id": uuid4()}


def claim_limited(queues: list[str]) -> dict[str, Any]:
    wanted = {
        "queues": queues,
        "names": list(NAMES),
        "limit": BATCH,
        "alone": True,
        "keys": 200,
        "ageing": timedelta(seconds=1),
    }
    return {**wanted, "worker": OURS, "claim_id": uuid4()}


def start(ids: list[UUID], *, keys: list[str] | None = None) -> dict[str, Any]:
    count = len(ids)
    nothing = [None] * count
    return {
        "ids": ids,
        "names": ["task_1"] * count,
        "queues": ["mail"] * count,
        "priorities": [50] * count,
        "states": ["pending"] * count,
        "inputs": [b"{}"] * count,
        "keys": keys or nothing,
        "digests": [b"digest"] * count if keys else nothing,
        "tags": nothing,
        "retries": [b"{}"] * count,
        "timeouts": nothing,
        "delays": nothing,
        "ats": nothing,
        "expiries": nothing,
        "deadlines": nothing,
        "limit_keys": nothing,
        "per_keys": nothing,
        "unique_keys": nothing,
        "keeps": nothing,
        "parent_ids": nothing,
        "root_ids": nothing,
        "kinds": ["task"] * count,
        "nodes": nothing,
        "on_failures": nothing,
        "keep_keys": timedelta(days=30),
    }


def start_one(run_id: UUID) -> dict[str, Any]:
    plain = {"name": "task_1", "queue": "mail", "priority": 50, "input": b"{}", "retry": b"{}"}
    return {"id": run_id, **plain, "tags": None, "timeout": None, "parent_id": None, "root_id": None, **UNSAID}


def held(ids: Ids, **columns: Any) -> dict[str, Any]:
    """A batch to settle: each column holds one value many times."""
    arrays = {name: [value] * len(ids.running) for name, value in columns.items()}
    return {"ids": ids.running, "claim_ids": ids.claims, **arrays}


def exchange(ids: Ids, *queues: str, completed: bool = True, share: int = BATCH) -> dict[str, Any]:
    """A batch completed, and as many claimed behind a run from the middle of each queue."""
    # A single id that is nobody's: of an empty list any index would do, and the smallest is taken.
    done, claims = (ids.running, ids.claims) if completed else ([uuid4()], [uuid4()])
    return {
        "ids": done,
        "claim_ids": claims,
        "results": b"[%b]" % b",".join([b"true"] * len(done)),
        "queues": list(queues),
        "priorities": [50] * len(queues),
        "places": [ids.pending[0]] * len(queues),
        "share": share,
        "worker": OURS,
        "names": list(NAMES),
        "claim_id": uuid4(),
        **UNSAID,
    }


def ending(ids: Ids, state: str) -> dict[str, Any]:
    count = len(ids.running)
    results = b"[%b]" % b",".join([b"true"] * count)
    errors = None if state != "failed" else b"[%b]" % b",".join([_ERROR] * count)
    claims = {"ids": ids.running, "claim_ids": ids.claims, "states": [state] * count}
    return {**claims, "results": results, "errors": errors, "usages": None, **UNSAID}


def ending_unclaimed(ids: Ids, state: str) -> dict[str, Any]:
    error = _ERROR if state == "failed" else None
    return {"ids": ids.pending, "state": state, "error": error, "force": state != "cancelled"}


def case(statement: str, rows: int, most: int, by: str, values: Values, *, most_before_17: int | None = None) -> Case:
    return Case(statement, values, rows, most, frozenset(by.split()), most_before_17)


_BATCH = range(BATCH)
_HOUR = timedelta(hours=1)

HOT_PATH = {
    "start": case("start_runs", BATCH, 2200, "runs_pkey", lambda ids: start(_new(BATCH))),
    "start one": case("start_run", 1, 30, "", lambda ids: start_one(uuid4())),
    "start with keys": case(
        "start_runs", BATCH, 4400, "runs_pkey", lambda ids: start(_new(BATCH), keys=[f"new {n}" for n in _BATCH])
    ),
    "start with keys that are held": case(
        "start_runs", 0, 1000, "runs_pkey", lambda ids: start(_new(BATCH), keys=[f"order {50_000 + n}" for n in _BATCH])
    ),
    "start a finished run again": case(
        "start_runs_again", 1, 120, "finished_runs_pkey kept_runs_pkey",
        lambda ids: {"ids": [uuid4()], "origins": ids.finished[:1]},
    ),
    "claim one queue": case("claim_runs", BATCH, 3000, CLAIMING, lambda ids: claim(["mail"])),
    "claim three queues": case(
        "claim_runs", BATCH, 3400, CLAIMING, lambda ids: claim(["mail", "media", "bulk"])
    ),
    "claim every queue": case("claim_runs", BATCH, 4000, CLAIMING, lambda ids: claim(None)),
    "claim one run": case("claim_runs", 1, 120, CLAIMING, lambda ids: claim(["mail"], limit=1)),
    "claim from an empty queue": case("claim_runs", 1, 30, CLAIMING, lambda ids: claim(["none"])),
    "claim from a queue": case("claim_from_queue", BATCH, 3000, CLAIMING, lambda ids: claim_from("mail")),
    "claim one run from a queue": case("claim_from_queue", 1, 120, CLAIMING, lambda ids: claim_from("mail", limit=1)),
    "claim from a queue that is empty": case("claim_from_queue", 1, 30, CLAIMING, lambda ids: claim_from("none")),
    "claim limited by a cap": case("claim_limited_runs", BATCH, 4000, LIMITED, lambda ids: claim_limited(["narrow"])),
    "claim limited by keys": case("claim_limited_runs", BATCH, 12_000, LIMITED, lambda ids: claim_limited(["tenants"])),
    "claim limited from nothing": case("claim_limited_runs", 1, 40, LIMITED, lambda ids: claim_limited(["none"])),
    "exchange": case(
        "exchange_runs", BATCH, 3900, "runs_pending runs_pkey", lambda ids: exchange(ids, "media")
    ),
    "exchange in three queues": case(
        "exchange_runs",
        BATCH // 3 * 3,
        3900,
        "runs_pending runs_pkey",
        lambda ids: exchange(ids, "mail", "media", "bulk", share=BATCH // 3),
    ),
    "exchange of nothing": case(
        "exchange_runs", BATCH, 2700, "runs_pending runs_pkey", lambda ids: exchange(ids, "media", completed=False)
    ),
    "complete": case("end_runs", 1, 1300, "runs_pkey", lambda ids: ending(ids, "completed")),
    "fail": case("end_runs", 1, 1700, "runs_pkey", lambda ids: ending(ids, "failed")),
    "end as cancelled": case("end_runs", 1, 1500, "runs_pkey", lambda ids: ending(ids, "cancelled")),
    "retry": case(
        "retry_runs", BATCH, 3500, "runs_pkey",
        lambda ids: held(ids, errors=_ERROR, usages=None, delays=_HOUR, alones=False),
    ),
    "repeat": case(
        "repeat_runs", BATCH, 3500, "runs_pkey", lambda ids: held(ids, errors=_ERROR, usages=None, alones=False)
    ),
    "snooze": case("snooze_runs", BATCH, 3500, "runs_pkey", lambda ids: held(ids, usages=None, delays=_HOUR)),
    "release": case("release_runs", BATCH, 3500, "runs_pkey", held),
    "cancel": case("end_unclaimed_runs", BATCH, 1300, "runs_pkey", lambda ids: ending_unclaimed(ids, "cancelled")),
    "fail from outside": case(
        "end_unclaimed_runs", BATCH, 1700, "runs_pkey", lambda ids: ending_unclaimed(ids, "failed")
    ),
    "due": case("due_runs", BATCH, 2900, "runs_due runs_pkey", lambda ids: {"limit": BATCH}),
    "expired": case("expired_runs", BATCH, 900, "runs_expiring", lambda ids: {"limit": BATCH}),
    "overdue": case("overdue_runs", 0, 30, "runs_deadline", lambda ids: {"limit": BATCH}),
    "reap": case("lock_lost_claims", BATCH, 700, "runs_claimed", lambda ids: {"limit": BATCH, "calm": timedelta(0)}),
    "next due": case("next_due", 1, 40, "runs_due runs_expiring runs_deadline", lambda ids: {}),
    # The table of workers as it is: how many pages its fifty rows take is a matter of when it was last cleaned.
    "next lease end": case("next_lease_end", 1, 30, "", lambda ids: {}),
    "held claims": case("held_claims", 1000, 600, "runs_claimed", lambda ids: {"worker": LOST}),
    "held of some claims": case(
        "held_of_claims",
        BATCH,
        80,
        "runs_claimed",
        lambda ids: {"worker": OURS, "claim_ids": list(dict.fromkeys(ids.claims))[1:11]},
    ),
    "settled claims": case(
        "settled_claims",
        2 * BATCH,
        1200,
        "finished_runs_pkey attempts_pkey",
        lambda ids: {"ids": ids.finished, "claim_ids": ids.finished_claims},
        most_before_17=15_000,
    ),
    "results": case(
        "results", BATCH, 800, "finished_runs_pkey kept_runs_pkey", lambda ids: {"ids": ids.finished},
        most_before_17=8400,
    ),
    # They finished on other days, which are not even looked into.
    "recent results": case("recent_results", 0, 60, "finished_runs_pkey", lambda ids: {"ids": ids.finished}),
    "live run by id": case(
        "run_by_id", 1, 100, "runs_pkey finished_runs_pkey kept_runs_pkey", lambda ids: {"id": ids.pending[0]}
    ),
    "finished run by id": case(
        "run_by_id", 1, 100, "runs_pkey finished_runs_pkey kept_runs_pkey", lambda ids: {"id": ids.finished[0]}
    ),
    "existing runs": case(
        "existing_runs",
        BATCH,
        800,
        "runs_pkey finished_runs_pkey kept_runs_pkey",
        lambda ids: {"ids": ids.finished},
        most_before_17=9000,
    ),
    "undo finished starts": case(
        "undo_finished_starts", 0, 800, "runs_pkey finished_runs_pkey", lambda ids: {"ids": ids.pending},
        most_before_17=9000,
    ),
}  # fmt: skip


def _new(count: int) -> list[UUID]:
    return sorted(uuid4() for _ in range(count))
