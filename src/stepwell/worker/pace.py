"""The pace of bodies: how many end at once, and how many will. Times in, numbers out: it does no I/O."""

from __future__ import annotations

import math

AHEAD = 0.05
"""Seconds ahead for which claims are made: as many as quick bodies will have ended by then."""
FAR_AHEAD = 0.1
"""Seconds ahead for which a workflow's children are claimed on its own worker. On another worker they would end later,
and leave an arrival."""
KNOWN = 1000
"""Limit of names whose pace is remembered."""


class Pace:
    """The pace of bodies on a worker."""

    def __init__(self) -> None:
        self.ended = 0
        """Bodies that ended in their first step, so far."""
        self._counted, self._at, self._rate = 0, 0.0, 0.0
        self._before = 0
        self._each: dict[str, float] = {}

    def lately(self, now: float) -> int:
        """Count the bodies that ended at once in the last AHEAD seconds or so."""
        passed = now - self._at
        if passed >= AHEAD / 4:
            old = math.exp(-passed / AHEAD)
            self._rate = old * self._rate + (1 - old) * (self.ended - self._counted) / passed
            self._counted, self._at = self.ended, now
        return int(self._rate * AHEAD)

    def paused(self, name: str | None, seconds: float) -> None:
        """Record the mean body time of a stretch in which all bodies ended, the last of them of this name."""
        ended, self._before = self.ended - self._before, self.ended
        if name is not None and ended:
            if len(self._each) >= KNOWN:
                self._each.clear()
            self._each[name] = max(seconds / ended, 1e-6)

    def waits(self, name: str) -> None:
        """Forget the pace of a name: one of its bodies did not end at once."""
        self._each.pop(name, None)

    def soon(self, name: str) -> int:
        """Estimate how many bodies of this name will end within FAR_AHEAD seconds, at the pace of the last ones."""
        each = self._each.get(name)
        return 0 if each is None else int(FAR_AHEAD / each)
