"""Those who wait for runs to finish. Ten thousand of them cost one listener and one look for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from uuid import UUID

from stepwell.dispatch.base import Channel, Dispatch
from stepwell.engine import reads
from stepwell.model.errors import NotFound, Unavailable
from stepwell.model.run import Finished
from stepwell.store.pool import Database
from stepwell.telemetry import log

BATCH = 1000
POLL = 5.0
POLL_DEAF = 0.5
"""Seconds between looks at everything awaited; the second while announcements do not arrive."""

Future = asyncio.Future[Finished]


class Waiting:
    """One look answers everyone: runs newly awaited, runs announced as finished, and now and then all."""

    def __init__(self, database: Database, dispatch: Dispatch) -> None:
        self._database = database
        self._dispatch = dispatch
        self._futures: dict[UUID, set[Future]] = {}
        self._fresh: set[UUID] = set()
        self._look: set[UUID] = set()
        self._stirred = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] | None = None
        self._closed = False

    async def wait(self, run_id: UUID) -> Finished:
        """How the run finished, once it has."""
        if self._closed:
            raise Unavailable("the app was closed")
        future: Future = asyncio.get_running_loop().create_future()
        self._futures.setdefault(run_id, set()).add(future)
        self._fresh.add(run_id)
        self._look.add(run_id)
        self._stir()
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

    def _stir(self) -> None:
        self._stirred.set()
        if self._watch is None:
            self._unsubscribe = self._dispatch.subscribe(Channel.FINISHED, self._heard)
            self._watch = asyncio.create_task(self._run(), name="stepwell.waiting")
            self._watch.add_done_callback(self._watch_ended)

    def _watch_ended(self, watch: asyncio.Task[None]) -> None:
        """An error that is no absence of the database is told to all who wait: they would wait for ever."""
        if watch.cancelled() or (error := watch.exception()) is None:
            return
        self._watch = None
        self._tell_all(error)

    def _tell_all(self, error: BaseException) -> None:
        if self._unsubscribe is not None:
            self._unsubscribe()
            self._unsubscribe = None
        for future in [each for futures in self._futures.values() for each in futures if not each.done()]:
            future.set_exception(error)

    def _forget(self, run_id: UUID, future: Future) -> None:
        futures = self._futures.get(run_id)
        if futures is not None:
            futures.discard(future)
            if not futures:
                del self._futures[run_id]

    def _heard(self, ids: Sequence[str] | None) -> None:
        awaited = self._futures.keys()
        self._look |= awaited if ids is None else {UUID(each) for each in ids} & awaited
        if self._look:
            self._stirred.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(POLL if self._dispatch.hears else POLL_DEAF):
                    await self._stirred.wait()
            except TimeoutError:
                self._look |= self._futures.keys()
            self._stirred.clear()
            if not self._futures:
                await self._stirred.wait()
                continue
            try:
                await self._answer()
            except Unavailable as error:
                log.warning("%d waiters wait for the database: %s", len(self._futures), error)
                self._look |= self._futures.keys()
                await asyncio.sleep(0.2)
                self._stirred.set()

    async def _answer(self) -> None:
        look, self._look = list(self._look), set()
        fresh, self._fresh = self._fresh, set()
        try:
            for start in range(0, len(look), BATCH):
                batch = look[start : start + BATCH]
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
