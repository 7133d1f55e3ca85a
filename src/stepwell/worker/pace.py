"""How quick bodies are. Times in, numbers out: nothing here waits or asks."""

from __future__ import annotations

import math

from stepwell.model.run import Claim

AHEAD = 0.05
"""Where bodies end at once, claims are made for as many as will have this many seconds from now."""
FAR_AHEAD = 0.1
"""Those that a workflow starts on its own worker, for so many: elsewhere they would end later, and be told of."""
STRETCH, SHORT_STRETCH = 0.003, 0.0003
"""Seconds of first steps after which everyone else on the event loop has a turn; where one of them is in a hurry."""
KNOWN = 1000
"""Names whose bodies are remembered."""


class Pace:
    def __init__(self) -> None:
        self.ended = 0
        """Bodies that ended in their first step, so far."""
        self._counted, self._at, self._rate = 0, 0.0, 0.0
        self._before, self._began, self._told = 0, 0.0, 0.0
        self._each: dict[str, float] = {}
        self.hurried: set[Claim] = set()
        """Turns that have much to write: what they started cannot be settled before."""

    def lately(self, now: float) -> int:
        """How many ended at once in the last AHEAD seconds or so."""
        passed = now - self._at
        if passed >= AHEAD / 4:
            old = math.exp(-passed / AHEAD)
            self._rate = old * self._rate + (1 - old) * (self.ended - self._counted) / passed
            self._counted, self._at = self.ended, now
        return int(self._rate * AHEAD)

    def begins(self, now: float) -> None:
        """Bodies go through their first step, one after another, from now on."""
        self._before, self._began = self.ended, now

    def is_over(self, now: float) -> bool:
        """Whether everyone else has a turn now."""
        return now > self._began + (SHORT_STRETCH if self.hurried else STRETCH)

    def tells(self, now: float) -> bool:
        """Whether those who claim are told now that there may be room; then not for a whole stretch. After a short one
        there is hardly more of it than after the one before."""
        if now <= self._told + STRETCH:
            return False
        self._told = now
        return True

    def pauses(self, now: float, name: str) -> None:
        """They did until now, and all of them ended; this was the last."""
        if self.ended > self._before:
            if len(self._each) >= KNOWN:
                self._each.clear()
            self._each[name] = max((now - self._began) / (self.ended - self._before), 1e-6)

    def waits(self, name: str) -> None:
        """One of this name did not end at once."""
        self._each.pop(name, None)

    def soon(self, name: str) -> int:
        """How many of this name will end within FAR_AHEAD seconds, should they do as the last of them did."""
        each = self._each.get(name)
        return 0 if each is None else int(FAR_AHEAD / each)
