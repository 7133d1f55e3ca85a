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
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol

from stepwell.beside import beside
from stepwell.context import Running
from stepwell.executors.base import Body, Executor, contained
from stepwell.model.errors import Unavailable
from stepwell.model.ids import ClaimId, RunId, new_claim_id
from stepwell.model.outcome import Failed, Outcome, Released
from stepwell.model.run import Claim, Claimed
from stepwell.telemetry import Telemetry, log
from stepwell.worker.lease import Lease
from stepwell.worker.ledger import Ledger
from stepwell.worker.link import Link
from stepwell.worker.run_task import describe, run_task, timed_out

BATCH = 200
"""The most claims of one call: more made the group commit slower, not faster."""
POLL = 1.0
POLL_DEAF = 0.25
"""Seconds between looks for work when nothing is heard; the second while wakes do not arrive."""
WATCH = 1.0
WATCH_IDLE = 10.0
CLEANUP = 1.0
"""Seconds a cancelled body has to clean up before its attempt is settled without it."""


FLUSH = 10.0
"""Seconds a stopping worker tries to record its last outcomes. After that they are reaped."""


class Runnable(Body, Protocol):
    @property
    def executor(self) -> str:
        """The name of the executor its body runs on."""
        ...


@dataclass(slots=True, eq=False)
class Attempt:
    """A claim under way."""

    running: Running
    task: asyncio.Task[None] | None = None
    verdict: Outcome | None = None
    """How it ends if we end it; the body's own result is better, when there is one in time."""
    settled: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    @property
    def claim(self) -> Claim:
        return self.running.claim


@dataclass(frozen=True, slots=True)
class Runs:
    """What a worker can run: a body by name, and the executor for it."""

    bodies: Mapping[str, Runnable]
    executors: Mapping[str, Executor]


class Worker:
    def __init__(self, link: Link, runs: Runs, telemetry: Telemetry, *, slots: int, lease: timedelta) -> None:
        self._link = link
        self._runs = runs
        self._telemetry = telemetry
        self._slots = slots
        self._lease = Lease(link, lease, lost=self._lease_lost, back=self._lease_back)
        self._ledger = Ledger(link, telemetry, settled=self._settled)
        self._attempts: dict[Claim, Attempt] = {}
        self._known: set[tuple[RunId, ClaimId]] = set()
        self._claiming = asyncio.Lock()
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._look = asyncio.Event()
        self._idle = asyncio.Event()
        self._uncertain = False
        self._held = False
        self._stopping = False
        self._gone = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        """With the claim on its way; `stop` shortens it."""

    async def run(self) -> None:
        """Work until `stop`. Any part that ends by itself ends the worker: none may die unseen."""
        unhear = self._link.hear(work=self._work.set, cancelled=self._look.set)
        try:
            await self._lease.hold()
            self._held = True
            self._telemetry.tell("worker.ready")
            async with beside(self._ledger.run(), self._watch(), self._lease.fails()):
                await self._claim()
                await _within(FLUSH, self._flushed())
        finally:
            unhear()
            await self._lease.release()
            await self._leave()
            self._gone.set()

    async def stop(self, grace: float = 0.0) -> None:
        """Claim no more; let attempts end within `grace` seconds; give the rest back at once."""
        self._stopping = True
        self._lease.give_up()
        self._work.set()
        self._room.set()
        if self._patience is not None:
            # A database that does not answer must not keep us. What it claims is found in the table, or reaped.
            self._patience.reschedule(asyncio.get_running_loop().time() + CLEANUP)
        if self._attempts and grace > 0:
            await _within(grace, self._until_idle())
        self._end_all(Released())
        await _within(CLEANUP, self._until_idle())
        for attempt in list(self._attempts.values()):
            self._settle_without_body(attempt)
        self._stopped()

    async def stopped(self) -> None:
        """Wait until a stopping worker has recorded what it could, and left."""
        await self._gone.wait()

    async def _flushed(self) -> None:
        """Until the tables have every outcome, and no claim is left of which we did not hear."""
        while self._uncertain:
            self._look.set()
            await asyncio.sleep(WATCH / 20)
        await self._ledger.drained()

    def _stopped(self) -> None:
        self._attempts.clear()
        self._idle.set()
        self._room.set()

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
        await self._until_idle()

    async def _take(self, limit: int) -> bool:
        """Claim and begin; whether there may be more."""
        async with self._claiming:
            claimed = await self._ask(limit)
            for claim in claimed.claims:
                # It was on its way when `stop` looked at the attempts, and would be bound by no grace.
                if self._stopping:
                    self._give_back(claim)
                else:
                    self._begin(claim)
        if claimed.claims:
            self._telemetry.tell("worker.claimed", claims=claimed.claims)
        return claimed.more

    async def _ask(self, limit: int) -> Claimed:
        try:
            async with asyncio.timeout(None) as self._patience:
                return await self._link.claim(new_claim_id(), limit)
        finally:
            self._patience = None

    def _give_back(self, claim: Claim) -> None:
        """Release a claim without an attempt at it."""
        self._known.add((claim.id, claim.claim_id))
        self._ledger.add(claim, Released())

    def _free(self) -> int:
        if not self._held or len(self._ledger) > 2 * self._slots + BATCH:
            return 0
        stuck = sum(executor.stuck for executor in self._runs.executors.values())
        return self._slots - len(self._attempts) - stuck

    # -- attempts

    def _begin(self, claim: Claim) -> None:
        attempt = Attempt(Running(claim))
        self._known.add((claim.id, claim.claim_id))
        self._attempts[claim] = attempt
        self._idle.clear()
        attempt.task = asyncio.create_task(self._run(attempt))
        if claim.timeout is not None:
            seconds = claim.timeout.total_seconds()
            later = asyncio.get_running_loop().call_later
            attempt.timers.append(later(seconds, self._end, attempt, timed_out(seconds)))

    async def _run(self, attempt: Attempt) -> None:
        body = self._runs.bodies[attempt.claim.name]
        outcome: Outcome | None
        try:
            outcome = await run_task(attempt.running, body, self._runs.executors[body.executor])
        except asyncio.CancelledError as error:
            # Not by us: the body cancelled the task it runs in, and would do so for ever if it were released.
            outcome = attempt.verdict if attempt.running.cancelled else Failed(describe(contained(error)))
        if attempt.verdict is not None and isinstance(outcome, Failed):
            outcome = attempt.verdict
        self._ended(attempt, outcome)

    def _ended(self, attempt: Attempt, outcome: Outcome | None) -> None:
        for timer in attempt.timers:
            timer.cancel()
        if self._attempts.pop(attempt.claim, None) is not None:
            self._room.set()
            if not self._attempts:
                self._idle.set()
        if attempt.settled:
            return
        attempt.settled = True
        if outcome is None:
            self._settled(attempt.claim)
        else:
            self._ledger.add(attempt.claim, outcome)

    def _end(self, attempt: Attempt, verdict: Outcome | None) -> None:
        """End an attempt from outside; with no verdict its claim is lost and there is nothing to settle.

        Only once: a second cancellation would cut short the cleanup after the first.
        """
        if attempt.settled or attempt.task is None or attempt.running.cancelled:
            return
        attempt.verdict = verdict
        attempt.running.cancelled = True
        attempt.task.cancel()
        later = asyncio.get_running_loop().call_later
        attempt.timers.append(later(CLEANUP, self._settle_without_body, attempt))

    def _settle_without_body(self, attempt: Attempt) -> None:
        """The body ignores its cancellation. It keeps its slot, but not its claim."""
        if attempt.settled:
            return
        log.warning("%s %s does not end: its attempt is settled without it", attempt.claim.name, attempt.claim.id)
        attempt.settled = True
        if attempt.verdict is None:
            self._settled(attempt.claim)
        else:
            self._ledger.add(attempt.claim, attempt.verdict)

    def _end_all(self, verdict: Outcome) -> None:
        for attempt in list(self._attempts.values()):
            self._end(attempt, verdict)

    def _settled(self, claim: Claim) -> None:
        self._known.discard((claim.id, claim.claim_id))
        self._room.set()  # a full ledger takes no claims either

    async def _until_idle(self) -> None:
        if self._attempts:
            await self._idle.wait()

    # -- lease and watch

    def _lease_lost(self) -> None:
        log.error("the lease is lost: others may run what is held here, so it is ended")
        self._held = False
        self._end_all(Released())

    def _lease_back(self) -> None:
        self._held = True
        self._room.set()
        self._look.set()

    async def _watch(self) -> None:
        while True:
            await _within(WATCH if self._known or self._uncertain else WATCH_IDLE, self._look.wait())
            self._look.clear()
            try:
                await self.compare()
            except Unavailable as error:
                log.warning("the watch waits for the database: %s", error)
                await asyncio.sleep(WATCH / 4)

    async def compare(self) -> None:
        """What is held here against what the table says. No claim is made meanwhile."""
        async with self._claiming:
            before, known = list(self._attempts.values()), set(self._known)
            held = {(claim.id, claim.claim_id): claim for claim in await self._link.held()}
            self._uncertain = False
        for attempt in before:
            if (attempt.claim.id, attempt.claim.claim_id) not in held:
                self._end(attempt, None)
        for pair in held.keys() - known:
            log.warning("run %s was claimed without our hearing of it: released", held[pair].id)
            self._give_back(held[pair])

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
