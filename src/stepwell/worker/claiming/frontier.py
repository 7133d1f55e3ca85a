"""The frontier decides where a worker claims next. Times in, orders out: it does no I/O.

A *look* asks every queue from its front, and so finds all there is. But at the front of a busy queue lie the dead index
entries of all the runs that were taken, which perhaps cannot be cleared away yet, and a look has to step over each of
them. So between two looks a worker goes on in the queues that gave their whole share, each behind the last run that it
took there. A run that appears before that place waits for the next look: because it is more urgent, is tried again, or
was committed later than its id was made. That takes a tenth of a second, or three times as long as a look takes.

An idle worker that hears of work in one queue asks that one only.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepwell.model.run import Claim, Claimed, Place

LOOK = 0.1
"""Seconds between looks while queues are busy."""
CHEAP = 0.05
"""Longest look, in seconds, that may follow every announcement of work."""
EFFORT = 3
"""A look that is not cheap is followed by a pause, this many times as long as the look."""
KNOWN = 1000
"""Limit of queues whose ends are remembered."""

Next = Literal["look", "go on", "ask", "wait"]


@dataclass(frozen=True, slots=True)
class Going:
    """An order to go on: the places to go on from, and the number of runs to take from each."""

    places: Sequence[Place]
    share: int
    since: int
    """Number of the look that it follows. Its answer counts only until the next look."""


class Frontier:
    """The places where a worker claims next, and what it heard of new work."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._busy: set[str] = set()
        self._work = True
        """True if new work was announced, and no lane has claimed since."""
        self._asked: str | None = None
        """Queue to ask, if work was announced in that queue only."""
        self._owed = False
        """True if a look is due: there may be something at the front of a queue."""
        self._looking = False
        self._looks, self._looked, self._cost = 0, -1e9, 0.0

    def heard(self, queue: str | None = None) -> None:
        """Note that there may be new work, in this queue or anywhere."""
        if queue is None or self._asked not in (None, queue) or self._cost >= CHEAP:
            self._work, self._asked = True, None
        elif not self._work:
            self._asked = queue

    def next(self, now: float) -> Next:
        """Decide what to do about new claims."""
        if self._busy:
            due = now >= self._looked + max(LOOK, EFFORT * self._cost)
            return "look" if due and not self._looking else "go on"
        if (self._work or self._owed) and not self._looking and self.rest(now) == 0:
            return "look"
        if self._asked is not None:
            return "ask"
        return "go on" if self._work and self._places and self._cost >= CHEAP else "wait"

    def rest(self, now: float) -> float | None:
        """Return the seconds until there is something to do without an announcement; None if there is nothing."""
        if self._looking or not (self._work or self._owed):
            return None
        return 0.0 if self._cost < CHEAP else max(0.0, self._looked + EFFORT * self._cost - now)

    def look_begins(self) -> None:
        self._work, self._owed, self._looking, self._asked = False, False, True, None

    def look_fails(self) -> None:
        self._work, self._looking = True, False

    def look_ends(self, claimed: Claimed, *, began: float, now: float) -> None:
        self._looking, self._looked, self._cost = False, now, now - began
        self._looks += 1
        # A run that must be alone is taken out of order: it does not show how far the queue was read.
        claims = [claim for claim in claimed.claims if not claim.alone]
        given = Counter([claim.queue for claim in claims])
        full = {queue for queue, count in given.items() if count >= claimed.share}
        # A look takes what it has room for, from queues in no order. A busy queue that gave nothing may still be busy.
        self._busy = full | (self._busy - given.keys())
        if len(self._places) > KNOWN:
            self._places = {queue: self._places[queue] for queue in self._busy & self._places.keys()}
        for queue in full:
            # The look left nothing before its last run: go on from that run, even if the place was further ahead.
            self._places.pop(queue, None)
        self._advance(_in_order(claims, claimed.share))

    def ask(self) -> str | None:
        """Take the queue to ask, unless the other lane has. If the answer is incomplete, a look follows: `heard`."""
        queue, self._asked = self._asked, None
        return queue

    def asked(self, *, began: float, now: float) -> None:
        """Note how long the answer took. If it was long, the next announcement is no reason to ask again at once."""
        if now - began >= CHEAP:
            self._looked, self._cost = now, now - began

    def going(self, limit: int) -> Going:
        """Choose where to go on: the busy queues, or the end of all that are known."""
        queues = list(self._busy or self._places)
        if len(queues) > limit:
            queues = random.sample(queues, limit)
        if not self._busy:
            self._work, self._owed = False, True
        return Going([self._places[queue] for queue in queues], limit // len(queues), self._looks)

    def went_on(self, going: Going, claims: Sequence[Claim]) -> None:
        if going.since != self._looks:
            return
        self._advance(claims)
        given = Counter([claim.queue for claim in claims])
        for place in going.places:
            if given[place.queue] >= going.share:
                self._busy.add(place.queue)
            else:
                # The end of the queue is reached. Only a look can find new runs at its front.
                self._busy.discard(place.queue)
                self._owed = True

    def _advance(self, claims: Sequence[Claim]) -> None:
        # Claims come in the order of their ids: the dict keeps the last one of each priority.
        for (queue, priority), claim in {(claim.queue, claim.priority): claim for claim in claims}.items():
            place = self._places.get(queue)
            if place is None or (priority, claim.id) > (place.priority, place.id):
                self._places[queue] = Place(queue, priority, claim.id)


def _in_order(claims: Sequence[Claim], share: int) -> Sequence[Claim]:
    """Select the claims of a look that show how far it came. Up to a tenth of a share are less urgent runs, taken for
    their age."""
    urgencies: dict[str, list[int]] = {}
    for claim in claims:
        urgencies.setdefault(claim.queue, []).append(claim.priority)
    last = {queue: sorted(each)[max(0, len(each) - 1 - math.ceil(share / 10))] for queue, each in urgencies.items()}
    return [claim for claim in claims if claim.priority <= last[claim.queue]]
