"""The lanes: two loops that claim runs, and exchange completed runs for new claims in one statement.

There are two, so that the database works for one while the bodies of the other's claims run. Neither waits for
the other, and an idle worker uses only the first that hears of work.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from uuid import UUID

from stepwell.concurrency.background import in_time
from stepwell.model.errors import Unavailable
from stepwell.model.ids import ClaimId, new_claim_id
from stepwell.model.run import Claim, Claimed, Look, Order
from stepwell.telemetry import Telemetry, log
from stepwell.worker.attempts import Attempts
from stepwell.worker.claiming.frontier import LOOK, Frontier, Going
from stepwell.worker.ledger import Ledger
from stepwell.worker.link import Completion, Link

LANES = 2
BATCH = 500
"""Limit of claims in one call: with more, the database and the bodies wait longer for each other."""
MOST = 3 * BATCH
"""Limit of claims in line for slots that will soon be free."""
MOST_HERE = 10_000
"""Limit of children in line that a workflow starts on its own worker."""
POLL = 5.0
POLL_DEAF = 0.25
"""Seconds between polls when no wake arrives; the second while wakes cannot arrive."""
STRIDE, MOST_STRIDE = 0.02, 2.0
"""Seconds until the next limit keys are looked at. The pause doubles while none of them gives anything, until something
is heard."""
UNSETTLED = 2000
"""Outcomes that may be on their way to the tables, in addition to two for each slot, before claims have to wait."""
NOTHING = Order(ClaimId(UUID(int=0)), (), 0)


class Asking:
    """A statement on its way. It is a class, since a generator would cost as much as everything else that is done
    here."""

    __slots__ = ("_claim_id", "_lanes", "_limit", "_timeout")

    def __init__(self, lanes: Lanes, claim_id: ClaimId | None, limit: int) -> None:
        self._lanes = lanes
        self._claim_id = claim_id
        self._limit = limit
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()
        self._lanes._asks(self._claim_id, self._limit, self._timeout)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lanes._asked(self._claim_id, self._limit, self._timeout, answered=error is None)
        await self._timeout.__aexit__(kind, error, trace)


class Lanes:
    """Two loops that claim runs and exchange completed ones."""

    def __init__(
        self,
        link: Link,
        attempts: Attempts,
        ledger: Ledger,
        telemetry: Telemetry,
        *,
        slots: int,
        changed: asyncio.Event,
        look: asyncio.Event,
    ) -> None:
        """`changed` wakes the lanes; `look` asks the watch to compare, since there may be a claim that is not known
        here."""
        self._link = link
        self._attempts = attempts
        self._ledger = ledger
        self._telemetry = telemetry
        self._slots = slots
        self._to_compare = look
        self._frontier = Frontier()
        self._changed = changed
        self._was_alone = False
        self._limited_at = math.inf
        """Time of the next look for limited work."""
        self._limited_looked = -math.inf
        self._others = False
        """True if there was limited work at the last look."""
        self._plain_is_next = False
        """True if limited work went first the last time: it is the turn of queues without a limit."""
        self._stride = STRIDE
        self._ordered = 0
        self._flying = 0
        self._open = False
        self._stopping = asyncio.Event()
        self._patience: set[asyncio.Timeout] = set()
        """Timeouts of the statements on their way; `stop` shortens them."""
        self._coming: set[ClaimId] = set()
        self._witnesses: list[set[ClaimId]] = []
        self.claimed = 0
        """Number of claims so far."""
        self.unanswered: set[ClaimId] = set()
        """Claim ids whose statement was sent, and whose answer was lost."""

    def heard(self, queue: str | None = None) -> None:
        """Note that there may be work, in this queue or anywhere."""
        self._frontier.heard(queue)
        self._stride = STRIDE
        self._changed.set()

    def open(self) -> None:
        """Begin to claim: the lease is held."""
        self._open = True
        self.heard()

    def close(self) -> None:
        """Claim nothing for now: the lease is lost."""
        self._open = False

    def stop(self, patience: float) -> None:
        """Claim no more. Statements on their way get `patience` seconds, so that a database that does not answer cannot
        hold up the worker. Runs that they claim are found in the table, or reaped."""
        self._stopping.set()
        self._changed.set()
        for timeout in self._patience:
            if timeout.when() is None:
                timeout.reschedule(asyncio.get_running_loop().time() + patience)

    @contextmanager
    def claims_on_their_way(self) -> Iterator[set[ClaimId]]:
        """Collect the ids of all claims that are on their way at some time in the block."""
        witness = set(self._coming)
        self._witnesses.append(witness)
        try:
            yield witness
        finally:
            self._witnesses.remove(witness)

    async def run(self) -> None:
        """Run the lanes until `stop`."""
        lanes = [asyncio.create_task(self._lane(poll=not number)) for number in range(LANES)]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)

    async def _lane(self, *, poll: bool) -> None:
        pause = 0.05
        while not self._stopping.is_set():
            self._changed.clear()
            try:
                await self._go(poll=poll)
                if self._attempts.stepping:
                    await asyncio.sleep(0)  # new bodies run first: this lane may take their outcomes along
                pause = 0.05
            except (Unavailable, TimeoutError) as error:
                log.warning("claiming waits for the database: %s", error)
                await in_time(pause, self._stopping.wait())
                pause = min(pause * 2, 1.0)

    async def _go(self, *, poll: bool) -> None:
        """Do what there is to do at this moment, or wait until there is something."""
        now = asyncio.get_running_loop().time
        if self._was_alone and not self._ledger.alone:
            # Another run may have waited until it could be alone.
            self.heard()
        self._was_alone = bool(self._ledger.alone)
        if self._flying and self._attempts.stepping and self._ledger.completed < BATCH:
            await self._changed.wait()  # the other lane is at the database, and more runs are about to complete
            return
        # Cheapest check first: usually there is nothing to do.
        todo = self._frontier.next(now())
        room = self._room(now()) if todo != "wait" else 0
        if room <= 0:
            todo = "wait"
        if todo != "wait" and self._limited_is_next(now()):
            await self._look_at_limited(max(1, min(self._attempts.unused, room) // 2), now)
            return
        limited = self._may_look_at_limited(now())
        going = self._frontier.going(room) if todo == "go on" else None
        # Last: from here on they belong to the exchange, which gives them back if it fails.
        completed = self._ledger.take_completed()
        if todo == "wait" and not completed and not limited:
            await self._wait(self._rest(now()) if poll else None)
            return
        if completed or going:
            await self._exchange(completed, going)
            room = self._room(now()) if todo != "wait" and not self._stopping.is_set() else 0
        if todo == "look" and room > 0:
            await self._look(room, now)
        elif todo == "ask" and room > 0:
            await self._ask(room, now)
        if self._may_look_at_limited(now()):
            await self._look_at_limited(min(BATCH, self._free), now)

    async def _wait(self, seconds: float | None) -> None:
        if seconds is None:
            await self._changed.wait()
        elif await in_time(seconds, self._changed.wait()):
            await asyncio.sleep(0)  # let the other lane send its statement first, in this iteration of the loop
        elif seconds:
            self._frontier.heard()

    def _rest(self, now: float) -> float:
        poll = POLL if self._link.hears else POLL_DEAF
        rest = self._frontier.rest(now)
        rest = poll if rest is None or rest == 0 else min(rest, poll)
        return rest if self._limited_at <= now else min(rest, self._limited_at - now)

    @property
    def _free(self) -> int:
        return self._slots - self._attempts.taken - self._ordered

    def _room(self, now: float) -> int:
        """Count the claims that there is room for: free slots, and those that will soon be free."""
        if not self._open or len(self._ledger) > 2 * self._slots + UNSETTLED:
            return 0
        soon = min(self._attempts.pace.lately(now), MOST) if self._attempts.unused > 0 else 0
        return min(BATCH, self._free + soon)

    async def _look(self, limit: int, now: Callable[[], float]) -> None:
        claim_id, began = new_claim_id(), now()
        self._plain_is_next = False
        self._frontier.look_begins()
        try:
            async with self.asking(claim_id, limit):
                claimed = await self._link.claim(Look(claim_id, limit, alone=not self._ledger.alone))
        except BaseException:
            self._frontier.look_fails()
            raise
        self._frontier.look_ends(claimed, began=began, now=now())
        self._others = claimed.others
        if claimed.others:
            self._limited_at = now()
        self.begin(claimed.claims)

    async def _ask(self, limit: int, now: Callable[[], float]) -> None:
        """Claim from the one queue that was announced. A look finds what cannot be claimed in this way."""
        claim_id, began = new_claim_id(), now()
        if (queue := self._frontier.ask()) is None:
            return  # the other lane asks
        claimed = Claimed([], others=True)
        try:
            async with self.asking(claim_id, limit):
                claimed = await self._link.claim(Look(claim_id, limit, queue=queue))
        finally:
            self._frontier.asked(began=began, now=now())
            if claimed.others or len(claimed.claims) >= limit:
                self._frontier.heard()
        self.begin(claimed.claims)

    def _limited_is_due(self, now: float) -> bool:
        return self._limited_at <= now and self._open and not self._stopping.is_set()

    def _limited_is_next(self, now: float) -> bool:
        """Tell whether limited work goes first, for half of the room: a busy queue would leave it nothing."""
        return self._limited_is_due(now) and not self._plain_is_next and now >= self._limited_looked + LOOK

    def _may_look_at_limited(self, now: float) -> bool:
        """Tell whether limited work can be claimed. Never more than there is room for now: claims that waited here
        would hold up other workers."""
        return self._limited_is_due(now) and self._free > 0

    async def _look_at_limited(self, limit: int, now: Callable[[], float]) -> None:
        claim_id, self._limited_at = new_claim_id(), math.inf
        self._limited_looked = now()
        claimed = Claimed([], again=0.0)  # if it fails: again, as soon as it can be asked
        try:
            async with self.asking(claim_id, limit):
                claimed = await self._link.claim(Look(claim_id, limit, alone=not self._ledger.alone, limited=True))
        finally:
            if claimed.again is not None:
                self._limited_at = min(self._limited_at, now() + claimed.again)
        self._plain_is_next = bool(claimed.claims)
        if len(claimed.claims) >= limit:
            self._limited_at, self._limited_looked = now(), -math.inf  # there may be more
        elif claimed.further:
            self._limited_at = min(self._limited_at, now() + self._stride)
        self._stride = STRIDE if claimed.claims else min(2 * self._stride, MOST_STRIDE)
        self.begin(claimed.claims)

    async def _exchange(self, completed: Sequence[Completion], going: Going | None) -> None:
        order, claim_id = NOTHING, None
        if going is not None:
            self._plain_is_next = False
            claim_id = new_claim_id()
            order = Order(claim_id, going.places, going.share)
        try:
            async with self.asking(claim_id, len(order.places) * order.share):
                exchanged = await self._link.exchange(completed, order)
        except BaseException as error:
            self._ledger.returned(completed)
            if not completed or not isinstance(error, Exception) or isinstance(error, Unavailable | TimeoutError):
                raise
            log.warning("exchanging %d completed runs failed, settling them apart: %s", len(completed), error)
            return
        if completed:
            self._ledger.settled(completed, exchanged.lost)
            if self._others:
                # One of the completed runs may have counted for a limit, even if it was claimed before there was one.
                self._limited_at = min(self._limited_at, self._limited_looked + LOOK)
        if going is not None:
            self._frontier.went_on(going, exchanged.claims)
            self.begin(exchanged.claims)

    def asking(self, claim_id: ClaimId | None, limit: int) -> Asking:
        """Keep room for what a statement claims while it is on its way, and expect its claim."""
        return Asking(self, claim_id, limit)

    def _asks(self, claim_id: ClaimId | None, limit: int, timeout: asyncio.Timeout) -> None:
        self._ordered += limit
        self._flying += 1
        self._patience.add(timeout)
        if claim_id is not None:
            self._coming.add(claim_id)
            for witness in self._witnesses:
                witness.add(claim_id)

    def _asked(self, claim_id: ClaimId | None, limit: int, timeout: asyncio.Timeout, *, answered: bool) -> None:
        self._patience.discard(timeout)
        self._ordered -= limit
        self._flying -= 1
        # Not at once: the claimed bodies begin before the other lane goes on.
        asyncio.get_running_loop().call_soon(self._changed.set)
        if claim_id is not None:
            self._coming.discard(claim_id)
            if not answered:
                self.unanswered.add(claim_id)
                self._to_compare.set()

    def room_for(self, names: Collection[str]) -> int:
        """Count free slots, and those that runs of these names would soon have, since their bodies end at once."""
        if not self._open or self._stopping.is_set() or len(self._ledger) > 2 * self._slots + UNSETTLED:
            return 0
        soon = min([self._attempts.pace.soon(name) for name in names], default=0) if self._attempts.unused > 0 else 0
        return max(0, self._free + min(soon, MOST_HERE))

    @property
    def resting(self) -> int:
        """Number of turns that have lent their slot."""
        return len(self._attempts.resting)

    def rest(self, claim: Claim, rests: bool) -> None:
        """Lend the slot of a turn, or take it back."""
        self._attempts.rest(claim, rests)

    def begin(self, claims: Sequence[Claim]) -> None:
        """Begin the attempts of new claims, the most urgent first."""
        if not claims:
            return
        self.claimed += len(claims)
        self._telemetry.tell("worker.claimed", claims=claims)
        if self._stopping.is_set() or not self._open:
            # The claims were on their way when `stop`, or the loss of the lease, ended all attempts.
            for claim in claims:
                self._attempts.give_back(claim)
            return
        for claim in claims:
            if claim.deadline is not None or claim.expiry is not None or claim.fresh is not None:
                claim.claimed_at = time.monotonic()
        if len({claim.priority for claim in claims}) > 1:
            claims = sorted(claims, key=lambda claim: claim.priority)
        self._attempts.begin(claims)
        self._changed.set()  # there may be more, for the other lane
