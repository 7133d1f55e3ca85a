"""`teller`: the service that delivers ends of runs which the waiting workflow never received. There should be none,
since an end is delivered in the transaction that records it. This is a safety net: it checks all live runs, a few at a
time, once an hour."""

from __future__ import annotations

from uuid import UUID

from stepwell.dispatch.base import Wakes, tell_all
from stepwell.engine import undelivered_ends
from stepwell.model.turn import Consequences
from stepwell.services.service import Service
from stepwell.store.pool import Database
from stepwell.telemetry import Telemetry, log

LOOK = 3600.0
"""Seconds between two rounds."""
PAUSE = 5.0
"""Seconds between two pages of a round."""


class Teller(Service):
    """Delivers undelivered ends of runs to the workflows that wait for them."""

    name = "teller"

    def __init__(self, database: Database, wakes: Wakes, telemetry: Telemetry) -> None:
        super().__init__()
        self._database = database
        self._wakes = wakes
        self._telemetry = telemetry
        self._after = undelivered_ends.FIRST

    async def run_once(self) -> float:
        look = await undelivered_ends.look(self._database, self._after)
        for run_id in look.untold:
            await self.tell(run_id)
        self._after = look.last or undelivered_ends.FIRST
        return LOOK if look.last is None else PAUSE

    async def tell(self, run_id: UUID) -> None:
        """Deliver to one workflow every end that it has missed."""
        after = Consequences()
        async with self._database.transaction() as tx:
            told = await undelivered_ends.tell(tx, run_id, after)
        tell_all(self._wakes, after)
        if told:
            log.warning("workflow %s waited for %d runs that had ended, and was told now", run_id, len(told))
            self._telemetry.tell("teller.told", run_id=run_id, ends=told)
