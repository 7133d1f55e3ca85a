"""Runs as they move, one line each, and a line of counts when they have come to rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from stepwell.app import App
from stepwell.cli.printing import COLOURS, error_in_words, plain
from stepwell.concurrency.background import in_background
from stepwell.model.errors import Unavailable
from stepwell.model.states import State
from stepwell.operator.statistics import Move, Statistics

if TYPE_CHECKING:
    from rich.console import Console

LOOK = 0.25
WIDEST = 200
"""Characters of an error that a line shows."""
OVERLAP = timedelta(seconds=2)
"""Time by which polls overlap: a run may finish just before a poll and commit just after it."""


def remarks(move: Move) -> Iterator[str]:
    """Remarks about a move, beside its state."""
    if move.attempt > 1:
        yield f"{'turn' if move.kind == 'workflow' else 'attempt'} {move.attempt}"
    if move.seconds is not None:
        yield f"{move.seconds:.2f} s"
    if move.due_in is not None and move.due_in > 0:
        yield f"in {move.due_in:.1f} s"
    if move.error is not None:
        told = error_in_words(move.error, move.message or "")
        shown = told if len(told) <= WIDEST else told[: WIDEST - 1] + "…"
        yield shown if State(move.state).finished else f"after {shown}"


class Moves:
    """Remembers where each run was last seen."""

    def __init__(self) -> None:
        self._seen: dict[UUID, tuple[str, int]] = {}
        self._failed: dict[UUID, int | None] = {}

    def new(self, moves: Sequence[Move]) -> list[Move]:
        """Return the moves that were not seen before, in the order in which the runs were started."""
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
    statistics, moves = app.operator.statistics, Moves()
    looked = time.monotonic()
    await _fresh(statistics, moves, OVERLAP)
    async with in_background(_show(statistics, moves, console, looked)):
        yield


async def _show(statistics: Statistics, moves: Moves, console: Console, looked: float) -> None:
    counts, quiet = "", True
    while True:
        began = time.monotonic()
        fresh = await _fresh(statistics, moves, OVERLAP + timedelta(seconds=began - looked))
        looked = began
        for move in fresh:
            console.print(_line(move))
        if not fresh and not quiet and (now := await _counts(statistics)) != counts:
            console.print(counts := now, style="dim")
        quiet = not fresh
        await asyncio.sleep(LOOK)


async def _fresh(statistics: Statistics, moves: Moves, since: timedelta) -> list[Move]:
    try:
        return moves.new(await statistics.moving(since))
    except Unavailable:
        return []  # the worker says so itself


async def _counts(statistics: Statistics) -> str:
    try:
        found = await statistics.counts()
    except Unavailable:
        return ""
    return "         " + " · ".join(f"{count} {state.value}" for state, count in found.items())


def _line(move: Move) -> object:
    from rich.text import Text

    return Text.assemble(
        (time.strftime("%H:%M:%S "), "dim"),
        (f"{move.state:<10}", COLOURS.get(move.state, "")),
        f" {plain(move.name)} ",
        (str(move.id), "dim"),
        plain("".join(f", {remark}" for remark in remarks(move))),
    )
