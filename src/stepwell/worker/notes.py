"""Notes: progress and log lines of all bodies of a worker, gathered in memory and written in batches in the background.

A body never waits for a note, on any thread. Notes are written every half second, and soon after the end of an attempt
that made one. While the database is away they are kept, up to a limit; of progress only the last report counts.
Checkpoints are different: a body awaits them, for they are promises.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from stepwell.concurrency.background import in_time
from stepwell.concurrency.retry_unavailable import patiently
from stepwell.context.current import Running, noted
from stepwell.context.log_capture import capturing
from stepwell.model.errors import Unavailable
from stepwell.model.ids import RunId
from stepwell.model.notes import LineNote, Saved, Saves, StepNote
from stepwell.model.run import Claim
from stepwell.telemetry import log
from stepwell.worker.link import Link

T = TypeVar("T")
Group = tuple[list[StepNote], list[LineNote], dict[Claim, Running]]

EVERY, SOON = 0.5, 0.05
"""Seconds between two writes; the second after the end of an attempt that made a note."""
GROUP = 1000
"""Limit of lines, and of steps, in one statement."""
WAITING = 20_000
"""Limit of lines that wait for the database. Further lines are dropped and counted."""


class Notes:
    """Gathers the notes of bodies, writes them, and serves checkpoints."""

    def __init__(self, link: Link, *, capture: int | None = None) -> None:
        self.capture = capture
        self._link = link
        # Reentrant: a signal handler or a garbage collection may log while the lock is held.
        self._lock = threading.RLock()
        self._steps: dict[tuple[RunId, str], StepNote] = {}
        self._lines: list[LineNote] = []
        self._short: dict[Claim, Running] = {}
        """Attempts that had lines dropped since the last write."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stirred = asyncio.Event()
        self._soon = asyncio.Event()
        self._writing = asyncio.Lock()
        self._woken = False

    # -- what bodies say, from any thread

    def alive(self, here: Running) -> None:
        here.alive_at = time.monotonic()

    def progress(self, here: Running, step: str, done: float, total: float | None, detail: bytes | None) -> None:
        claim = here.claim
        with self._lock:
            taken = noted(here).takes_step(step)
            if taken:
                note = StepNote(claim.id, claim.attempt, step, done, total, detail, time.monotonic())
                self._steps[claim.id, step] = note
        if taken:
            self._wake()
        else:
            log.warning("%s %s reports progress of too many steps: only the first ones are kept", claim.name, claim.id)

    def line(self, here: Running, level: str, logger: str, message: str) -> None:
        claim = here.claim
        with self._lock:
            said = noted(here)
            if len(self._lines) < WAITING and said.takes_line(len(message.encode())):
                at = time.monotonic()
                self._lines.append(LineNote(claim.id, claim.attempt, said.lines, level, logger, message, at))
            else:
                self._leave_out(here, 0 if len(self._lines) < WAITING else 1)
        self._wake()

    def leave_out(self, here: Running, lines: int) -> None:
        if lines:
            with self._lock:
                self._leave_out(here, lines)
            self._wake()

    def ended(self) -> None:
        """Write soon: an attempt that made a note has ended, and its notes may be read now."""
        self._soon.set()
        self._stirred.set()

    def _leave_out(self, here: Running, lines: int) -> None:
        noted(here).dropped += lines
        self._short[here.claim] = here

    def _wake(self) -> None:
        if self._woken or self._loop is None:
            return
        self._woken = True
        # The loop may be closed already, and then nothing is written any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stirred.set)

    # -- writing

    async def run(self) -> None:
        """Write notes until cancelled."""
        self._loop = asyncio.get_running_loop()
        self._stirred.set()
        with capturing(self.capture):
            await self._write_for_ever(self._loop.time)

    async def _write_for_ever(self, now: Callable[[], float]) -> None:
        last = 0.0
        while True:
            await self._stirred.wait()
            await in_time(last + EVERY - now(), self._soon.wait())
            await asyncio.sleep(max(0.0, last + SOON - now()))
            self._stirred.clear()
            self._soon.clear()
            try:
                await self.flush()
            except Unavailable as error:
                log.warning("cannot write progress and log lines, will try again: %s", error)
                self._stirred.set()
            except Exception:
                log.exception("progress and log lines were dropped: they cannot be written")
            last = now()

    async def flush(self) -> None:
        """Write all notes that were gathered, after the write that is under way."""
        async with self._writing:
            while True:
                self._woken = (
                    False  # before reading the notes: a thread that still sees it set has added its note before that
                )
                group = self._taken()
                if not any(group):
                    return
                steps, lines, short = group
                try:
                    await self._link.note(steps, [*lines, *map(_left_out, short.values())], now=time.monotonic())
                except (Unavailable, asyncio.CancelledError):
                    self._put_back(group)
                    raise

    def _taken(self) -> Group:
        with self._lock:
            steps = [self._steps.pop(key) for key in list(self._steps)[:GROUP]]
            lines, self._lines = self._lines[:GROUP], self._lines[GROUP:]
            short, self._short = self._short, {}
        return steps, lines, short

    def _put_back(self, group: Group) -> None:
        steps, lines, short = group
        with self._lock:
            for step in steps:
                self._steps.setdefault((step.run_id, step.step), step)
            self._lines = lines + self._lines
            self._short = short | self._short

    # -- checkpoints

    async def save(self, here: Running, state: bytes, schema: int) -> int:
        with self._lock:
            said = noted(here)
            saves = said.saves = said.saves or Saves()
        return await self._at_home(lambda: self._save(here.claim, state, schema, saves))

    async def _save(self, claim: Claim, state: bytes, schema: int, saves: Saves) -> int:
        """Save in place of the version before, and of no other: a first try that arrives late is refused."""

        async def save(again: bool) -> int:
            while True:
                version, saved = await self._link.save(claim, state, schema=schema, after=saves.last)
                # Refused, and this is a retry: the version there is our own first try, unless an earlier save was given
                # up in doubt. Then it may be that one.
                if saved or (again and not was_in_doubt):
                    return version
                saves.last = version

        async with saves.turn:
            was_in_doubt, saves.in_doubt = saves.in_doubt, True
            saves.last = await patiently(save)
            saves.in_doubt = was_in_doubt
            return saves.last

    async def load(self, here: Running) -> Saved | None:
        return await self._at_home(lambda: patiently(lambda _again: self._link.load(here.claim)))

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asked, self._home).result()

    async def _at_home(self, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the worker's own loop, where its connections are: a thread may have a loop of its own."""
        if asyncio.get_running_loop() is self._home:
            return await ask()
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(ask(), self._home))

    @property
    def _home(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise Unavailable("the worker has not started, or has stopped")
        return self._loop


def _left_out(here: Running) -> LineNote:
    said, claim = noted(here), here.claim
    lines = "1 more line was" if said.dropped == 1 else f"{said.dropped} more lines were"
    text = f"{lines} left out: {said.lines} lines of this attempt are kept"
    return LineNote(claim.id, claim.attempt, said.lines + 1, "WARNING", "stepwell", text, time.monotonic())
