"""Those who wait for runs to finish. Ten thousand of them cost one listener and one look for all.

Workers announce what finishes only while someone waits, so who waits says so: at first, and again every few
seconds. A worker may finish a run before it has heard that; so while the word spreads, and whenever
announcements may have been missed, one looks.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from uuid import UUID

from stepwell.concurrency.background import within
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
"""Seconds between looks at everything awaited; the second while announcements do not arrive."""
SPREADING = (0.01, 0.04, 0.2, 1.0)
"""Seconds between looks after it was first said that someone waits."""
NEW = 1000
"""Runs of our own that are remembered as just started."""

Future = asyncio.Future[Finished | None]
"""How a run finished; None: it was announced that it has, and whoever waits may look for itself."""


class Waiting:
    """One look answers everyone: runs newly awaited, runs announced as finished, and now and then all."""

    def __init__(self, database: Database, wakes: Wakes) -> None:
        self._database = database
        self._wakes = wakes
        self._futures: dict[UUID, set[Future]] = {}
        self._fresh: set[UUID] = set()
        """Newly awaited: perhaps there is no such run."""
        self._look: set[UUID] = set()
        """Perhaps just finished."""
        self._look_far: set[UUID] = set()
        """Perhaps finished long ago: a look into every day that is kept."""
        self._stirred = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._unsubscribe: list[Callable[[], None]] = []
        self._looks: deque[float] = deque()
        """Pauses until the next looks at what is doubted."""
        self._doubted: set[UUID] = set()
        self._looked_at_all = 0.0
        self._said, self._is_known = -POLL, False
        """When we last said that someone waits; whether everyone has heard it."""
        self._new: dict[UUID, bool] = {}
        """Runs started here while it was known that we wait, and whether their end was announced: if not, no look is
        needed."""
        self._closed = False

    def started(self, ids: Iterable[UUID]) -> None:
        """Remember that these exist, or are about to: their ends will be announced, if anyone knows that we wait."""
        if self._is_known and asyncio.get_running_loop().time() < self._said + POLL:
            newest = deque(ids, maxlen=NEW)
            if len(self._new) + len(newest) > NEW:
                self._new = {each: False for each, announced in self._new.items() if not announced}
            if len(self._new) + len(newest) > NEW:
                self._new.clear()  # who waits for them looks at once
            for run_id in newest:
                self._new.setdefault(run_id, False)

    async def wait(self, run_id: UUID) -> Finished:
        """How the run finished, once it has."""
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
            known = False  # and if it is not to be seen after all, everyone looks

    async def _await(self, run_id: UUID, *, known: bool) -> Finished | None:
        """The same, or None if it was announced."""
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
        """That someone waits. If it was long ago that anyone heard so, it takes a while to spread."""
        now = asyncio.get_running_loop().time()
        if now >= self._said + 2 * POLL:
            self._is_known = False
            self._doubt(self._futures, SPREADING)
        self._said = now
        self._wakes.announce(Channel.AWAITED, [WE])

    def _doubt(self, ids: Iterable[UUID], pauses: Sequence[float]) -> None:
        """Look at these after each of the pauses, since they may finish unannounced. Runs that come while others are
        looked at share the looks that are left, and get the rest of their own."""
        self._doubted.update(ids)
        if not self._looks:
            self._stirred.set()
        self._looks.extend(pauses[len(self._looks) :])

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        """An error that is no absence of the database is told to all who wait: they would wait for ever."""
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
        """Let the only one who waits for it look itself: sooner than it would be woken by who looks for all."""
        waiting = [future for future in self._futures[run_id] if not future.done()]
        if len(waiting) == 1:
            waiting[0].set_result(None)
        return len(waiting) == 1

    def _heard_awaited(self, words: Sequence[str] | None) -> None:
        if words is None or WHO in words:
            if self._futures:
                # It may have finished some before it hears of us.
                self._doubt(self._futures, SPREADING)
                self._say()
        elif WE in words:
            # Who listens hears it about now, as we do. Who is slow to, and finishes a run first, is caught by a look.
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
                log.warning("%d waiters wait for the database: %s", len(self._futures), error)
                self._look_far |= self._futures.keys()
                await asyncio.sleep(0.2)
                self._stirred.set()

    async def _next_look(self) -> None:
        """Until there is something to look at."""
        now = asyncio.get_running_loop().time
        begun = now()
        at_all = self._looked_at_all + (POLL if self._wakes.hears else POLL_DEAF)
        pause = min([at_all - begun, *list(self._looks)[:1]])
        if await within(max(0.0, pause), self._stirred.wait()):
            self._stirred.clear()
        if self._looks:
            self._looks[0] -= now() - begun
            if self._looks[0] <= 0:
                self._look_at_doubted()
        if now() >= at_all:
            # Not only when all is quiet: among many that are announced, one may not have been.
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
        """Nobody waits for ever for a run that is not there."""
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
    """Those of them that are known. Where many finish and few are waited for, most need not be read."""
    if len(known) < len(ids):
        said = set(ids)
        return {run_id for run_id in known if run_id.hex in said}
    return {run_id for each in ids if (run_id := uuid_of(int(each, 16))) in known}
