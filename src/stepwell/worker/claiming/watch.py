"""The watch compares the claims that are known here with those that the table gives to this worker."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from stepwell.concurrency.background import in_time
from stepwell.model.errors import Unavailable
from stepwell.model.run import Claim
from stepwell.telemetry import log
from stepwell.worker.attempts import Attempts
from stepwell.worker.claiming.lanes import Lanes
from stepwell.worker.ledger import Ledger
from stepwell.worker.link import Link

WATCH = 1.0
WATCH_ALL = 10.0
"""Seconds between two comparisons of known claims with the table, and of all claims in the table."""


class Watch:
    """Finds lost claims, and claims whose answer was lost."""

    def __init__(self, link: Link, attempts: Attempts, ledger: Ledger, lanes: Lanes, *, look: asyncio.Event) -> None:
        """`look` asks for a comparison at once."""
        self._link = link
        self._attempts = attempts
        self._ledger = ledger
        self._lanes = lanes
        self.look = look

    async def run(self) -> None:
        """Compare with the table until cancelled.

        Every second the claims that were known the second before are compared; on an announcement all known claims; and
        now and then all claims in the table, the less often the longer that takes.
        """
        now = asyncio.get_running_loop().time
        next_all = now() + WATCH_ALL
        last: set[Claim] = set()
        while True:
            await in_time(WATCH, self.look.wait())
            self._attempts.give_back_stale()
            everything = bool(self._lanes.unanswered) or now() >= next_all
            known = set(self._ledger.known)
            claims = known if everything or self.look.is_set() else known & last
            last = known
            self.look.clear()
            if not (claims or everything):
                continue
            began = now()
            try:
                await self.compare(claims, everything=everything)
            except Unavailable as error:
                log.warning("cannot compare claims with the database, will try again: %s", error)
                await asyncio.sleep(WATCH / 4)
            else:
                if everything:
                    next_all = now() + max(WATCH_ALL, 20 * (now() - began))

    async def compare(self, claims: Collection[Claim] | None = None, *, everything: bool = True) -> None:
        """Compare the claims held here, or some of them, with the table. Claims that are on their way meanwhile are
        left out."""
        claims = self._ledger.known if claims is None else claims
        before, known = self._attempts.snapshot().intersection(claims), {claim.fence for claim in claims}
        with self._lanes.claims_on_their_way() as coming:
            unanswered = set(self._lanes.unanswered)
            claim_ids = None if everything else list({claim_id for _, claim_id in known})
            held = {claim.fence: claim for claim in await self._link.held(claim_ids)}
        self._attempts.compare(before, held)
        if everything:
            self._lanes.unanswered -= unanswered
            self._release([claim for fence, claim in held.items() if fence not in known and fence[1] not in coming])

    def _release(self, unanswered: Sequence[Claim]) -> None:
        for claim in unanswered:
            log.warning("run %s is claimed by this worker, but the answer to the claim was lost: released", claim.id)
            self._attempts.give_back(claim)
