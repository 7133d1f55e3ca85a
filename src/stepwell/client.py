"""The client: every verb that is asked from outside of a run. One per app and event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import TypeVar
from uuid import UUID

from stepwell.dispatch.base import Channel, Dispatch
from stepwell.engine import explain, notes, queues, reads, runs, workers
from stepwell.garbage import uncollected
from stepwell.many import Many
from stepwell.model.errors import InvalidSetting, Unavailable
from stepwell.model.explanation import Explanation
from stepwell.model.ids import RunId, new_run_id
from stepwell.model.notes import LogLine, Progress
from stepwell.model.queue import Limits, QueueInfo
from stepwell.model.run import Attempt, Filter, Finished, Page, RunInfo
from stepwell.model.start import Start, first_by_key
from stepwell.model.worker import WorkerInfo
from stepwell.starting import Starting
from stepwell.store.pool import Database
from stepwell.waiting import Waiting

T = TypeVar("T")

NOTHING = timedelta(0)
PATIENCE = 15.0
"""Seconds for which a verb outlasts a database that is away, before it raises Unavailable."""
MOST = 5_000
"""Runs of one statement: enough to be fast, and a bound on what one call can hold up."""
COPY, COPY_BYTES = 50_000, 32 * 1024 * 1024
"""Runs of one copy, and bytes of their input: it ends long before a statement's time is out."""
BULK = 500
"""From this many on, plain starts are copied into the table."""


class NotPlain(Exception):
    """A start that cannot be copied was among those to be."""


class Client:
    def __init__(self, database: Database, dispatch: Dispatch) -> None:
        self._database = database
        self._dispatch = dispatch
        self._waiting = Waiting(database, dispatch)
        self.many = Many(database, dispatch, self._patiently)
        self._starting = Starting(self._start_all, patience=PATIENCE)

    async def close(self) -> None:
        await self._waiting.close()

    async def start(self, start: Start) -> RunId:
        """Accept a run; the id it led to, which with a key may be another's."""
        if not start.is_plain:
            return (await self._start_all([start]))[0]
        await self._starting.start(start)
        return start.id

    async def start_many(self, starts: Iterator[Start], count: int) -> list[tuple[Start, RunId]]:
        """Accept about `count` runs, all of them or none; each with the id it led to."""
        if count < BULK:
            made = list(starts)
            return list(zip(made, await self._start_unique(made), strict=True))
        made = []
        try:
            async with self._database.transaction() as tx:
                begun = -1
                while begun < len(made):
                    begun = len(made)
                    with uncollected():
                        await runs.start_plain(tx, _plain(starts, made))
        except NotPlain:
            made.extend(starts)
            return list(zip(made, await self._start_unique(made), strict=True))
        except Unavailable:
            made.extend(starts)
            if not all(each.is_plain for each in made):
                # Then the commit was not sent: nothing was started.
                return list(zip(made, await self._start_unique(made), strict=True))
            await self._patiently(lambda _again: self._insert(made, again=True))
        self._tell(made)
        return [(each, each.id) for each in made]

    async def _start_unique(self, starts: Sequence[Start]) -> list[RunId]:
        """Starts with the same key lead to the same run."""
        first = first_by_key(starts)
        if not first:
            return await self._start_all(starts)
        unique = [each for each in starts if each.key is None or first[each.key] is each]
        ids = dict(zip((each.id for each in unique), await self._start_all(unique), strict=True))
        return [ids[each.id if each.key is None else first[each.key].id] for each in starts]

    async def _start_all(self, starts: Sequence[Start]) -> list[RunId]:
        if not starts:
            return []
        if len(starts) == 1 and starts[0].is_plain:
            return [await self._start_one(starts[0])]
        if any(each.debounce_key is not None for each in starts):
            return await self._debounce(starts)
        ids = await self._patiently(lambda again: self._insert(starts, again=again))
        self._tell(starts)
        return ids

    async def _start_one(self, start: Start) -> RunId:
        word = self._dispatch.word(Channel.PENDING, [start.terms.queue])

        async def insert(again: bool) -> bool:
            if not again:
                return await runs.start_one(self._database, start, word)
            await self._insert([start], again=True)
            return False

        said = await self._patiently(insert)
        self._tell([start], pending=not said)
        return start.id

    async def _debounce(self, starts: Sequence[Start]) -> list[RunId]:
        if not all(each.debounce_key is not None for each in starts):
            raise InvalidSetting("start_many", "debounce", "what is debounced is started apart from what is not")

        async def insert(_again: bool) -> list[RunId]:
            # Asked again it is the same: it leads to the run that it led to, or to the one that came after it.
            async with self._database.transaction() as tx:
                return [await runs.debounce(tx, each) for each in starts]

        ids = await self._patiently(insert)
        self._tell(starts)
        return ids

    async def _insert(self, starts: Sequence[Start], *, again: bool) -> list[RunId]:
        together = len(starts) <= MOST and (len(starts) == 1 or all(each.key is None for each in starts))
        if together and not again:
            return await runs.start(self._database, starts)
        async with self._database.transaction() as tx:
            ids: list[RunId] = []
            for first in range(0, len(starts), MOST):
                ids += await runs.start(tx, starts[first : first + MOST])
            if again:
                # The first try may have committed, and its runs have finished since.
                await runs.undo_finished_starts(tx, [each.id for each in starts])
                await runs.note_repeated_starts(tx, [each.id for each in starts])
        return ids

    def _tell(self, started: Sequence[Start], *, pending: bool = True) -> None:
        """Everyone whom it concerns; of what is `pending`, unless that was said already."""
        self._waiting.started(each.id for each in started if each.key is None)
        terms = {each.terms for each in started}
        if pending:
            self._dispatch.announce(Channel.PENDING, {each.queue for each in terms if not each.is_delayed})
        # Who leads `due` reckons by its own clock only when to look: for a time of day, at once.
        waits = {each.delay or NOTHING for each in terms if each.is_delayed}
        waits |= {each.expires for each in terms if each.expires is not None}
        if waits:
            self._dispatch.announce(Channel.SCHEDULED, [f"{min(waits).total_seconds():.3f}"])

    async def retry(self, run_id: UUID) -> RunId:
        new_id = new_run_id()

        async def start_again(again: bool) -> str:
            async with self._database.transaction() as tx:
                queue = await runs.start_again(tx, run_id, new_id)
                if again:
                    await runs.undo_finished_starts(tx, [new_id])
                    await runs.note_repeated_starts(tx, [new_id])
            return queue

        self._dispatch.announce(Channel.PENDING, [await self._patiently(start_again)])
        return new_id

    async def cancel(self, run_id: UUID) -> None:
        moved = await self._patiently(lambda _again: runs.cancel(self._database, [run_id]))
        if not moved:
            await self._patiently(lambda _again: runs.refuse_finished(self._database, run_id))
        self._dispatch.announce(Channel.CANCELLED, [run_id.hex])
        self._dispatch.announce(Channel.FINISHED, [run_id.hex])

    async def wait(self, run_id: UUID) -> Finished:
        return await self._waiting.wait(run_id)

    async def info(self, run_id: UUID) -> RunInfo:
        return await self._patiently(lambda _again: reads.run_info(self._database, run_id))

    async def id_by_key(self, key: str) -> UUID:
        return await self._patiently(lambda _again: reads.id_by_key(self._database, key))

    async def attempts(self, run_id: UUID) -> list[Attempt]:
        return await self._patiently(lambda _again: reads.attempts(self._database, run_id))

    async def progress(self, run_id: UUID) -> list[Progress]:
        return await self._patiently(lambda _again: notes.progress(self._database, run_id))

    async def logs(self, run_id: UUID, *, attempt: int | None = None) -> list[LogLine]:
        return await self._patiently(lambda _again: notes.logs(self._database, run_id, attempt=attempt))

    async def runs(self, which: Filter, *, limit: int, after: UUID | None) -> Page:
        return await self._patiently(lambda _again: reads.page(self._database, which, limit=limit, after=after))

    async def explain(self, run_id: UUID) -> Explanation:
        async def ask(_again: bool) -> Explanation:
            async with self._database.transaction() as tx:
                return await explain.explanation(tx, run_id)

        return await self._patiently(ask)

    # -- queues and workers

    async def workers(self, ids: Sequence[UUID] | None = None) -> list[WorkerInfo]:
        return await self._patiently(lambda _again: workers.seen(self._database, ids))

    async def set_limits(self, queue: str, limits: Limits, sets: set[str]) -> None:
        await self._patiently(lambda _again: queues.set_limits(self._database, queue, limits, sets=sets))
        await self._patiently(lambda _again: queues.count_in(self._database, queue))
        self._dispatch.announce(Channel.PENDING, [queue])

    async def pause_queue(self, queue: str, by: str) -> None:
        await self._patiently(lambda _again: queues.pause(self._database, queue, by=by))

    async def resume_queue(self, queue: str) -> bool:
        resumed = await self._patiently(lambda _again: queues.resume(self._database, queue))
        self._dispatch.announce(Channel.PENDING, [queue])
        return resumed

    async def queues(self, name: str | None = None) -> list[QueueInfo]:
        return await self._patiently(lambda _again: queues.seen(self._database, name))

    async def _patiently(self, ask: Callable[[bool], Awaitable[T]]) -> T:
        """Outlast a short absence of the database. `ask` is told when it asks again: what it asked before
        may have happened."""
        end, pause, again = None, 0.05, False
        while True:
            try:
                return await ask(again)
            except Unavailable:
                # From the first failure on: it may itself have been a long wait, on a line that was dead.
                end = end or time.monotonic() + PATIENCE
                if time.monotonic() + pause > end:
                    raise
                again = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)


def _plain(starts: Iterator[Start], made: list[Start]) -> Iterator[Start]:
    """Those of the next copy, noted as they are made, as long as they are plain."""
    size, terms = 0, None
    for start in islice(starts, COPY):
        made.append(start)
        if start.terms is not terms or start.key is not None:
            if not start.is_plain:
                raise NotPlain
            terms = start.terms
        yield start
        size += len(start.input)
        if size > COPY_BYTES:
            return
