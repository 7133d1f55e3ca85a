"""The worker: claims into free slots, an attempt for each claim, outcomes into the ledger.

    lanes ───► attempts ──► ledger          and beside them
      ▲                       │             lease   a thread: keeps what is held
      └────── exchange ◄──────┘             watch   compares what is held here with the table

Each part calls down, and none calls back: one event wakes the lanes. There are two: while the database settles and
claims for one, the bodies of the other's claims run.

The ledger knows a claim from the moment it is returned until the tables have its outcome. The watch finds both kinds
of difference: a claim in the table that is not known here (the answer to a claim was lost) is released; a known claim
that is not in the table (cancelled, reaped) is lost, and its attempt is ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from contextlib import suppress
from datetime import timedelta

from stepwell.concurrency.background import in_background, in_time
from stepwell.context.transaction import lend_from_here
from stepwell.model.errors import Unavailable
from stepwell.model.outcome import Released
from stepwell.model.worker import Unrecorded
from stepwell.telemetry import Telemetry, log
from stepwell.worker.attempts import CLEANUP, Attempts
from stepwell.worker.bodies import Bodies
from stepwell.worker.claiming.lanes import Lanes
from stepwell.worker.claiming.watch import Watch
from stepwell.worker.lease import Lease
from stepwell.worker.ledger import Ledger
from stepwell.worker.link import Link
from stepwell.worker.notes import Notes
from stepwell.worker.turns.turns import Turns

PAUSE = 0.05
"""Seconds between two checks of a stopping worker whether all of its claims are known."""
FLUSH = 10.0
"""Seconds for which a stopping worker tries to record its last outcomes. After that they are reaped."""


class Worker:
    def __init__(
        self,
        link: Link,
        bodies: Bodies,
        telemetry: Telemetry,
        *,
        slots: int,
        lease: timedelta,
        capture: int | None = None,
    ) -> None:
        """`capture` is the lowest level of log lines that are kept of bodies."""
        self._link = link
        self._telemetry = telemetry
        self._lease = Lease(link, lease, lost=self._lease_lost, back=self._lease_back, load=self._load)
        changed = asyncio.Event()
        self._ledger = Ledger(link, telemetry, changed=changed)
        self._turns = Turns(link, self._ledger, bodies, telemetry)
        self._notes = Notes(link, capture=capture)
        self._attempts = Attempts(
            bodies, self._ledger, self._turns, self._notes, telemetry=telemetry, slots=slots, changed=changed
        )  # fmt: skip
        look = asyncio.Event()
        self._lanes = Lanes(link, self._attempts, self._ledger, telemetry, slots=slots, changed=changed, look=look)
        self._watch = Watch(link, self._attempts, self._ledger, self._lanes, look=look)
        self._turns.claim_by(self._lanes)
        self._stopping = False
        self._gone = asyncio.Event()
        self.ready = asyncio.Event()
        """Set once the lease is held."""

    def look(self) -> None:
        """Look for work: there may be some that is not announced."""
        self._lanes.heard()

    async def run(self) -> None:
        """Work until `stop`. Any part that ends by itself ends the worker: none may die unseen."""
        lend_from_here(self._link.lend)
        unhear = self._link.hear(work=self._lanes.heard, cancelled=self._cancelled, arrived=self._turns.heard)
        try:
            await self._lease.hold()
            if not self._stopping:
                self._lanes.open()
                self._telemetry.tell("worker.ready")
                self.ready.set()
            parts = (self._ledger.run(), self._watch.run(), self._lease.fails(), self._notes.run())
            async with in_background(*parts):
                try:
                    await self._lanes.run()
                    self._ledger.no_more_exchanges()
                    await self._attempts.idle()
                    await in_time(FLUSH, self._flushed())
                except BaseException:
                    # The failure of a part beside this block arrives as a cancellation.
                    await self._save()
                    raise
                await in_time(CLEANUP, self._noted())
        finally:
            unhear()
            self._attempts.end_all(None)
            self._turns.close()
            await self._ledger.close()
            await self._lease.release()
            self._telemetry.tell("worker.stopped")
            self._gone.set()

    async def stop(self, grace: float = 0.0) -> None:
        """Claim no more; let attempts end within `grace` seconds; give the rest back at once."""
        if not self._stopping:
            self._telemetry.tell("worker.stopping")
        self._stopping = True
        self._lease.give_up()
        self._lanes.stop(CLEANUP)
        self._attempts.leave_line(Released())
        if grace > 0:
            await in_time(grace, self._attempts.idle())
        self._attempts.end_all(Released())
        await in_time(CLEANUP, self._attempts.idle())
        self._attempts.abandon()

    async def _save(self) -> None:
        """Record what is known after a failure of ours. Runs that ended are not executed again, and attempts that have
        not ended do not count as failed."""
        self._lanes.close()
        self._ledger.no_more_exchanges()
        self._attempts.end_all(Released())
        await in_time(CLEANUP, self._attempts.idle())
        self._attempts.abandon()
        await in_time(FLUSH, self._ledger.save())
        if self._lanes.unanswered:
            await in_time(CLEANUP, self._watch.compare())
            await in_time(FLUSH, self._ledger.save())

    async def stopped(self) -> None:
        """Wait until a stopping worker has recorded what it could, and has left."""
        await self._gone.wait()

    async def _flushed(self) -> None:
        """Wait until the tables have every outcome, and no claim is left whose answer was lost."""
        while self._lanes.unanswered:
            self._watch.look.set()
            await asyncio.sleep(PAUSE)
        await self._turns.landed()
        await self._ledger.drained()

    async def _noted(self) -> None:
        """Write the last notes of bodies; without a database they are lost."""
        with suppress(Unavailable):
            await self._notes.flush()

    # -- lease and cancellations

    def _lease_lost(self) -> None:
        log.error("the lease is lost: other workers may claim the runs of this worker, so all its attempts are ended")
        self._lanes.close()
        self._attempts.end_all(Released())

    def _load(self) -> tuple[int, int, Unrecorded | None]:
        return len(self._ledger.known), self._lanes.claimed, self._ledger.refusals.told

    def _lease_back(self) -> None:
        self._lanes.open()
        self._watch.look.set()

    def _cancelled(self, ids: Container[str] | None) -> None:
        if ids is None or any(claim.id.hex in ids for claim in self._ledger.known):
            self._watch.look.set()
