"""The inbox of a turn: events that have come, and the order in which the code is told of them.

    ends of its steps ──► ends of its children ──► arrivals ──► timers

Timers come last: an arrival from before their time wins, even if its announcement was lost. So no timer fires before a
look for arrivals.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime, timedelta

from stepwell.model.events import Event, EventType
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim
from stepwell.model.turn import Advanced, News
from stepwell.worker.turns.drafts import Draft
from stepwell.worker.turns.run_step import TurnSteps

AT_ONCE = 100
"""Ends of children that the code is told of before the event loop serves other tasks."""


class Inbox:
    """Events that have come for a turn, and that the code was not told of yet."""

    __slots__ = (
        "_began", "_draft", "_read_at", "_replay", "_steps", "arrivals", "asking", "ended", "heard", "looked_at",
        "pausing", "seen",
    )  # fmt: skip

    def __init__(self, draft: Draft, news: News, steps: TurnSteps) -> None:
        self._draft, self._replay = draft, draft.replay
        self._began, self._read_at = news.now, news.read_at
        self._steps = steps
        self.ended: deque[tuple[Claim, Completed]] = deque()
        """Children that ran here and have ended."""
        self.arrivals = news.arrivals
        self.seen = news.arrived - len(news.arrivals)
        """Number of arrivals that the code was told of."""
        self.looked_at = news.now
        """Time of the last look for arrivals."""
        self.heard = False
        """True if a look for arrivals is needed: one was announced, or a timer is about to fire."""
        self.asking = False
        """True while the answer to such a look is on its way."""
        self.pausing = news.pausing
        """True if the run is to be paused when its turn ends."""

    def __len__(self) -> int:
        return len(self.ended) + len(self.arrivals) + len(self._steps.done)

    @property
    def is_busy(self) -> bool:
        """True if there is something to tell, or a look for arrivals is due or on its way, or the run is to be
        paused."""
        return bool(
            self._steps.done or self.ended or self.arrivals or self.heard or self.asking or self.pausing
        )  # fmt: skip

    def take(self, news: News) -> None:
        """Take the answer to a look for arrivals."""
        self.arrivals, self.looked_at, self.pausing = news.arrivals, news.now, news.pausing

    def wrote(self, advanced: Advanced) -> None:
        """Note what a write has found: arrivals, and a request to pause."""
        self.heard = self.heard or advanced.arrived > self.seen
        self.pausing = advanced.pausing

    def now(self) -> datetime:
        """Return the database's time, computed with this machine's clock. Seconds are passed by position: by name it
        takes twice as long."""
        return self._began + timedelta(0, time.monotonic() - self._read_at)

    def tell(self) -> None:
        """Tell the code what has come. No timer fires before a look for arrivals.

        If the run is to be paused, the code is told only of the ends of its steps: any other event would begin
        something new.
        """
        if self._steps.done:
            self._tell_steps()
        if self.pausing:
            return
        if self.ended:
            self._draft.deliver_ends(self.ended, self.now(), AT_ONCE)
        if self.arrivals and not self.ended:
            self._tell_arrivals()
        if self._replay.timers.pending and not (self.ended or self.arrivals or self.asking or self.heard):
            self.heard = self._fire()

    def _tell_steps(self) -> None:
        """Tell the code of steps that have ended; only one at a time if the step has a transaction of its own."""
        steps, draft = self._steps, self._draft
        while (step := steps.next_done()) is not None and draft.page.tx is None and self._draft.listens:
            steps.done.popleft()
            draft.deliver(step.event(self.now()), tx=step.tx)

    def _tell_arrivals(self) -> None:
        arrivals, self.arrivals = self.arrivals, []
        for place, event in enumerate(arrivals):
            if not self._draft.listens:
                self.arrivals = arrivals[place:]  # kept for the next code, should this one continue as new
                return
            if event.idx > self.seen:
                self.seen = event.idx
                self._draft.deliver(event, arrived=event.idx)

    def _fire(self) -> bool:
        """Fire timers in the order of their time: code woken by one may cancel the next. Return True if a look for
        arrivals is needed before one can fire."""
        replay = self._replay
        while self._draft.listens and (due := replay.timers.due) is not None:
            moment = replay.timers.due_by(self.now())
            if not moment:
                return False
            if due > self.looked_at:
                return True
            now = self.now()
            for place, (number, signal) in enumerate(moment, 1):
                type = EventType.TIMER_FIRED if signal is None else EventType.SIGNAL_TIMED_OUT
                self._draft.deliver(Event(0, type, now, number, signal, together=place < len(moment) or None))
        return False
