"""Conversion of rows to values, by column name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stepwell.model.ids import ClaimId
from stepwell.model.notes import LogLine, Progress, Usage
from stepwell.model.run import Attempt, Claim, EndedRun, Error, Reason, RunInfo
from stepwell.model.states import State
from stepwell.store.pool import Row

_json = msgspec.json.decode


CLAIM = Claim.__struct_fields__[1:-5]
"""Columns of a claim, in order. Only these are read by position, for speed."""


def claims(rows: Sequence[Row], claim_id: ClaimId, *, first: int = 0) -> list[Claim]:
    """Convert the rows of one claim call; the columns of a claim begin at `first`."""
    last = first + len(CLAIM)
    return [Claim(claim_id, *row[first:last]) for row in rows]


def claim(row: Row) -> Claim:
    return Claim(ClaimId(row["claim_id"]), *(row[name] for name in CLAIM))


def ended_run(row: Row) -> EndedRun:
    return EndedRun(
        row["id"],
        row["kind"],
        row["name"],
        row["queue"],
        row["attempt"],
        row["failures"],
        row["key"],
        row["tags"],
    )


def run_info(row: Row) -> RunInfo:
    return RunInfo(
        id=row["id"],
        key=row["key"],
        kind=row["kind"],
        name=row["name"],
        queue=row["queue"],
        priority=row["priority"],
        state=State(row["state"]),
        input=_json(row["input"]),
        result=_optional(row["result"]),
        error=error(row["error"]),
        attempt=row["attempt"],
        failures=row["failures"],
        due_at=row["due_at"],
        expires_at=row["expires_at"],
        created_at=row["created_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        worker=row["claimed_by"],
        parent_id=row["parent_id"],
        root_id=row["root_id"] or row["id"],
        retry_of=row["retry_of"],
        node=row["node"],
        map_index=row["map_index"],
        tags=_optional(row["tags"]) or {},
    )


def attempt(row: Row) -> Attempt:
    return Attempt(
        run_id=row["run_id"],
        attempt=row["attempt"],
        outcome=row["outcome"],
        error=error(row["error"]),
        worker=row["claimed_by"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        host=row["host"],
        pid=row["pid"],
        usage=None if row["usage"] is None else msgspec.json.decode(row["usage"], type=Usage),
    )


def stored_usage(given: Usage | None) -> bytes | None:
    return None if given is None else msgspec.json.encode(given)


def progress(row: Row) -> Progress:
    total = None if row["total"] is None else _number(row["total"])
    return Progress(row["step"], _number(row["done"]), total, _optional(row["detail"]), row["at"])


def _number(stored: float) -> float:
    """Return a whole number as an int, since it was reported as one."""
    return int(stored) if stored.is_integer() else stored


def log_line(row: Row) -> LogLine:
    return LogLine(row["attempt"], row["at"], row["level"], row["logger"], row["message"])


def error(stored: bytes | None) -> Error | None:
    if stored is None:
        return None
    facts = _json(stored)
    return Error(facts["type"], facts["message"], Reason(facts["reason"]), facts.get("code"), facts.get("traceback"))


def stored_error(given: Error) -> bytes:
    """An error as it is stored. Its text is the user's: what `jsonb` cannot hold is replaced, not refused."""
    facts = {
        "type": _clean(given.type),
        "message": _clean(given.message),
        "reason": given.reason.value,
        "code": _clean(given.code) if given.code else None,
        "traceback": _clean(given.traceback) if given.traceback else None,
    }
    return msgspec.json.encode(facts)


def _clean(text: str) -> str:
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")


def _optional(stored: bytes | None) -> Any:
    return None if stored is None else _json(stored)
