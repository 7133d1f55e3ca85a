"""Waiting for results: ten thousand waiters cost one listener and one statement at a time.

Workers announce finished runs only while someone waits. A waiter therefore says that it waits, at first and then again
every few seconds. A worker may finish a run before it has heard that. So the table is polled while that message
spreads, and whenever announcements may have been missed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from uuid import UUID

from stepwell.concurrency.background import in_time
from stepwell.dispatch.base import WE, WHO, Channel, Wakes
from stepwell.engine import reads
from stepwell.model.errors import NotFound, Unavailable
from stepwell.model.ids import uuid_of
from stepwell.model.run import Finished
from stepwell.store.pool import Database
from stepwell.telemetry import log

BATCH = 1000
POLL = 5.0
POLL_DEAF = 0.5
"""Seconds between polls of everything awaited; the second while announcements do not arrive."""
SPREADING = (0.01, 0.04, 0.2, 1.0)
"""Seconds between polls after the first message that someone waits."""
NEW = 1000
"""Number of runs started here that are remembered as new."""

Future = asyncio.Future[Finished | None]
"""The end of a run. None: the end was announced, and the run's only waiter may read it itself."""


class ResultWaiter:
    """Waits for runs to finish. One poll answers all waiters, and covers new ids, announced ids and, now and then, all
    ids."""

    def __init__(self, database: Database, wakes: Wakes) -> None:
        self._database = database
        self._wakes = wakes
        self._futures: dict[UUID, set[Future]] = {}
        self._fresh: set[UUID] = set()
        """Ids that were awaited only now: there may be no such run."""
        self._look: set[UUID] = set()
        """Runs that may just have finished: the next poll reads the newest days."""
        self._look_far: set[UUID] = set()
        """Runs that may have finished long ago: the next poll reads every day that is kept."""
        self._stirred = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._unsubscribe: list[Callable[[], None]] = []
        self._looks: deque[float] = deque()
        """Pauses before the next polls of the doubted runs."""
        self._doubted: set[UUID] = set()
        """Runs that may finish without an announcement."""
        self._looked_at_all = 0.0
        self._said, self._is_known = -POLL, False
        """Time of the last message that someone waits; and whether every worker has heard one."""
        self._new: dict[UUID, bool] = {}
        """Runs started here while every worker knew that we wait, and whether their end was announced. If it was not,
        no poll is needed."""
        self._closed = False

    def started(self, ids: Iterable[UUID]) -> None:
        """Remember that these runs exist, or are about to. Their ends will be announced if the workers know that we
        wait."""
        if self._is_known and asyncio.get_running_loop().time() < self._said + POLL:
            newest = deque(ids, maxlen=NEW)
            if len(self._new) + len(newest) > NEW:
                self._new = {each: False for each, announced in self._new.items() if not announced}
            if len(self._new) + len(newest) > NEW:
                self._new.clear()  # a waiter for one of them polls at once
            for run_id in newest:
                self._new.setdefault(run_id, False)

    async def wait(self, run_id: UUID) -> Finished:
        """Wait until the run has finished, and return how."""
        known = self._new.pop(run_id, None) is False
        while True:
            answer = await self._await(run_id, known=known)
            if answer is not None:
                return answer
            try:
                for finished in await reads.finished(self._database, [run_id], recent=True):
                    return finished
            except Unavailable:
                pass
            known = False  # announced, but not found: wait for the shared poll

    async def _await(self, run_id: UUID, *, known: bool) -> Finished | None:
        """Wait for the shared poll. Return None if the end was announced, and this is the only waiter."""
        if self._closed:
            raise Unavailable("the app was closed")
        future: Future = asyncio.get_running_loop().create_future()
        self._futures.setdefault(run_id, set()).add(future)
        self._begin()
        if known:
            self._doubt([run_id], SPREADING[1:])
        else:
            self._fresh.add(run_id)
            self._look_far.add(run_id)
            self._stirred.set()
        try:
            return await future
        finally:
            self._forget(run_id, future)

    async def close(self) -> None:
        self._closed = True
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        self._tell_all(Unavailable("the app was closed"))

    def _begin(self) -> None:
        if self._watch is None:
            self._unsubscribe = [
                self._wakes.subscribe(Channel.FINISHED, self._heard_finished),
                self._wakes.subscribe(Channel.AWAITED, self._heard_awaited),
            ]
            self._watch = asyncio.create_task(self._run(), name="stepwell.client.result_waiter")
            self._watch.add_done_callback(self._watch_ended)
        if asyncio.get_running_loop().time() >= self._said + POLL:
            self._say()

    def _say(self) -> None:
        """Announce that someone waits. If the last such message is too old, it takes a while until every worker has
        heard it."""
        now = asyncio.get_running_loop().time()
        if now >= self._said + 2 * POLL:
            self._is_known = False
            self._doubt(self._futures, SPREADING)
        self._said = now
        self._wakes.announce(Channel.AWAITED, [WE])

    def _doubt(self, ids: Iterable[UUID], pauses: Sequence[float]) -> None:
        """Poll these runs after each of the pauses, since they may finish without an announcement.

        Runs that are added during the polls of others share the polls that are left, and then get the rest of their
        own.
        """
        self._doubted.update(ids)
        if not self._looks:
            self._stirred.set()
        self._looks.extend(pauses[len(self._looks) :])

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        """Raise the error of the polling task in every waiter, unless the database is merely away: they would wait for
        ever."""
        if watch.cancelled() or (error := watch.exception()) is None:
            return
        self._watch = None
        self._tell_all(error)

    def _tell_all(self, error: BaseException) -> None:
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []
        for future in [each for futures in self._futures.values() for each in futures if not each.done()]:
            future.set_exception(error)

    def _forget(self, run_id: UUID, future: Future) -> None:
        futures = self._futures.get(run_id)
        if futures is not None:
            futures.discard(future)
            if not futures:
                del self._futures[run_id]

    def _heard_finished(self, ids: Sequence[str] | None) -> None:
        if ids is None:
            self._new.clear()
            self._look_far |= self._futures.keys()
        else:
            for run_id in _among(ids, self._new):
                self._new[run_id] = True
            awaited = _among(ids, self._futures)
            if awaited:
                self._wakes.answered(Channel.PENDING)
            if len(awaited) == 1 and self._let_look(*awaited):
                return
            self._look |= awaited
        if self._look or self._look_far:
            self._stirred.set()

    def _let_look(self, run_id: UUID) -> bool:
        """Let a run's only waiter read the result itself: that is quicker than the shared poll. Tell whether there was
        just one."""
        waiting = [future for future in self._futures[run_id] if not future.done()]
        if len(waiting) == 1:
            waiting[0].set_result(None)
        return len(waiting) == 1

    def _heard_awaited(self, words: Sequence[str] | None) -> None:
        if words is None or WHO in words:
            if self._futures:
                # A worker has just asked who waits. It may have finished runs before it hears our answer.
                self._doubt(self._futures, SPREADING)
                self._say()
        elif WE in words:
            # The other listeners receive this message about now, as we do. If a worker is slower, and finishes a run
            # before that, a poll finds the run.
            self._is_known = True

    async def _run(self) -> None:
        while True:
            await self._next_look()
            if not self._futures:
                for each in (self._looks, self._doubted, self._look, self._look_far, self._fresh):
                    each.clear()
                await self._stirred.wait()
                self._looked_at_all = asyncio.get_running_loop().time()
                continue
            try:
                await self._answer()
            except Unavailable as error:
                log.warning("cannot read the results of %d awaited runs, will try again: %s", len(self._futures), error)
                self._look_far |= self._futures.keys()
                await asyncio.sleep(0.2)
                self._stirred.set()

    async def _next_look(self) -> None:
        """Wait until there is something to poll."""
        now = asyncio.get_running_loop().time
        begun = now()
        at_all = self._looked_at_all + (POLL if self._wakes.hears else POLL_DEAF)
        pause = min([at_all - begun, *list(self._looks)[:1]])
        if await in_time(max(0.0, pause), self._stirred.wait()):
            self._stirred.clear()
        if self._looks:
            self._looks[0] -= now() - begun
            if self._looks[0] <= 0:
                self._look_at_doubted()
        if now() >= at_all:
            # Also while announcements arrive: one of many may have been lost.
            self._looked_at_all = now()
            self._look_far |= self._futures.keys()
            if self._futures and now() >= self._said + POLL:
                self._say()

    def _look_at_doubted(self) -> None:
        self._looks.popleft()
        self._doubted &= self._futures.keys()
        self._look |= self._doubted
        if not self._looks:
            self._doubted.clear()
            self._is_known = self._wakes.hears

    async def _answer(self) -> None:
        far, self._look_far = self._look_far, set()
        near, self._look = self._look - far, set()
        fresh, self._fresh = self._fresh, set()
        try:
            for batch in _batches(near):
                for finished in await reads.finished(self._database, batch, recent=True):
                    self._resolve(finished.id, finished)
            for batch in _batches(far):
                for finished in await reads.finished(self._database, batch):
                    self._resolve(finished.id, finished)
                await self._refuse_unknown([each for each in batch if each in fresh and each in self._futures])
        except Unavailable:
            self._fresh |= fresh
            raise

    async def _refuse_unknown(self, ids: list[UUID]) -> None:
        """Raise NotFound in the waiters for runs that do not exist: they would wait for ever."""
        if not ids:
            return
        existing = await reads.existing(self._database, ids)
        for run_id in ids:
            if run_id not in existing:
                self._resolve(run_id, NotFound("id", str(run_id)))

    def _resolve(self, run_id: UUID, answer: Finished | NotFound) -> None:
        for future in self._futures.get(run_id, set()):
            if future.done():
                continue
            if isinstance(answer, NotFound):
                future.set_exception(answer)
            else:
                future.set_result(answer)


def _batches(ids: Iterable[UUID]) -> Iterator[list[UUID]]:
    rest = list(ids)
    for first in range(0, len(rest), BATCH):
        yield rest[first : first + BATCH]


def _among(ids: Sequence[str], known: Collection[UUID]) -> set[UUID]:
    """Return those of the announced ids that are known. Parse the ids only if they are few: many runs may finish while
    few are awaited."""
    if len(known) < len(ids):
        said = set(ids)
        return {run_id for run_id in known if run_id.hex in said}
    return {run_id for each in ids if (run_id := uuid_of(int(each, 16))) in known}
