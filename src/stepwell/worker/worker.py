"""The worker: claims into free slots, an attempt for each claim, outcomes into the ledger.

    claims ──► attempts ──► ledger          and beside them
                                            lease   a thread: keeps what is held
                                            watch   compares what is held here with what the table says

A claim is known here from the moment it is returned until the tables have its outcome. The watch finds
both kinds of difference: a claim the table gave to nobody here (the answer to a claim was lost) is
released; one it no longer gives to us (cancelled, reaped) is lost, and its attempt is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Container, Sequence
from datetime import timedelta
from typing import Any

from stepwell.beside import beside
from stepwell.model.errors import Unavailable
from stepwell.model.ids import new_claim_id
from stepwell.model.outcome import Released
from stepwell.model.run import Claimed
from stepwell.telemetry import Telemetry, log
from stepwell.worker.attempts import CLEANUP, Attempts, Bodies
from stepwell.worker.lease import Lease
from stepwell.worker.ledger import Ledger
from stepwell.worker.link import Link, Settlement

BATCH = 200
"""The most claims of one call: more made the group commit slower, not faster."""
POLL = 1.0
POLL_DEAF = 0.25
"""Seconds between looks for work when nothing is heard; the second while wakes do not arrive."""
WATCH = 1.0
WATCH_IDLE = 10.0
FLUSH = 10.0
"""Seconds a stopping worker tries to record its last outcomes. After that they are reaped."""


class Worker:
    def __init__(self, link: Link, bodies: Bodies, telemetry: Telemetry, *, slots: int, lease: timedelta) -> None:
        self._link = link
        self._telemetry = telemetry
        self._slots = slots
        self._lease = Lease(link, lease, lost=self._lease_lost, back=self._lease_back)
        self._ledger = Ledger(link, telemetry, settled=self._settled)
        self._claiming = asyncio.Lock()
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._look = asyncio.Event()
        self._attempts = Attempts(bodies, settle=self._ledger.add, ended=self._room.set)
        self._uncertain = False
        self._held = False
        self._stopping = False
        self._gone = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        """With the claim on its way; `stop` shortens it."""

    async def run(self) -> None:
        """Work until `stop`. Any part that ends by itself ends the worker: none may die unseen."""
        unhear = self._link.hear(work=self._work.set, cancelled=self._cancelled)
        try:
            await self._lease.hold()
            if not self._stopping:
                self._held = True
                self._telemetry.tell("worker.ready")
            async with beside(self._ledger.run(), self._watch(), self._lease.fails()):
                await self._claim()
                await _within(FLUSH, self._flushed())
        finally:
            unhear()
            self._attempts.end_all(None)
            await self._lease.release()
            await self._leave()
            self._gone.set()

    async def stop(self, grace: float = 0.0) -> None:
        """Claim no more; let attempts end within `grace` seconds; give the rest back at once."""
        self._stopping = True
        self._lease.give_up()
        self._work.set()
        self._room.set()
        if self._patience is not None and self._patience.when() is None:
            # A database that does not answer must not keep us. What it claims is found in the table, or reaped.
            self._patience.reschedule(asyncio.get_running_loop().time() + CLEANUP)
        if grace > 0:
            await _within(grace, self._attempts.idle())
        self._attempts.end_all(Released())
        await _within(CLEANUP, self._attempts.idle())
        self._attempts.abandon()
        self._room.set()

    async def stopped(self) -> None:
        """Wait until a stopping worker has recorded what it could, and left."""
        await self._gone.wait()

    async def _flushed(self) -> None:
        """Until the tables have every outcome, and no claim is left of which we did not hear."""
        while self._uncertain:
            self._look.set()
            await asyncio.sleep(WATCH / 20)
        await self._ledger.drained()

    # -- claims

    async def _claim(self) -> None:
        while not self._stopping:
            room = self._free()
            if room <= 0:
                self._room.clear()
                if self._free() <= 0:
                    # Looked at again even if nothing calls: a thread that was given up ends unheard.
                    await _within(POLL, self._room.wait())
                continue
            self._work.clear()
            try:
                more = await self._take(min(room, BATCH))
            except (Unavailable, TimeoutError) as error:
                log.warning("claiming waits for the database: %s", error)
                self._uncertain = True
                self._look.set()
                await _within(POLL, self._work.wait())
                continue
            if not more and not self._stopping:
                await _within(POLL if self._link.hears else POLL_DEAF, self._work.wait())
        await self._attempts.idle()

    async def _take(self, limit: int) -> bool:
        """Claim and begin; whether there may be more."""
        claimed = await self._ask(limit)
        if claimed.claims:
            self._telemetry.tell("worker.claimed", claims=claimed.claims)
        return claimed.more

    async def _ask(self, limit: int) -> Claimed:
        try:
            async with asyncio.timeout(None) as self._patience, self._claiming:
                claimed = await self._link.claim(new_claim_id(), limit, alone=not self._attempts.alone)
                for claim in claimed.claims:
                    # It was on its way when `stop`, or the loss of the lease, ended all that there was.
                    if self._stopping or not self._held:
                        self._attempts.give_back(claim)
                    else:
                        self._attempts.begin(claim)
                return claimed
        finally:
            self._patience = None

    def _free(self) -> int:
        if not self._held or len(self._ledger) > 2 * self._slots + BATCH:
            return 0
        return self._slots - self._attempts.taken

    def _settled(self, group: Sequence[Settlement]) -> None:
        for claim, _ in group:
            self._attempts.forget(claim)
            if claim.alone:
                self._work.set()  # there may be another that had to wait for this one
        self._room.set()  # a full ledger takes no claims either

    # -- lease and watch

    def _lease_lost(self) -> None:
        log.error("the lease is lost: others may run what is held here, so it is ended")
        self._held = False
        self._attempts.end_all(Released())

    def _lease_back(self) -> None:
        self._held = True
        self._room.set()
        self._look.set()

    def _cancelled(self, ids: Container[str] | None) -> None:
        if ids is None or any(run_id.hex in ids for run_id, _ in self._attempts.known):
            self._look.set()

    async def _watch(self) -> None:
        idle = 0.0
        while True:
            await _within(WATCH, self._look.wait())
            idle += WATCH
            if not (self._look.is_set() or self._attempts.known or self._uncertain or idle >= WATCH_IDLE):
                continue
            idle = 0.0
            self._look.clear()
            try:
                await self.compare()
            except Unavailable as error:
                log.warning("the watch waits for the database: %s", error)
                await asyncio.sleep(WATCH / 4)

    async def compare(self) -> None:
        """What is held here against what the table says. No claim is made meanwhile."""
        async with self._claiming:
            before, known = self._attempts.snapshot(), set(self._attempts.known)
            held = {(claim.id, claim.claim_id): claim for claim in await self._link.held()}
            self._uncertain = False
        self._attempts.end_lost(before, held)
        for fence in held.keys() - known:
            log.warning("run %s was claimed without our hearing of it: released", held[fence].id)
            self._attempts.give_back(held[fence])

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(5):
                await self._link.leave()
        except (Unavailable, TimeoutError) as error:
            log.warning("could not say goodbye, the lease will run out by itself: %s", error)


async def _within(seconds: float, waiting: Awaitable[Any]) -> None:
    try:
        async with asyncio.timeout(seconds):
            await waiting
    except TimeoutError:
        pass
