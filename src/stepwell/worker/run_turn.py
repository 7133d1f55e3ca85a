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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from stepwell.context import Running
from stepwell.model.commands import Command, StepCall
from stepwell.model.events import Event, EventType
from stepwell.model.ids import RunId
from stepwell.model.outcome import Completed, CompletedWithin, Outcome
from stepwell.model.run import Claim
from stepwell.model.start import Start
from stepwell.model.turn import Advance, Advanced, News
from stepwell.replay.replay import Replay
from stepwell.worker.desk import Desk, Wrote
from stepwell.worker.drafts import PART, Draft
from stepwell.worker.inbox import Inbox
from stepwell.worker.run_step import OfTurn
from stepwell.worker.waking import Waking

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
    _inbox: Inbox = field(init=False)
    """What the code has not been told of."""
    _steps: OfTurn = field(init=False)
    _children: set[RunId] = field(default_factory=set)
    """Runs that it started, and that run here or may before long."""
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
        news = self.news
        self._pausing = news.pausing
        self.written = news.recorded, news.arrived - len(news.arrivals)
        self._draft, self._waking = Draft(self.claim, self.replay, self.written[1]), Waking(self._stir)
        proceed = partial(self._go, self._proceed)
        self._steps = OfTurn(self.desk.steps, self.attempt, stir=self._stir, proceed=proceed)
        self._inbox = Inbox(self._draft, news, self._steps)
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
        for claim, outcome in (*self._draft.children, *self._inbox.ended):
            self.desk.settle(claim, outcome)

    # -- what comes

    def takes(self, claim: Claim, outcome: Outcome) -> bool:
        """Whether the end of a run of its own is written with what follows from it here."""
        if self._closing or self._pausing or self.replay.ended is not None:
            return False
        if isinstance(outcome, CompletedWithin):
            return False  # its own commit tells this run, in a moment: the turn stays for that arrival
        try:
            self._children.remove(claim.id)
        except KeyError:
            return False
        self._stir()
        if type(outcome) is not Completed:
            return False
        self._inbox.ended.append((claim, outcome))
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
            self._inbox.arrivals, self._inbox.looked_at = answer.arrivals, answer.now
            self._await_no_more([RunId(event.run_id) for event in answer.arrivals if event.run_id])
            self._pausing = answer.pausing
        self._stir()

    def _wrote(self, answer: Wrote | BaseException) -> None:
        flown, self._flying = self._flying, None
        if flown is not None:
            self._go(self._go_on, flown, answer)

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
            self._await_no_more(elsewhere)
        self._since = self._held_since = time.monotonic()
        self.heard = self.heard or advanced.arrived > self._inbox.seen
        self._pausing = advanced.pausing
        if flown.calls:
            self._begin_steps(flown.calls)
        if not self._waits_for_steps_alone:
            self._proceed()

    # -- going on

    def _stir(self) -> None:
        """Not at once: what comes at the same moment is told together."""
        if not self._called:
            self._called = True
            asyncio.get_running_loop().call_soon(self._go, self._proceed)

    def _go(self, on: Callable[..., None], *args: Any) -> None:
        """All that goes on does so here: what is raised ends the turn."""
        if self._end.done():
            return
        try:
            if self._error is None:
                on(*args)
        except BaseException as error:
            self._error = error
        if self._error is not None and self._flying is None and not self._end.done():
            self._end.set_exception(self._error)

    @property
    def _waits_for_steps_alone(self) -> bool:
        """They are under way, and there is nothing beside them: to be told, to be written or to be waited for. It is so
        behind most writes."""
        draft, replay, inbox = self._draft, self.replay, self._inbox
        return bool(self._steps.under_way) and not (
            self._steps.done or inbox.ended or inbox.arrivals or self.heard or self._asking or self._pausing
            or self._children or self._rests or self._hurries or draft.advance.events or draft.calls or draft.full
            or replay.line or replay.timers.pending or replay.dropped or replay.ended
        )  # fmt: skip

    def _proceed(self) -> None:
        """Tell the code what has come, and write what it asks for upon it."""
        self._called, self._since = False, time.monotonic()
        if self._closing:
            return
        replay, inbox = self.replay, self._inbox
        was_busy = bool(replay.line)
        if was_busy:
            self._draft.go_on()
        elif len(inbox) > 1:
            with replay.loop.entered():
                self._tell()
        else:
            self._tell()
        if was_busy or replay.line:
            self._hurry(True)
            self._stir()
        elif inbox.ended and not self._pausing and replay.ended is None:
            self._stir()
        if replay.dropped or self._steps.gone:
            self._steps.give_up(replay.dropped)
            replay.dropped = []
        if self.heard and not self._asking and replay.ended is None:
            self.heard, self._asking = False, True
            self.desk.ask_news(self.claim, self._told_news)
        if self._flying is None:
            self._write()
        if self._hurries:
            flying_long = self._flying is not None and (self._closing or self._flying.is_long)
            self._hurry(was_busy or self._draft.is_long or flying_long)

    def _tell(self) -> None:
        if self._inbox.tell(pausing=self._pausing, looking=self._asking or self.heard):
            self.heard = True

    def _write(self) -> None:
        """Whatever there is to be written; and where that leaves the run."""
        draft, replay = self._draft, self.replay
        if replay.ended is not None and not draft.full:
            self._close()
            return
        first = draft.full[0] if draft.full else draft.advance
        if replay.line and len(first.events) < PART:
            return
        if self._rests and not self._children:
            self._rest(False)  # its slot is its own again
        here = self._to_run_here(first) if first.starts else ()
        stays = self._works or self._asking or self._holds or bool(replay.line)
        if draft.full or (draft.advance.events and (here or stays)):
            self._send(self._taken("stay", here))
        elif not stays:
            self._park()
        else:
            if draft.calls and not self._pausing:
                # Asked for by what was written before: this turn has only been told of it.
                calls, draft.calls = draft.calls, []
                self._begin_steps(calls)
            self._waking.at(replay.timers.due, self._inbox.now)
        if self._children or self._rests:
            self._rest(bool(self._children) and not self._works)

    @property
    def _works(self) -> bool:
        """Whether steps are run, or will be. Of a run that is to be paused none begins: they are asked for again."""
        return bool(self._steps.under_way or self._steps.done or (self._draft.calls and not self._pausing))

    @property
    def _holds(self) -> bool:
        """Whether to stay for runs of its own: of some that have ended the code is yet to be told, and the end of those
        that are under way here is then the next turn."""
        if self._pausing:
            return False
        return bool(self._inbox.ended or (self._children and time.monotonic() < self._held_since + HOLD))

    def _hurry(self, hurries: bool) -> None:
        if hurries is not self._hurries:
            self._hurries = hurries
            self.desk.hurry(self.attempt, hurries)

    def _rest(self, rests: bool) -> None:
        if rests is not self._rests:
            self._rests = rests
            self.desk.rest(self.attempt, rests)

    # -- events out

    def _begin_steps(self, calls: Sequence[StepCall]) -> None:
        if self._pausing:
            self._draft.calls = [*calls, *self._draft.calls]
        else:
            self._steps.begin(calls)

    def _to_run_here(self, first: Advance) -> Sequence[Start]:
        wanted, cancels = first.starts, first.cancels
        if self._pausing or self.replay.ended is not None:
            return ()
        if cancels:
            wanted = [start for start in wanted if start.id not in cancels]
        return self.desk.can_run(wanted, slots=0 if self._works or self._rests else 1)

    def _taken(self, to: Literal["wait", "stay", "again"], here: Sequence[Start] = ()) -> Advance:
        """What the draft has, and another begins."""
        taken = self._draft.take(here)
        taken.to, taken.history_from = to, self.history_from
        if here:
            ids = {start.id for start in here}
            taken.here, starts = list(here), taken.starts
            taken.starts = [] if len(here) == len(starts) else [start for start in starts if start.id not in ids]
            self._await(ids)
        return taken

    def _send(self, flying: Advance) -> None:
        """It is on its way."""
        if flying.starts and not self._closing:
            self._await([start.id for start in self.desk.may_claim(flying.starts)])
        if flying.cancels:
            self._await_no_more([RunId(run_id) for run_id in flying.cancels])
        self._flying = flying
        if len(flying.events) > 1 and flying.is_long:
            self._hurry(True)
        self.desk.write(flying.leave(), self._wrote)

    def _await(self, ids: Collection[RunId]) -> None:
        """Before the write: a run that it starts may have ended when that returns."""
        self._children.update(ids)
        self.desk.expect(ids, self)

    def _await_no_more(self, ids: Collection[RunId]) -> None:
        """Whoever waits for the turn's children holds the turn, and all of its code."""
        self._children.difference_update(ids)
        self.desk.expect_no_more(ids, self)

    def _park(self) -> None:
        self._closing = True
        due = self.replay.timers.due
        due_in = None if due is None else max(0.0, (due - self._inbox.now()).total_seconds())
        # Steps that a pause held back begin in the next turn: at once, should it have been taken back meanwhile.
        held_back = self._draft.calls
        self.replay.put_back(held_back)
        last = self._taken("again" if held_back else "wait")
        last.due, last.due_in, last.waits_for = due, due_in, self.replay.waits_for()
        self._send(last)

    def _close(self) -> None:
        """The code has ended, or begins anew."""
        self._closing = True
        ended = self.replay.ended
        assert ended is not None
        event = self._draft.end(ended)
        if ended.type is EventType.CONTINUED_AS_NEW:
            event.version, self.history_from = self.version, event.idx
            self._send(self._taken("again"))  # the same run: its next turn begins with this event, and another replay
            return
        self._rest(True)  # nothing of it is run any more: its slot is for others while this is written
        last = self._taken("wait")
        last.ended = ended
        self._send(last)
