"""Read-only queries for handles, lists and waiters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec

from stepwell.codec import encode
from stepwell.engine import notes
from stepwell.model.errors import NotFound
from stepwell.model.pins import plain_name
from stepwell.model.run import Attempt, Filter, Finished, Glimpse, Page, RunInfo, Waits
from stepwell.model.states import State
from stepwell.store import rows
from stepwell.store.pool import Row, Tx

_LISTS = {frozenset({State.FAILED}): "list_failed_runs", frozenset({State.RUNNING}): "list_running_runs"}
"""States whose runs have an index of their own, which only a statement that names the state can use."""
LOOKED_AT = 100_000
"""Runs that one statement examines for a list. Without this limit, a filter that hardly any run matches would examine
every run that is kept."""


async def run_info(tx: Tx, run_id: UUID) -> RunInfo:
    found = await tx.rows("run_by_id", id=run_id)
    if not found:
        raise NotFound("id", str(run_id))
    info = rows.run_info(found[0])
    if info.kind != "workflow":
        return info
    began = await tx.rows("first_version", id=run_id)
    return replace(info, version=began[0]["version"] if began else None)


async def id_by_key(tx: Tx, key: str) -> UUID:
    found = await tx.rows("run_id_by_key", key=key)
    if not found:
        raise NotFound("key", key)
    run_id: UUID = found[0]["run_id"]
    return run_id


async def glimpses(tx: Tx, first: UUID, last: UUID, *, limit: int) -> list[Glimpse]:
    """Return the newest runs whose ids lie in this range."""
    found = await tx.rows("runs_between", first=first, last=last, limit=limit)
    return [Glimpse(row["id"], row["name"], State(row["state"]), row["created_at"]) for row in found]


async def waits(tx: Tx, ids: Sequence[UUID]) -> dict[UUID, Waits]:
    """Return what each of these runs waits for, if it is live."""
    return {row["id"]: _waits(row) for row in await tx.rows("waits_of", ids=list(ids))}


def _waits(row: Row) -> Waits:
    waits_for = {} if row["waits_for"] is None else msgspec.json.decode(row["waits_for"])
    blocked = None if row["blocked"] is None else msgspec.json.decode(row["blocked"])
    return Waits(tuple(waits_for.get("signals", ())), tuple(waits_for.get("runs", ())), row["due_at"], blocked)


async def attempts(tx: Tx, run_id: UUID) -> list[Attempt]:
    """Return every attempt of a run, with its log lines."""
    found = [rows.attempt(row) for row in await tx.rows("attempts_of", id=run_id)]
    lines = await notes.logs(tx, run_id) if found else []
    return [replace(each, logs=tuple(line for line in lines if line.attempt == each.attempt)) for each in found]


async def finished(tx: Tx, ids: Sequence[UUID], *, recent: bool = False) -> list[Finished]:
    """Return the finished ones of these runs. With `recent`, only those that finished in the last hour, which is
    cheaper."""
    return [_finished(row) for row in await tx.rows("recent_results" if recent else "results", ids=list(ids))]


def _finished(row: Row) -> Finished:
    state, error = State(row["state"]), rows.error(row["error"])
    return Finished(row["id"], plain_name(row["name"]), state, row["result"], error, row["attempt"])


async def existing(tx: Tx, ids: Sequence[UUID]) -> set[UUID]:
    """Return the ids of those runs that exist, live or finished."""
    return {row["id"] for row in await tx.rows("existing_runs", ids=list(ids))}


def packed(which: Filter) -> dict[str, Any]:
    """Convert a filter to the parameters of a statement."""
    return {
        "states": None if which.states is None else [state.value for state in which.states],
        "name": which.name,
        "queue": which.queue,
        "kind": which.kind,
        "tags": None if which.tags is None else encode(which.tags, where="tags"),
        "error": which.error,
        "since": which.since,
    }


async def page(tx: Tx, which: Filter, *, limit: int, after: UUID | None, most: int | None = None) -> Page:
    """Return a page of runs, newest first. One row more than is shown is read, to know whether there is another page.

    Where few runs match, a page may be short or even empty: the statement examines a limited number of runs, and `next`
    says how far it came.
    """
    most = most or LOOKED_AT
    values = packed(which) | {"most": most}
    name = "list_blocked_runs" if which.blocked else _LISTS.get(frozenset(which.states or ()), "list_runs")
    if name in _LISTS.values():
        del values["states"]
    if name in ("list_running_runs", "list_blocked_runs"):
        del values["most"]
    found = await tx.rows(name, after=after, limit=limit + 1, **values)
    items = [rows.run_info(row) for row in found if row["matches"]]
    if len(items) > limit:
        return Page(items[:limit], items[limit - 1].id)
    return Page(items, found[-1]["id"] if found and found[-1]["place"] == most else None)
