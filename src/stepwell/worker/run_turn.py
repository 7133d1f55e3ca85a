"""One turn of a workflow: from its claim until it waits, has ended, or has lost its claim.

    what comes ──► code ──► draft ──► write ──► steps begin, runs are there ──► what comes of them …

Code runs ahead of what is written, and nothing else does: a step begins, and a run that was started is there, only
after the write that holds the reason for it. When that write is refused, what the code did meanwhile is forgotten,
and whoever has the turn tells it the history again.

A turn waits for nothing but its end. It goes on when something comes: the answer to its write, the end of a step or
of a run of its own, word of an arrival, a timer. One write is on its way at a time; what comes meanwhile is told to
the code at once, and leaves with the next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from stepwell.context import Running
from stepwell.model.commands import Command, StepCall
from stepwell.model.events import Event, EventType
from stepwell.model.ids import RunId
from stepwell.model.outcome import Completed, Outcome
from stepwell.model.run import Claim
from stepwell.model.start import Start
from stepwell.model.turn import Advance, Advanced, News
from stepwell.replay.replay import Replay
from stepwell.worker.desk import Desk, Wrote
from stepwell.worker.drafts import PART, Draft
from stepwell.worker.run_step import OfTurn
from stepwell.worker.waking import Waking

AT_ONCE = 100  # ends of its own runs that the code is told of, before others on the event loop have a turn
LOOK = 1.0
"""Seconds between looks for arrivals, while nothing comes."""
HOLD = 1.0
"""Seconds for which a turn stays for runs of its own. Longer ones tell it by an arrival, as all do."""


@dataclass(slots=True, eq=False)
class Turn:
    """A turn under way."""

    desk: Desk
    attempt: Running
    replay: Replay
    news: News
    history_from: int
    version: str
    issued: Sequence[Command] = ()
    """By code that has begun anew, and not recorded yet."""
    written: tuple[int, int] = (0, 0)
    """How many events its history has, and how many arrivals are in it: so far."""
    heard: bool = False
    """Something arrived for this run."""
    _end: asyncio.Future[Advanced] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    _draft: Draft = field(init=False)
    """What the next write holds."""
    _flying: Advance | None = None
    """The write that is on its way."""
    _closing: bool = False
    """That one is the last."""
    _asking: bool = False
    """News are on their way."""
    _came: list[Event] = field(default_factory=list)
    """Arrivals that the code has not been told of."""
    _news_of: datetime = field(init=False)
    """When someone last looked for any."""
    _seen: int = 0
    _steps: OfTurn = field(init=False)
    _children: set[RunId] = field(default_factory=set)
    """Runs that it started, and that run here or may before long."""
    _ended: deque[tuple[Claim, Completed]] = field(default_factory=deque)
    """Those of them that have ended, unknown to the code."""
    _since: float = 0.0
    _held_since: float = 0.0
    """When it last went on, and when it last wrote."""
    _pausing: bool = False
    _rests: bool = False
    _hurries: bool = False
    _called: bool = False
    _error: BaseException | None = None
    """It ends by this one, as soon as nothing of it is on its way."""
    _waking: Waking = field(init=False)

    @property
    def claim(self) -> Claim:
        return self.attempt.claim

    async def run(self) -> Advanced:
        """To its end: where it left the run."""
        self._pausing = self.news.pausing
        self._seen = self.news.arrived - len(self.news.arrivals)
        self.written = self.news.recorded, self._seen
        self._came, self._news_of = self.news.arrivals, self.news.now
        self._draft, self._waking = Draft(self.claim, self.replay, self._seen), Waking(self._stir)
        proceed = partial(self._go, self._proceed)
        self._steps = OfTurn(self.desk.steps, self.attempt, stir=self._stir, proceed=proceed)
        self._go(self._begin)
        try:
            return await self._end
        finally:
            self._let_go()

    def _begin(self) -> None:
        if self.replay.idx == 0:
            by = None if self.claim.deadline is None else self.news.now + self.claim.deadline
            self._draft.deliver(Event(0, EventType.WORKFLOW_STARTED, self.news.now, when=by, version=self.version))
        self._draft.record(self.issued)
        self._proceed()

    def _let_go(self) -> None:
        """Of whatever was not written: steps are ended, and runs that ended here settled without this turn."""
        self._closing = True
        self.desk.expect_no_more(self._children, self)
        self._waking.close()
        self._rest(False)
        self._hurry(False)
        self._steps.close()
        if (tx := self._draft.advance.tx) is not None:
            tx.close()
        for claim, outcome in (*self._draft.children, *self._ended):
            self.desk.settle(claim, outcome)

    # -- what comes

    def takes(self, claim: Claim, outcome: Outcome) -> bool:
        """Whether the end of a run of its own is written with what follows from it here."""
        if self._closing or self._pausing or self.replay.ended is not None or claim.id not in self._children:
            return False
        self._children.discard(claim.id)
        self._stir()
        if type(outcome) is not Completed:
            return False
        self._ended.append((claim, outcome))
        return True

    def hear(self) -> None:
        """Something arrived for this run."""
        self.heard = True
        self._stir()

    def look(self, now: float) -> None:
        """Called now and then: nothing may have come because no word of it did."""
        if now >= self._since + LOOK and self._flying is None:
            self.hear()

    def _told_news(self, answer: News | BaseException) -> None:
        self._asking = False
        if isinstance(answer, BaseException):
            self._error = answer
        else:
            self._came, self._news_of = answer.arrivals, answer.now
            self._pausing = answer.pausing
        self._stir()

    def _wrote(self, answer: Wrote | BaseException) -> None:
        flown, self._flying = self._flying, None
        if flown is not None:
            self._go(lambda: self._go_on(flown, answer))

    def _go_on(self, flown: Advance, answer: Wrote | BaseException) -> None:
        """Behind a write."""
        if isinstance(answer, BaseException):
            raise answer
        advanced, elsewhere = answer
        if self._closing:
            self._end.set_result(advanced)
            return
        self.written = flown.recorded, flown.seen
        if elsewhere:
            self._children -= elsewhere
            self.desk.expect_no_more(elsewhere, self)
        self._held_since = time.monotonic()
        self.heard = self.heard or advanced.arrived > self._seen
        self._pausing = advanced.pausing
        self._begin_steps(flown.calls)
        self._proceed()

    # -- going on

    def _stir(self) -> None:
        """Not at once: what comes at the same moment is told together."""
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._go, self._proceed)

    def _go(self, on: Callable[[], None]) -> None:
        """All that goes on does so here: what is raised ends the turn."""
        if self._end.done():
            return
        try:
            if self._error is None:
                on()
        except BaseException as error:
            self._error = error
        if self._error is not None and self._flying is None and not self._end.done():
            self._end.set_exception(self._error)

    def _proceed(self) -> None:
        """Tell the code what has come, and write what it asks for upon it."""
        self._called, self._since = False, time.monotonic()
        if self._closing:
            return
        was_busy = self.replay.is_busy
        if was_busy:
            self._draft.go_on()
        elif len(self._ended) + len(self._came) + len(self._steps.done) > 1:
            with self.replay.loop.entered():
                self._tell()
        else:
            self._tell()
        if was_busy or self.replay.is_busy:
            self._hurry(True)
            self._stir()
        elif self._ended and not self._pausing and self.replay.ended is None:
            self._stir()
        self._steps.give_up(self.replay.dropped)
        self.replay.dropped = []
        if self.heard and not self._asking and self.replay.ended is None:
            self.heard, self._asking = False, True
            self.desk.ask_news(self.claim, self._told_news)
        if self._flying is None:
            self._write()
        if self._hurries:
            flying_long = self._flying is not None and (self._closing or self._flying.is_long)
            self._hurry(was_busy or self._draft.is_long or flying_long)

    def _write(self) -> None:
        """Whatever there is to be written; and where that leaves the run."""
        if self.replay.ended is not None and not self._draft.goes_on:
            self._close()
            return
        if self.replay.is_busy and len(self._draft.first.events) < PART:
            return
        if not self._children:
            self._rest(False)  # its slot is its own again
        here = self._to_run_here()
        if self._draft.goes_on or (self._draft.advance.events and (here or self._stays)):
            self._send(to="stay", here=here)
        elif not self._stays:
            self._park()
        else:
            if self._draft.calls and not self._pausing:
                # Asked for by what was written before: this turn has only been told of it.
                calls, self._draft.calls = self._draft.calls, []
                self._begin_steps(calls)
            self._waking.at(self.replay.due, self._now)
        self._rest(bool(self._children) and not self._works)

    @property
    def _listens(self) -> bool:
        """Whether the code can be told of something now."""
        return self.replay.ended is None and not self.replay.is_busy

    @property
    def _works(self) -> bool:
        """Whether steps are run, or will be. Of a run that is to be paused none begins: they are asked for again."""
        return bool(self._steps or (self._draft.calls and not self._pausing))

    @property
    def _stays(self) -> bool:
        return self._works or self._asking or self._holds or self.replay.is_busy

    @property
    def _holds(self) -> bool:
        """Whether to stay for runs of its own that are under way here: their end is then the next turn."""
        return bool(self._children) and not self._pausing and time.monotonic() < self._held_since + HOLD

    def _hurry(self, hurries: bool) -> None:
        if hurries is not self._hurries:
            self._hurries = hurries
            self.desk.hurry(self.attempt, hurries)

    def _rest(self, rests: bool) -> None:
        if rests is not self._rests:
            self._rests = rests
            self.desk.rest(self.attempt, rests)

    # -- events in

    def _tell(self) -> None:
        """Of a run that is to be paused, only the ends of its steps: upon all else something new would begin."""
        self._tell_steps()
        if self._pausing:
            return
        now = self._now() if self._ended else self.news.now
        for _ in range(min(len(self._ended), AT_ONCE)):
            if not self._listens:
                return
            claim, outcome = self._ended.popleft()
            told = Event(
                0, EventType.TASK_COMPLETED, now, int(claim.node or 0), run_id=claim.id, value=outcome.result,
                attempt=claim.attempt,
            )  # fmt: skip
            self._draft.deliver(told, child=(claim, outcome))
        if self._ended:
            return
        arrivals, self._came = self._came, []
        for place, event in enumerate(arrivals):
            if not self._listens:
                self._came = arrivals[place:]  # or for the code that begins anew, if it does
                return
            if event.idx > self._seen:
                self._seen = event.idx
                self._draft.deliver(event, arrived=event.idx)
        if not self._asking and not self.heard:
            self._fire()

    def _tell_steps(self) -> None:
        """With a transaction of its own, one at a time."""
        while (step := self._steps.next_done()) is not None and self._draft.advance.tx is None and self._listens:
            self._steps.done.popleft()
            self._draft.deliver(step.event(self._now()), tx=step.tx)

    def _fire(self) -> None:
        """Timers, in the order of their time: what one wakes may cancel the next. What arrived before that wins, word
        of it or not: so none fires before someone has looked."""
        while self._listens and (due := self.replay.due) is not None:
            first = self.replay.due_timer(self._now())
            if first is None:
                return
            if due > self._news_of:
                self.heard = True
                return
            number, signal = first
            type = EventType.TIMER_FIRED if signal is None else EventType.SIGNAL_TIMED_OUT
            self._draft.deliver(Event(0, type, self._now(), number, signal))

    def _now(self) -> datetime:
        """By the database's clock, as told from here."""
        return self.news.now + timedelta(seconds=time.monotonic() - self.news.read_at)

    # -- events out

    def _begin_steps(self, calls: Sequence[StepCall]) -> None:
        if self._pausing:
            self._draft.calls = [*calls, *self._draft.calls]
        else:
            self._steps.begin(calls)

    def _to_run_here(self) -> Sequence[Start]:
        wanted, cancels = self._draft.first.starts, self._draft.first.cancels
        if self._pausing or not wanted or self.replay.ended is not None:
            return ()
        if cancels:
            wanted = [start for start in wanted if start.id not in cancels]
        return self.desk.can_run(wanted, slots=0 if self._works or self._rests else 1)

    def _send(self, *, here: Sequence[Start] = (), **more: object) -> None:
        """The draft is on its way, and another begins."""
        flying = self._draft.take(here)
        flying.history_from = self.history_from
        for name, value in more.items():
            setattr(flying, name, value)
        if here:
            ids = {start.id for start in here}
            flying.here, starts = list(here), flying.starts
            flying.starts = [] if len(here) == len(starts) else [start for start in starts if start.id not in ids]
            self._await(ids)
        if flying.starts and not self._closing:
            self._await([start.id for start in self.desk.may_claim(flying.starts)])
        if flying.cancels:
            self._children.difference_update(flying.cancels)
        self._flying = flying
        if flying.is_long:
            self._hurry(True)
        self.desk.write(flying, self._wrote)

    def _await(self, ids: Collection[RunId]) -> None:
        """Before the write: a run that it starts may have ended when that returns."""
        self._children.update(ids)
        self.desk.expect(ids, self)

    def _park(self) -> None:
        self._closing = True
        due = self.replay.due
        due_in = None if due is None else max(0.0, (due - self._now()).total_seconds())
        # Steps that a pause held back begin in the next turn: at once, should it have been taken back meanwhile.
        to = "again" if self._draft.calls else "wait"
        self.replay.put_back(self._draft.calls)
        self._send(to=to, due=due, due_in=due_in, waits_for=self.replay.waits_for())

    def _close(self) -> None:
        """The code has ended, or begins anew."""
        self._closing = True
        ended = self.replay.ended
        assert ended is not None
        event = self._draft.end(ended)
        if ended.type is not EventType.CONTINUED_AS_NEW:
            self._send(to="wait", ended=ended)
            return
        event.version, self.history_from = self.version, event.idx
        self._send(to="again")  # the same run: its next turn begins with this event, and another replay
