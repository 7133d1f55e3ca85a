"""The statements of workflows whose plans are pinned: turns and what arrives between them, ends, forks, and what is
asked of all open workflows before a deploy. What they cost depends on their batch or on one history, never on how
many other histories there are.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from big_database import OURS, Ids
from big_workflows import CHILDREN, LONG_EVENTS
from plan_cases import BATCH, Case, case

from stepwell.engine.undelivered_ends import ENDS as ENDS_TOLD
from stepwell.engine.undelivered_ends import EVENTS, LIVE
from stepwell.store.copying import array, microseconds

NOTHING = UUID(int=0)
FINISHED = "finished_runs_pkey kept_runs_pkey"
ALL_RUNS = f"runs_pkey {FINISHED}"
PAGE = 2000
"""Of a history, as the engine fetches it."""
TOLD_AS_TEXT = ("ids", "claim_ids", "recorded", "seen")
EVENTS_OF_THEM = ("places", "idxs", "types", "ats", "datas")


def turns(ids: Ids) -> dict[str, Any]:
    return {"ids": ids.workflows.turning, "claim_ids": ids.workflows.claims}


def advances(ids: Ids) -> dict[str, Any]:
    """A batch of turns: each writes two events and what it shows, and waits."""
    runs, now = ids.workflows.turning, datetime.now(UTC)
    columns = {"seen": 3, "recorded": 22, "froms": 1, "dues": None, "waits": None, "blocks": None, "tos": "wait"}
    twice = sorted([*range(1, len(runs) + 1)] * 2)
    return {
        **turns(ids),
        **{name: [value] * len(runs) for name, value in columns.items()},
        "places": array(twice),
        "idxs": array([21 + place % 2 for place in range(len(twice))]),
        "types": array(["TaskScheduled"] * len(twice)),
        "ats": array([microseconds(now)] * len(twice)),
        "datas": b"[%b]" % b",".join([b'{"command": 11}'] * len(twice)),
        "shown_runs": runs,
        "shown": [b'{"done": 8}'] * len(runs),
    }


def records(ids: Ids) -> dict[str, Any]:
    """The same, and they go on."""
    all = advances(ids)
    return {name: array(all[name]) if name in TOLD_AS_TEXT else all[name] for name in (*TOLD_AS_TEXT, *EVENTS_OF_THEM)}


def completions(ids: Ids) -> dict[str, Any]:
    """The same, and they have completed."""
    all = advances(ids)
    return {name: all[name] for name in ("ids", "claim_ids", *EVENTS_OF_THEM)} | {"results": [b"1"] * len(all["ids"])}


def started_here() -> dict[str, Any]:
    plain = {"names": "task_1", "queues": "flows", "priorities": 50, "inputs": b"{}", "retries": b"{}", "nodes": "1"}
    nothing = dict.fromkeys(("tags", "timeouts", "parent_ids", "root_ids"))
    ids = sorted(uuid4() for _ in range(BATCH))
    arrays = {name: [value] * BATCH for name, value in (plain | nothing).items()}
    return {"ids": ids, **arrays, "worker": OURS, "claim_id": uuid4()}


def arrivals(runs: list[UUID]) -> dict[str, Any]:
    columns = {"arrivals": uuid4(), "types": "SignalReceived", "datas": b'{"name": "more"}'}
    return {"ids": runs, **{name: [value] * len(runs) for name, value in columns.items()}}


def unblocked(count: int) -> dict[str, Any]:
    return {"names": [f"blocked_flow_{n}" for n in range(count)], "versions": ["new"] * count, "worker": OURS}


def forked(origin: UUID) -> dict[str, Any]:
    return {
        "id": uuid4(),
        "name": "flow",
        "origin": origin,
        "recorded": 20,
        "history_from": 1,
        "repeated": False,
        "deadline": None,
    }


def forked_children(origins: list[UUID]) -> dict[str, Any]:
    return {"parent": uuid4(), "ids": [uuid4() for _ in origins], "origins": origins, "nodes": ["1"] * len(origins)}


def copied(origin: UUID, last: int, changed: int) -> dict[str, Any]:
    """A history of which every second event is given anew."""
    idxs = [2 * n for n in range(1, changed + 1)]
    return {"id": uuid4(), "origin": origin, "last": last, "idxs": idxs, "datas": [b'{"command": 1}'] * changed}


TURNS = {
    "turns held": case("turns_held", 3 * BATCH, 1200, "runs_pkey arrivals_pkey", turns),
    "a page of a history": case(
        "history", PAGE, 480, "events_pkey", lambda ids: {"id": ids.workflows.long, "after": 0, "limit": PAGE}
    ),
    "the last page of a history": case(
        "history", 1000, 220, "events_pkey", lambda ids: {"id": ids.workflows.long, "after": 4000, "limit": PAGE}
    ),
    "advance turns": case("advance_turns", BATCH, 7200, "runs_pkey arrivals_pkey", advances),
    "record turns": case("record_turns", 1, 7200, "runs_pkey", records),
    "complete turns": case("complete_turns", BATCH, 7200, "runs_pkey arrivals_pkey", completions),
    "open queues": case(
        "open_queues", 1, 60, "", lambda ids: {"queues": ["default", "mail"], "worker": OURS}
    ),
    "start what is claimed": case("start_claimed_runs", BATCH, 2100, "", lambda ids: started_here()),
    "what was published": case("last_published", 1, 10, "published_pkey", lambda ids: {"id": ids.workflows.long}),
    "forget what was published": case(
        "forget_published", 1, 4200, f"published_pkey {ALL_RUNS}", lambda ids: {"last": NOTHING, "limit": 1000},
        most_before_17=105_000,
    ),
}  # fmt: skip

ARRIVALS = {
    "arrive": case("arrive", 1, 50, "runs_pkey", lambda ids: arrivals(ids.workflows.waiting[:1])),
    "arrive for many": case(
        "arrive", BATCH, 3500, "runs_pkey", lambda ids: arrivals(ids.workflows.waiting), most_before_17=4700
    ),
    "tell parents": case(
        "tell_parents", BATCH, 4200, "runs_pkey finished_runs_pkey", lambda ids: {"ids": ids.workflows.ended_tasks}
    ),
    "parents of": case(
        "parents_of", BATCH, 4200, "runs_pkey finished_runs_pkey", lambda ids: {"ids": ids.workflows.ended_tasks}
    ),
    "lock a run": case("lock_run", 1, 12, "runs_pkey", lambda ids: {"id": ids.workflows.long}),
    "what has arrived once": case(
        "has_arrived", 1, 1100, "arrivals_pkey events_pkey",
        lambda ids: {"id": ids.workflows.long, "arrival": str(uuid4())},
    ),
    "forget arrivals": case("forget_arrivals", 0, 1300, "arrivals_pkey", lambda ids: {"ids": ids.workflows.turning}),
    "unblock runs": case("unblock_runs", BATCH, 2200, "runs_blocked", lambda ids: unblocked(1)),
    "pause runs": case("pause_runs", BATCH, 1900, "runs_pkey", lambda ids: {"ids": ids.workflows.waiting, "by": ""}),
    "resume runs": case("resume_runs", BATCH, 2900, "runs_pkey", lambda ids: {"ids": ids.workflows.paused}),
}  # fmt: skip

# Once an hour, and a bounded look at a time.
UNTOLD = {
    "look at those that wait": case(
        "untold_workflows", 1, 53_000, "runs_pkey events_pkey",
        lambda ids: {"after": NOTHING, "limit": LIVE, "most": EVENTS},
        most_before_17=110_000,
    ),
    "look at two million others": case(
        "untold_workflows", 1, 300, "runs_pkey events_pkey",
        lambda ids: {"after": ids.pending[0], "limit": LIVE, "most": EVENTS},
    ),
    "what one was not told": case(
        "untold_ends", 10, 160, f"{ALL_RUNS} events_pkey arrivals_pkey",
        lambda ids: {"id": ids.workflows.waiting[0], "limit": ENDS_TOLD},
        most_before_17=1000,
    ),
    "what one with a long history was not told": case(
        "untold_ends", ENDS_TOLD, 1200, f"{ALL_RUNS} events_pkey arrivals_pkey",
        lambda ids: {"id": ids.workflows.long, "limit": ENDS_TOLD},
        most_before_17=240_000,
    ),
}  # fmt: skip

ENDS = {
    "kinds of runs": case(
        "kinds_of", BATCH, 420, "runs_pkey", lambda ids: {"ids": ids.workflows.waiting}, most_before_17=1000
    ),
    "overdue workflows": case("overdue_workflows", 0, 10, "runs_deadline", lambda ids: {"limit": 1000}),
    "start handlers": case(
        "start_handlers", 0, 1200, "finished_runs_pkey", lambda ids: {"ids": ids.workflows.ended}, most_before_17=3000
    ),
    "end histories": case(
        "end_histories", BATCH, 2100, "finished_runs_pkey arrivals_pkey events_pkey",
        lambda ids: {"ids": ids.workflows.ended},
        most_before_17=3000,
    ),
    "children of many": case(
        "children_of", 0, 4200, "runs_pkey events_pkey", lambda ids: {"ids": ids.workflows.waiting},
        most_before_17=7000,
    ),
    "children of a wide one": case(
        "children_of", CHILDREN // 2, 11_000, "runs_pkey events_pkey", lambda ids: {"ids": [ids.workflows.wide]},
        most_before_17=50_000,
    ),
    "started by a wide one": case(
        "started_by", CHILDREN, 900, "events_pkey", lambda ids: {"id": ids.workflows.wide}
    ),
}  # fmt: skip

FORKS = {
    "fork a live run": case("fork_run", 1, 60, ALL_RUNS, lambda ids: forked(ids.workflows.long)),
    "fork a finished run": case("fork_run", 1, 70, ALL_RUNS, lambda ids: forked(ids.finished[0])),
    "fork live children": case(
        "fork_children", BATCH, 8000, f"{ALL_RUNS} events_pkey",
        lambda ids: forked_children(ids.workflows.children[:BATCH]),
    ),
    "fork finished children": case(
        "fork_children", BATCH, 7500, f"{ALL_RUNS} events_pkey", lambda ids: forked_children(ids.finished)
    ),
    "copy a history": case("copy_history", 0, 370, "events_pkey", lambda ids: copied(ids.workflows.waiting[0], 20, 10)),
    "copy a long history": case(
        "copy_history", 0, 70_000, "events_pkey", lambda ids: copied(ids.workflows.long, LONG_EVENTS, LONG_EVENTS // 2)
    ),
    "copy what was published": case("copy_published", 0, 15, "", lambda ids: {"id": uuid4(), "state": b"{}"}),
    "what can be forked": case(
        "forkable", 0, 70, "finished_runs_id_idx kept_runs_failed", lambda ids: {"ids": ids.finished},
        most_before_17=4000,
    ),
}  # fmt: skip

# Seconds of reading before a deploy, instead of an index that every turn would have to write.
PREFLIGHT = {
    "open workflows": case("open_workflows", 200, 220, "runs_pkey", lambda ids: {"after": NOTHING, "limit": 200}),
    "open workflows behind two million others": case(
        "open_workflows", 200, 110_000, "runs_pkey", lambda ids: {"after": ids.pending[0], "limit": 200}
    ),
    "count open workflows": Case("count_open_workflows", lambda ids: {}, 1, 95_000, frozenset({"Seq Scan"})),
}  # fmt: skip

WORKFLOWS = {**TURNS, **ARRIVALS, **UNTOLD, **ENDS, **FORKS, **PREFLIGHT}
