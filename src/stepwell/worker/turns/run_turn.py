"""A turn of a workflow: from its claim until it waits, has ended, or has lost its claim.

    events ──► code ──► draft ──► write ──► steps and runs begin ──► their events …

The code runs ahead of the writes, and nothing else does: a step begins, and a started run exists, only after the write
that holds the reason for it. If that write is refused, what the code did meanwhile is forgotten, and the worker that
has the next turn replays the history.

A turn waits for nothing but its end. It goes on when something comes: the answer to its write, the end of a step or of
a child, the announcement of an arrival, a timer. One write is on its way at a time. The code is told at once what comes
meanwhile, and its commands leave with the next write. `turn_state.py` has the states of a turn, and what it may do in
each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from stepwell.context.current import Running
from stepwell.model.commands import Command, StepCall
from stepwell.model.events import Event, EventType
from stepwell.model.ids import RunId
from stepwell.model.outcome import Completed, Outcome
from stepwell.model.run import Claim
from stepwell.model.start import Start
from stepwell.model.turn import Advance, Advanced, News
from stepwell.replay.replay import Replay
from stepwell.worker.run_task import CompletedWithin
from stepwell.worker.turns.children import Children
from stepwell.worker.turns.drafts import PART, Draft
from stepwell.worker.turns.host import Host, WritePage, Wrote
from stepwell.worker.turns.inbox import Inbox
from stepwell.worker.turns.run_step import TurnSteps
from stepwell.worker.turns.turn_state import Lifecycle, TurnState
from stepwell.worker.turns.waking import Waking

LOOK = 1.0
"""Seconds between looks for arrivals while nothing comes."""


class Turn:
    """A turn under way."""

    __slots__ = (
        "_attempt",
        "_children",
        "_draft",
        "_history_from",
        "_host",
        "_inbox",
        "_issued",
        "_life",
        "_replay",
        "_steps",
        "_version",
        "_waking",
    )  # fmt: skip

    def __init__(
        self, host: Host, attempt: Running, replay: Replay, news: News, *,
        history_from: int, version: str, issued: Sequence[Command] = (),
    ) -> None:  # fmt: skip
        """`issued` are commands of code that has begun anew, and that are not recorded yet."""
        self._host = host
        self._attempt = attempt
        self._replay = replay
        self._history_from = history_from
        self._version = version
        self._issued = issued
        self._life = Lifecycle((news.recorded, news.arrived - len(news.arrivals)))
        self._draft = Draft(attempt.claim, replay, self._life.written[1])
        self._waking = Waking(self._wake)
        self._children = Children(host, attempt, self)
        self._steps = TurnSteps(host.steps, attempt, stir=self._waking.soon, proceed=self._wake)
        self._inbox = Inbox(self._draft, news, self._steps)

    @property
    def state(self) -> TurnState:
        return self._life.state

    @property
    def written(self) -> tuple[int, int]:
        """Number of events in the history, and of arrivals among them."""
        return self._life.written

    async def run(self) -> Advanced:
        """Run the turn to its end, and return where it left the run."""
        self._go(self._begin)
        try:
            return await self._life.end
        finally:
            self._leave()

    def _begin(self) -> None:
        if self._replay.idx == 0:
            now, deadline = self._inbox.looked_at, self._attempt.claim.deadline
            by = None if deadline is None else now + deadline
            self._draft.deliver(Event(0, EventType.WORKFLOW_STARTED, now, when=by, version=self._version))
        self._draft.record(self._issued)
        self._proceed()

    def _leave(self) -> None:
        """Give up what was not written: end the steps, and have children that ended here settled without this turn."""
        self._life.leave()
        self._children.close()
        self._waking.close()
        self._steps.close()
        for page in self._draft.pages:
            page.close()
        for claim, outcome in (*self._draft.children, *self._inbox.ended):
            self._host.settle(claim, outcome)

    # -- what comes

    def takes(self, claim: Claim, outcome: Outcome) -> bool:
        """Take the end of a child, to write it with its consequences. Return False if this turn cannot."""
        if not self._life.is_open or self._inbox.pausing or self._replay.ended is not None:
            return False
        if isinstance(outcome, CompletedWithin):
            return False  # the commit of the child's own transaction adds an arrival: the turn stays for that
        if not self._children.take(claim.id):
            return False
        self._waking.soon()
        if type(outcome) is not Completed:
            return False
        self._inbox.ended.append((claim, outcome))
        return True

    def hear(self) -> None:
        """Look for arrivals: there may be one for this run."""
        self._inbox.heard = True
        self._waking.soon()

    def look(self, now: float) -> None:
        """Look for arrivals if nothing has come for a while: an announcement may be lost. Called now and then."""
        if now >= self._waking.went_on_at + LOOK and self.state is TurnState.RUNNING:
            self.hear()

    def _take_news(self, answer: News | BaseException) -> None:
        self._inbox.asking = False
        if isinstance(answer, BaseException):
            raise answer
        self._inbox.take(answer)
        self._children.forget([RunId(event.run_id) for event in answer.arrivals if event.run_id])
        self._waking.soon()

    def _go_on(self, answer: Wrote | BaseException) -> None:
        """Go on after a write."""
        written = self._life.answer(answer)
        if written is None or isinstance(answer, BaseException):
            return
        advanced, elsewhere = answer
        if elsewhere:
            self._children.forget(elsewhere)
        if self._children.ids:
            self._children.wrote()
        self._waking.went_on_at = time.monotonic()
        self._inbox.wrote(advanced)
        if written.calls:
            self._begin_steps(written.calls)
        if not self._waits_for_steps_alone:
            self._proceed()

    # -- going on

    def _wake(self) -> None:
        self._go(self._proceed)

    def _go(self, on: Callable[..., None], *args: Any) -> None:
        """Call a function; its error ends the turn."""
        try:
            on(*args)
        except BaseException as error:
            self._life.fail(error)

    @property
    def _waits_for_steps_alone(self) -> bool:
        """True if steps are running, and nothing else is to be told, written or waited for. Usual after a write."""
        return bool(self._steps.under_way) and not (
            self._inbox.is_busy or self._children.ids or self._children.resting or self._draft.has_more
            or self._replay.timers.pending or self._replay.dropped or self._replay.ended
        )  # fmt: skip

    def _proceed(self) -> None:
        """Tell the code what has come, and write what it asks for."""
        self._waking.went_on()
        if not self._life.is_open:
            return
        replay, inbox = self._replay, self._inbox
        was_busy = bool(replay.line)
        if was_busy:
            self._draft.go_on()
        elif len(inbox) > 1:
            with replay.loop.entered():
                inbox.tell()
        else:
            inbox.tell()
        if was_busy or replay.line or (inbox.ended and not inbox.pausing and replay.ended is None):
            self._waking.soon()
        if replay.dropped or self._steps.gone:
            self._steps.give_up(replay.dropped)
            replay.dropped = []
        if inbox.heard and not inbox.asking and replay.ended is None:
            inbox.heard, inbox.asking = False, True
            self._host.ask_news(self._attempt.claim, partial(self._go, self._take_news))
        if self._life.state is TurnState.RUNNING:
            self._write()

    def _write(self) -> None:
        """Write what there is to write, and say where that leaves the run."""
        draft, replay, children = self._draft, self._replay, self._children
        if replay.ended is not None and not draft.full:
            self._close()
            return
        first = draft.pages[0].advance
        if replay.line and len(first.events) < PART:
            return
        if children.resting and not children.ids:
            children.rest(False)
        here = self._to_run_here(first) if first.starts else ()
        stays = self._works or self._inbox.asking or self._holds or bool(replay.line)
        if draft.full or (first.events and (here or stays)):
            self._send(self._taken("stay", here))
        elif not stays:
            self._park()
        else:
            if draft.calls and not self._inbox.pausing:
                # An earlier turn wrote the events that ask for these steps; this turn has only replayed them.
                calls, draft.calls = draft.calls, []
                self._begin_steps(calls)
            self._waking.at(replay.timers.due, self._inbox.now)
        if children.ids or children.resting:
            children.rest(bool(children.ids) and not self._works)

    @property
    def _works(self) -> bool:
        """True if steps are running, or will be. None begins for a run that is to be paused: its next turn asks for
        them again."""
        return bool(self._steps.under_way or self._steps.done or (self._draft.calls and not self._inbox.pausing))

    @property
    def _holds(self) -> bool:
        """True if the turn stays for children: the code is yet to be told of some that ended, or some that run here may
        end before long."""
        return not self._inbox.pausing and bool(self._inbox.ended or self._children.hold)

    # -- events out

    def _begin_steps(self, calls: Sequence[StepCall]) -> None:
        if self._inbox.pausing:
            self._draft.calls = [*calls, *self._draft.calls]
        else:
            self._steps.begin(calls)

    def _to_run_here(self, first: Advance) -> Sequence[Start]:
        wanted, cancels = first.starts, first.cancels
        if self._inbox.pausing or self._replay.ended is not None:
            return ()
        if cancels:
            wanted = [start for start in wanted if start.id not in cancels]
        return self._host.can_run(wanted, slots=0 if self._works or self._children.resting else 1)

    def _taken(self, to: Literal["wait", "stay", "again"], here: Sequence[Start] = ()) -> WritePage:
        """Take what the draft has; another draft begins."""
        page = self._draft.take(here)
        taken = page.advance
        taken.to, taken.history_from = to, self._history_from
        if here:
            ids = {start.id for start in here}
            taken.here, starts = list(here), taken.starts
            taken.starts = [] if len(here) == len(starts) else [start for start in starts if start.id not in ids]
            self._children.expect(ids)
        return page

    def _send(self, page: WritePage, *, last: bool = False) -> None:
        advance = page.advance
        if advance.starts and not last:
            self._children.expect([start.id for start in self._host.may_claim(advance.starts)])
        if advance.cancels:
            self._children.forget([RunId(run_id) for run_id in advance.cancels])
        self._life.send(page, last=last)
        advance.leave()
        self._host.write(page, partial(self._go, self._go_on))

    def _park(self) -> None:
        """Leave the run where it waits for something."""
        due = self._replay.timers.due
        due_in = None if due is None else max(0.0, (due - self._inbox.now()).total_seconds())
        # Steps that a pause held back begin in the next turn, which comes at once if the pause was taken back.
        held_back = self._draft.calls
        self._replay.put_back(held_back)
        page = self._taken("again" if held_back else "wait")
        last = page.advance
        last.due, last.due_in, last.waits_for = due, due_in, self._replay.waits_for()
        self._send(page, last=True)

    def _close(self) -> None:
        """Record that the code has ended, or begins anew."""
        ended = self._replay.ended
        assert ended is not None
        event = self._draft.end(ended)
        if ended.type is EventType.CONTINUED_AS_NEW:
            event.version, self._history_from = self._version, event.idx
            # The run goes on: its next turn begins with this event, and with a new replay.
            self._send(self._taken("again"), last=True)
            return
        self._children.rest(True)  # nothing of it is run any more: its slot is for others while this is written
        page = self._taken("wait")
        page.advance.ended = ended
        self._send(page, last=True)
