"""Runs as they move, one line each, and a line of counts when they have come to rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from stepwell.app import App
from stepwell.cli.printing import COLOURS, error_in_words, plain
from stepwell.concurrency.background import in_background
from stepwell.model.errors import Unavailable
from stepwell.model.queue import COUNTED
from stepwell.model.states import State
from stepwell.store.pool import Database, Row

if TYPE_CHECKING:
    from rich.console import Console

LOOK = 0.25
MOST = 500
"""Live runs that are followed; of more, nobody could read the lines."""
WIDEST = 200
"""Characters of an error that a line shows."""
RECENT = 5000
"""Finished runs, the newest, among which those that just finished are looked for."""
OVERLAP = timedelta(seconds=2)
"""How far a look reaches back behind the one before: a run may finish just before a look and commit just after it."""


@dataclass(frozen=True, slots=True)
class Move:
    """A run, seen in a state in which it was not seen before."""

    id: UUID
    kind: str
    name: str
    state: str
    attempt: int
    seconds: float | None
    """From the last attempt's start to the end, when it has finished."""
    failed: int | None
    """The last attempt that ended with an error, if that was the last to end; and the error's type and text."""
    error: str | None
    message: str | None
    due_in: float | None

    @classmethod
    def read(cls, row: Row) -> Move:
        return cls(**dict(row))

    def remarks(self) -> Iterator[str]:
        if self.attempt > 1:
            yield f"{'turn' if self.kind == 'workflow' else 'attempt'} {self.attempt}"
        if self.seconds is not None:
            yield f"{self.seconds:.2f} s"
        if self.due_in is not None and self.due_in > 0:
            yield f"in {self.due_in:.1f} s"
        if self.error is not None:
            told = error_in_words(self.error, self.message or "")
            shown = told if len(told) <= WIDEST else told[: WIDEST - 1] + "…"
            yield shown if State(self.state).finished else f"after {shown}"


class Moves:
    """Remembers where each run was last seen."""

    def __init__(self) -> None:
        self._seen: dict[UUID, tuple[str, int]] = {}
        self._failed: dict[UUID, int | None] = {}

    def new(self, moves: Sequence[Move]) -> list[Move]:
        """Those that were not seen so before, in the order in which the runs were started."""
        fresh = [self._new(move) for move in moves if self._seen.get(move.id) != (move.state, move.attempt)]
        # What is not told any more has finished a while ago: it can be forgotten.
        self._seen = {move.id: (move.state, move.attempt) for move in moves}
        self._failed = {move.id: move.failed for move in moves}
        return sorted(fresh, key=lambda move: move.id)

    def _new(self, move: Move) -> Move:
        """The move without an error that was told with the one before."""
        told = move.failed is not None and self._failed.get(move.id) == move.failed
        return replace(move, error=None) if told else move


@asynccontextmanager
async def moves_shown(app: App, console: Console) -> AsyncIterator[None]:
    """Print every move in the block, from its beginning on. What had moved before is not shown."""
    database = Database(app.dsn, app.settings.schema, size=1, pooler=app.settings.pooler)
    await database.open()
    try:
        moves = Moves()
        looked = time.monotonic()
        await _fresh(database, moves, OVERLAP)
        async with in_background(_show(database, moves, console, looked)):
            yield
    finally:
        await database.close()


async def _show(database: Database, moves: Moves, console: Console, looked: float) -> None:
    counts, quiet = "", True
    while True:
        began = time.monotonic()
        fresh = await _fresh(database, moves, OVERLAP + timedelta(seconds=began - looked))
        looked = began
        for move in fresh:
            console.print(_line(move))
        if not fresh and not quiet and (now := await _counts(database)) != counts:
            console.print(counts := now, style="dim")
        quiet = not fresh
        await asyncio.sleep(LOOK)


async def _fresh(database: Database, moves: Moves, since: timedelta) -> list[Move]:
    try:
        rows = await database.rows("moving_runs", since=since, limit=MOST, most=RECENT)
    except Unavailable:
        return []  # the worker says so itself
    return moves.new([Move.read(row) for row in rows])


async def _counts(database: Database) -> str:
    try:
        found = {row["state"]: row["runs"] for row in await database.rows("count_runs", most=COUNTED)}
    except Unavailable:
        return ""
    return "         " + " · ".join(f"{found[state.value]} {state.value}" for state in State if state.value in found)


def _line(move: Move) -> object:
    from rich.text import Text

    return Text.assemble(
        (time.strftime("%H:%M:%S "), "dim"),
        (f"{move.state:<10}", COLOURS.get(move.state, "")),
        f" {plain(move.name)} ",
        (str(move.id), "dim"),
        plain("".join(f", {remark}" for remark in move.remarks())),
    )
