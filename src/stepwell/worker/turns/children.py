"""The children of a turn: runs that it has started, and whose ends it can record itself."""

from __future__ import annotations

import time
from collections.abc import Collection

from stepwell.context.current import Running
from stepwell.model.ids import RunId
from stepwell.worker.turns.host import Host, Waiter

HOLD = 1.0
"""Seconds for which a turn stays for its children after a write. The end of a slower child comes as an arrival."""


class Children:
    """Children that run on this worker, or may before long."""

    __slots__ = ("_attempt", "_held_since", "_host", "_turn", "ids", "resting")

    def __init__(self, host: Host, attempt: Running, turn: Waiter) -> None:
        self._host = host
        self._attempt = attempt
        self._turn: Waiter | None = turn
        self.ids: set[RunId] = set()
        """Children that have not ended. An attribute, since it is read several times for each event."""
        self._held_since = 0.0
        self.resting = False
        """True if the turn has lent its slot: it needs none while it only waits for its children."""

    @property
    def hold(self) -> bool:
        """True while the turn stays for its children."""
        return bool(self.ids) and time.monotonic() < self._held_since + HOLD

    def expect(self, ids: Collection[RunId]) -> None:
        """Have the ends of these runs offered to the turn. Called before the write, since a child may end before that
        returns."""
        if self._turn is not None:
            self.ids.update(ids)
            self._host.expect(ids, self._turn)

    def forget(self, ids: Collection[RunId]) -> None:
        """Expect these runs no longer: an expected child keeps the turn, and all of its code, in memory."""
        self.ids.difference_update(ids)
        if self._turn is not None:
            self._host.expect_no_more(ids, self._turn)

    def take(self, run_id: RunId) -> bool:
        """Return True if this run was expected, and expect it no longer."""
        if run_id not in self.ids:
            return False
        self.ids.remove(run_id)
        return True

    def wrote(self) -> None:
        """Start the time of HOLD: a write has returned."""
        self._held_since = time.monotonic()

    def rest(self, rests: bool) -> None:
        """Lend the turn's slot, or take it back."""
        if rests is not self.resting:
            self.resting = rests
            self._host.rest(self._attempt, rests)

    def close(self) -> None:
        self.forget(list(self.ids))
        self._turn = None
        self.rest(False)
