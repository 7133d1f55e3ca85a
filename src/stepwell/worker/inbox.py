"""What has come for a turn and is told to its code: in which order, and as far as that listens.

    ends of its steps ──► ends of its own runs ──► arrivals ──► timers

Timers come last: what arrived before their time wins, word of it or not, and so none fires before someone has looked.
"""

from __future__ import annotations

import time
from collections import deque
from datetime import datetime, timedelta

from stepwell.model.events import Event, EventType
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim
from stepwell.model.turn import News
from stepwell.worker.drafts import Draft
from stepwell.worker.run_step import OfTurn

AT_ONCE = 100
"""Ends of its own runs that the code is told of, before others on the event loop have a turn."""


class Inbox:
    __slots__ = ("_began", "_draft", "_read_at", "_replay", "arrivals", "ended", "looked_at", "seen", "steps")

    def __init__(self, draft: Draft, news: News, steps: OfTurn) -> None:
        self._draft, self._replay = draft, draft.replay
        self._began, self._read_at = news.now, news.read_at
        self.steps = steps
        self.ended: deque[tuple[Claim, Completed]] = deque()
        """Runs of its own, that ran here."""
        self.arrivals = news.arrivals
        self.looked_at = news.now
        """When someone last looked for any."""
        self.seen = news.arrived - len(news.arrivals)
        """Those that the code was told of."""

    def __len__(self) -> int:
        return len(self.ended) + len(self.arrivals) + len(self.steps.done)

    def now(self) -> datetime:
        """By the database's clock, as told from here. Seconds by their place: by name it takes twice as long."""
        return self._began + timedelta(0, time.monotonic() - self._read_at)

    def tell(self, *, pausing: bool, looking: bool) -> bool:
        """Whether someone must look before a timer can fire. None does while one is `looking`; and of a run that is to
        be paused the code is told only of the ends of its steps: upon all else something new would begin."""
        if self.steps.done:
            self._tell_steps()
        if pausing:
            return False
        if self.ended:
            self._draft.deliver_ends(self.ended, self.now(), AT_ONCE)
        if self.arrivals and not self.ended:
            self._tell_arrivals()
        if self._replay.timers.pending and not (self.ended or self.arrivals or looking):
            return self._fire()
        return False

    def _tell_steps(self) -> None:
        """With a transaction of its own, one at a time."""
        steps, draft = self.steps, self._draft
        while (step := steps.next_done()) is not None and draft.advance.tx is None and self._draft.listens:
            steps.done.popleft()
            draft.deliver(step.event(self.now()), tx=step.tx)

    def _tell_arrivals(self) -> None:
        arrivals, self.arrivals = self.arrivals, []
        for place, event in enumerate(arrivals):
            if not self._draft.listens:
                self.arrivals = arrivals[place:]  # or for the code that begins anew, if it does
                return
            if event.idx > self.seen:
                self.seen = event.idx
                self._draft.deliver(event, arrived=event.idx)

    def _fire(self) -> bool:
        """Timers, in the order of their time: what those of one moment wake may cancel the next."""
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
