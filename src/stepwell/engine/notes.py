"""Notes: the progress and log lines of running bodies, written for many attempts at once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from stepwell.model.notes import LineNote, LogLine, Progress, StepNote
from stepwell.store import rows
from stepwell.store.pool import Tx

MOST_LINES = 10_000
"""Maximum number of lines read at once: those of ten attempts that wrote as many as they may."""


async def write(tx: Tx, steps: Sequence[StepNote], lines: Sequence[LineNote], *, now: float) -> None:
    """Write notes, one statement for each kind. A repeated call does no harm. `now` is by the clock of the notes."""
    if steps:
        await tx.rows(
            "note_steps",
            run_ids=[each.run_id for each in steps],
            steps=[each.step for each in steps],
            attempts=[each.attempt for each in steps],
            dones=[each.done for each in steps],
            totals=[each.total for each in steps],
            details=[each.detail for each in steps],
            ages=[_age(now, each.at) for each in steps],
        )
    if lines:
        await tx.rows(
            "note_lines",
            run_ids=[each.run_id for each in lines],
            attempts=[each.attempt for each in lines],
            idxs=[each.idx for each in lines],
            ages=[_age(now, each.at) for each in lines],
            levels=[each.level for each in lines],
            loggers=[each.logger for each in lines],
            messages=[each.message for each in lines],
        )


def _age(now: float, at: float) -> timedelta:
    return timedelta(seconds=max(0.0, now - at))


async def progress(tx: Tx, run_id: UUID) -> list[Progress]:
    return [rows.progress(row) for row in await tx.rows("progress_of", id=run_id)]


async def logs(tx: Tx, run_id: UUID, *, attempt: int | None = None, limit: int = MOST_LINES) -> list[LogLine]:
    """Return the last lines of a run, in the order in which they were written."""
    return [rows.log_line(row) for row in await tx.rows("logs_of", id=run_id, attempt=attempt, limit=limit)]
