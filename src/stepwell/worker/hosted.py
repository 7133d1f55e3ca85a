"""A worker, as the turns on it see it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager

from stepwell.context import Running
from stepwell.model.ids import ClaimId
from stepwell.model.outcome import Outcome
from stepwell.model.run import Claim
from stepwell.telemetry import Telemetry
from stepwell.worker.attempts import Attempts
from stepwell.worker.lanes import Lanes
from stepwell.worker.ledger import Ledger
from stepwell.worker.link import Link, Settlement


class Hosted:
    def __init__(self, link: Link, lanes: Lanes, attempts: Attempts, ledger: Ledger, telemetry: Telemetry) -> None:
        self._link = link
        self._lanes = lanes
        self._attempts = attempts
        self._ledger = ledger
        self._telemetry = telemetry

    def room_for(self, names: Collection[str]) -> int:
        return self._lanes.room_for(names)

    @property
    def resting(self) -> int:
        return len(self._attempts.resting)

    @property
    def queues(self) -> Collection[str] | None:
        return self._link.queues

    def asking(self, claim_id: ClaimId | None, limit: int) -> AbstractAsyncContextManager[None]:
        return self._lanes.asking(claim_id, limit)

    def begin(self, claims: Sequence[Claim]) -> None:
        self._lanes.begin(list(claims))

    def rest(self, attempt: Running, rests: bool) -> None:
        self._attempts.rest(attempt.claim, rests)

    def settle(self, claim: Claim, outcome: Outcome) -> None:
        """A run that a turn would have taken along, and could not."""
        self._ledger.add(claim, outcome)

    def settled(self, group: Sequence[Settlement]) -> None:
        """Runs that turns have taken along."""
        if group:
            self._attempts.forget([claim for claim, _ in group])
            self._lanes.stir()
            self._telemetry.tell("worker.settled", settlements=group, lost=())
