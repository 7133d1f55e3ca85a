"""The client: every verb that is called from outside of a run. One per app and event loop."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from itertools import chain, islice
from uuid import UUID

from stepwell.client.bulk import BatchVerbs
from stepwell.client.result_waiter import ResultWaiter
from stepwell.client.start_batches import StartBatches
from stepwell.client.workflow_verbs import WorkflowVerbs
from stepwell.concurrency.collector import uncollected
from stepwell.concurrency.retry_unavailable import PATIENCE, T, patiently
from stepwell.dispatch.base import Channel, Wakes, tell_all
from stepwell.engine import ends, forks, notes, queues, reads, runs, workers
from stepwell.explain import explanation
from stepwell.model.errors import Unavailable
from stepwell.model.explanation import Explanation
from stepwell.model.ids import RunId, new_run_id
from stepwell.model.notes import LogLine, Progress
from stepwell.model.queue import Limits, QueueInfo
from stepwell.model.run import Attempt, Filter, Finished, Glimpse, Page, RunInfo, Waits
from stepwell.model.start import Start, are_debounced
from stepwell.model.turn import Consequences
from stepwell.model.worker import WorkerInfo
from stepwell.store.pool import Database, Tx
from stepwell.telemetry import Telemetry

NOTHING = timedelta(0)
COPY, COPY_BYTES = 50_000, 32 * 1024 * 1024
"""Limits of one COPY: runs, and bytes of their input. It ends long before a statement's timeout."""
BULK = 500
"""Number of plain starts from which on they are copied into the table."""


class NotPlain(Exception):
    """A batch to be copied contains a start that is not plain."""


class Client:
    """The verbs of an app that is open on one event loop. Each retries while the database is away for a moment."""

    def __init__(self, database: Database, wakes: Wakes, telemetry: Telemetry | None = None) -> None:
        self._telemetry = telemetry or Telemetry()
        self._database = database
        self._wakes = wakes
        self._waiting = ResultWaiter(database, wakes)
        self.outside = WorkflowVerbs(database, wakes)
        self.many = BatchVerbs(database, wakes, self._telemetry)
        self._starting = StartBatches(self._start_all, patience=PATIENCE)

    async def close(self) -> None:
        await self._waiting.close()

    async def start(self, start: Start) -> RunId:
        """Accept a run, and return its id. If the start's key is taken, that is the id of the run that holds it."""
        if not start.is_plain:
            return (await self._start_all([start]))[0]
        await self._starting.start(start)
        return start.id

    async def start_many(self, starts: Iterator[Start], count: int) -> dict[RunId, RunId]:
        """Accept about `count` runs, all or none. Return the ids that led to an existing run, and the id of that."""
        made: list[Start] = []
        try:
            if count >= BULK:
                await self._copy(starts, made)
                return {}
        except NotPlain:
            pass
        except Unavailable:
            made.extend(starts)
            if all(each.is_plain for each in made):
                await patiently(lambda _again: self._insert(made, again=True))
                self._tell(made)
                return {}
            # Some starts are not plain. Then the COPY had not reached its commit, and nothing was started.
        made.extend(starts)
        return await runs.once_for_each_key(made, self._start_all)

    async def _copy(self, starts: Iterator[Start], made: list[Start]) -> None:
        async with self._database.transaction() as tx:
            while (first := next(starts, None)) is not None:
                made.append(first)  # before the COPY begins: it may fail before it takes the first row
                with uncollected():
                    await runs.start_plain(tx, _plain(first, starts, made))
        self._tell(made)

    async def _start_all(self, starts: Sequence[Start]) -> list[RunId]:
        if not starts:
            return []
        if len(starts) == 1 and starts[0].is_plain:
            return [await self._start_one(starts[0])]
        if are_debounced(starts):
            return await self._debounce(starts)
        ids = await patiently(lambda again: self._insert(starts, again=again))
        self._tell(starts)
        return ids

    async def _start_one(self, start: Start) -> RunId:
        word = self._wakes.word(Channel.PENDING, [start.terms.queue])
        self._waiting.started([start.id])  # before the start is sent: its end may be announced before the answer

        async def insert(again: bool) -> bool:
            if not again:
                return await runs.start_one(self._database, start, word)
            await self._insert([start], again=True)
            return False

        said = await patiently(insert)
        self._tell([start], pending=not said)
        return start.id

    async def _debounce(self, starts: Sequence[Start]) -> list[RunId]:
        async def insert(again: bool) -> list[RunId]:
            async with self._database.transaction() as tx:
                # A run of the first try may have begun or finished since: another debounce would make a second run.
                there = await reads.existing(tx, [each.id for each in starts]) if again else set()
                made = {each.debounce_key: each.id for each in starts if each.id in there}
                return [made.get(each.debounce_key) or await runs.debounce(tx, each) for each in starts]

        ids = await patiently(insert)
        self._tell(starts)
        return ids

    async def _insert(self, starts: Sequence[Start], *, again: bool) -> list[RunId]:
        together = len(starts) <= runs.MOST and (len(starts) == 1 or all(each.key is None for each in starts))
        if together and not again:
            return await runs.start(self._database, starts)
        async with self._database.transaction() as tx:
            ids = await runs.start_all(tx, starts)
            if again:
                # The first try may have committed, and its runs may have finished since.
                await runs.undo_finished_starts(tx, [each.id for each in starts])
                await runs.note_repeated_starts(tx, [each.id for each in starts])
        return ids

    def _tell(self, started: Sequence[Start], *, pending: bool = True) -> None:
        """Announce new runs to workers, unless `pending` is false, and to the `due` service if they have a time."""
        self._waiting.started(each.id for each in started if each.key is None)
        terms = {each.terms for each in started}
        if pending:
            self._wakes.announce(Channel.PENDING, {each.queue for each in terms if not each.is_delayed})
        # The leader of `due` uses its own clock only to decide when to poll; for a time of day it polls at once.
        waits = {each.delay or NOTHING for each in terms if each.is_delayed}
        waits |= {each.expires for each in terms if each.expires is not None}
        waits |= {each.deadline for each in terms if each.deadline is not None}
        if waits:
            self._wakes.announce(Channel.SCHEDULED, [f"{min(waits).total_seconds():.3f}"])

    async def retry(self, run_id: UUID) -> RunId:
        new_id = new_run_id()

        async def start_again(again: bool) -> set[str]:
            async with self._database.transaction() as tx:
                return await forks.start_again(tx, run_id, new_id, again=again)

        self._wakes.announce(Channel.PENDING, await patiently(start_again))
        return new_id

    async def cancel(self, run_id: UUID, *, force: bool = False) -> None:
        async def cancel(_again: bool) -> Consequences:
            async with self._database.transaction() as tx:
                moved, after = await ends.cancel(tx, [run_id], force=force)
                if not moved and not after.asked:
                    await runs.refuse_finished(tx, run_id)
            after.cancelled += [] if after.asked else [run_id]
            return after

        after = await patiently(cancel)
        tell_all(self._wakes, after)
        if after.gone:
            self._telemetry.tell("runs.cancelled", runs=after.gone)

    async def wait(self, run_id: UUID) -> Finished:
        return await self._waiting.wait(run_id)

    async def info(self, run_id: UUID) -> RunInfo:
        return await patiently(lambda _again: reads.run_info(self._database, run_id))

    async def id_by_key(self, key: str) -> UUID:
        return await patiently(lambda _again: reads.id_by_key(self._database, key))

    async def glimpses(self, first: UUID, last: UUID, *, limit: int) -> list[Glimpse]:
        """Return the newest runs whose ids lie in this range, both ends included."""
        return await patiently(lambda _again: reads.glimpses(self._database, first, last, limit=limit))

    async def waits(self, ids: Sequence[UUID]) -> dict[UUID, Waits]:
        """Return what each live run among these waits for."""
        return await patiently(lambda _again: reads.waits(self._database, ids))

    async def attempts(self, run_id: UUID) -> list[Attempt]:
        return await patiently(lambda _again: reads.attempts(self._database, run_id))

    async def progress(self, run_id: UUID) -> list[Progress]:
        return await patiently(lambda _again: notes.progress(self._database, run_id))

    async def logs(self, run_id: UUID, *, attempt: int | None = None) -> list[LogLine]:
        return await patiently(lambda _again: notes.logs(self._database, run_id, attempt=attempt))

    async def runs(self, which: Filter, *, limit: int, after: UUID | None, within: timedelta | None = None) -> Page:
        """Return one page of runs, newest first, with as many statements as it takes, for at most `within`."""
        until = math.inf if within is None else time.monotonic() + within.total_seconds()
        found = Page([], after)
        while True:
            next = await self._page(which, limit=limit - len(found.items), after=found.next)
            found = Page([*found.items, *next.items], next.next)
            if found.next is None or len(found.items) == limit or time.monotonic() >= until:
                return found

    async def _page(self, which: Filter, *, limit: int, after: UUID | None) -> Page:
        return await patiently(lambda _again: reads.page(self._database, which, limit=limit, after=after))

    async def explain(self, run_id: UUID) -> Explanation:
        async def ask(_again: bool) -> Explanation:
            async with self._database.transaction() as tx:
                return await explanation.explanation(tx, run_id)

        return await patiently(ask)

    # -- queues and workers

    async def workers(self, ids: Sequence[UUID] | None = None) -> list[WorkerInfo]:
        return await patiently(lambda _again: workers.seen(self._database, ids))

    async def _change_queue(self, change: Callable[[Tx], Awaitable[T]]) -> T:
        """Change a queue in a transaction: a first try that was delayed never commits, so it undoes nothing later."""

        async def ask(_again: bool) -> T:
            async with self._database.transaction() as tx:
                return await change(tx)

        return await patiently(ask)

    async def set_limits(self, queue: str, limits: Limits, sets: set[str]) -> None:
        await self._change_queue(lambda tx: queues.set_limits(tx, queue, limits, sets=sets))
        await patiently(lambda _again: queues.count_in(self._database, queue))
        self._wakes.announce(Channel.LIMITED, [queue])
        self._wakes.announce(Channel.PENDING, [queue])

    async def pause_queue(self, queue: str, by: str) -> None:
        await self._change_queue(lambda tx: queues.pause(tx, queue, by=by))

    async def resume_queue(self, queue: str) -> bool:
        resumed = await self._change_queue(lambda tx: queues.resume(tx, queue))
        self._wakes.announce(Channel.PENDING, [queue])
        return resumed

    async def queues(self, name: str | None = None) -> list[QueueInfo]:
        return await patiently(lambda _again: queues.seen(self._database, name))


def _plain(first: Start, others: Iterator[Start], made: list[Start]) -> Iterator[Start]:
    """Yield the starts of one COPY, and add each to `made`. Raise NotPlain at the first that is not plain."""
    size, terms = 0, None
    for start in chain([first], islice(others, COPY - 1)):
        if start is not first:
            made.append(start)
        if start.terms is not terms or not start.has_no_key:
            if not start.is_plain:
                raise NotPlain
            terms = start.terms
        yield start
        size += len(start.input)
        if size > COPY_BYTES:
            return
