"""A draft: the events of a turn that are not written yet. The code of a workflow runs ahead of its writes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec.structs import replace

from stepwell.model.commands import Command, Ended, StepCall
from stepwell.model.events import Event, EventType
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim
from stepwell.model.start import Start
from stepwell.model.turn import Advance
from stepwell.replay.replay import Replay
from stepwell.telemetry import log
from stepwell.worker.turns.host import WritePage

PART = 400
"""Limit of events, or starts, in one write. What the code asked for on the same arrival follows in the next writes."""
LONG = 0.5
"""Seconds of computing in the code after which a warning is logged."""

_CANCELS = frozenset({EventType.TASK_CANCELLED, EventType.CHILD_CANCELLED})


class Draft:
    """The events, starts and steps of a turn that the next writes take along."""

    __slots__ = ("_claim", "calls", "full", "page", "replay")

    def __init__(self, claim: Claim, replay: Replay, seen: int) -> None:
        self._claim = claim
        self.replay = replay
        self.full: deque[WritePage] = deque()
        """Pages with so much to start that nothing else is added to them: the next writes hold one each."""
        self.page = WritePage(Advance(claim, seen=seen))
        """The last page."""
        self.calls: list[StepCall] = replay.take_steps()
        """Steps that the code asked for. They begin once all of the draft is written."""

    @property
    def has_more(self) -> bool:
        """True if there is something to write, or the code is not at rest."""
        return bool(self.page.advance.events or self.calls or self.full or self.replay.line)

    @property
    def pages(self) -> Sequence[WritePage]:
        """Everything that is not written yet, in the order of the writes."""
        return (*self.full, self.page)

    @property
    def listens(self) -> bool:
        """True if the code can be told of an event now."""
        return self.replay.ended is None and not self.replay.line

    @property
    def children(self) -> list[tuple[Claim, Completed]]:
        return [child for page in self.pages for child in page.advance.children]

    def deliver(self, event: Event, *, arrived: int | None = None, tx: Any = None) -> None:
        """Tell the code of an event, and record what it asks for. `arrived` is the number of an arrival, `tx` the
        transaction of a step that has ended."""
        replay, page = self.replay, self._page()
        advance = page.advance
        event.idx = replay.idx + 1
        if event.at < replay.now:
            event.at = replay.now
        advance.events.append(event)
        if arrived is not None:
            advance.seen, advance.took = arrived, True
        elif tx is not None:
            page.tx, advance.in_own_tx = tx, True
        self._tell(event, None)

    def deliver_ends(self, ended: deque[tuple[Claim, Completed]], at: datetime, most: int) -> None:
        """Tell the code of up to `most` ends of children, one after the other, and record what it asks for. The code
        may stop listening before."""
        ends = self._ends(ended, max(at, self.replay.now), most)
        while self.listens and (first := next(ends, None)) is not None:
            self._tell(first, ends)

    def _ends(self, ended: deque[tuple[Claim, Completed]], at: datetime, most: int) -> Iterator[Event]:
        """Yield the ends of children, and record each as the code is told of it."""
        for _ in range(min(len(ended), most)):
            advance, child = self._page().advance, ended.popleft()
            claim, outcome = child
            event = Event(
                self.replay.idx + 1, EventType.TASK_COMPLETED, at, int(claim.node or 0), run_id=claim.id,
                value=outcome.result, attempt=claim.attempt,
            )  # fmt: skip
            advance.events.append(event)
            advance.children.append(child)
            yield event

    def _page(self) -> WritePage:
        """Return the last page; a new one if there is no room on it."""
        if len(self.page.advance.starts) >= PART:
            self.full.append(self.page)
            self.page = WritePage(Advance(self._claim, seen=self.page.advance.seen))
        return self.page

    def _tell(self, event: Event, more: Iterator[Event] | None) -> None:
        replay, began = self.replay, time.monotonic()
        if commands := replay.delivered(event, more):
            self.record(commands)
        if not replay.line:
            self.calls += replay.take_steps()
        if time.monotonic() > began + LONG:
            self._warn(event.type, began)

    def go_on(self) -> None:
        """Let the code go on with what it was told, and record what it asks for."""
        began = time.monotonic()
        self.record(self.replay.go_on())
        if not self.replay.line:
            self.calls += self.replay.take_steps()
        if time.monotonic() > began + LONG:
            self._warn("what it was told", began)

    def _warn(self, told: str, began: float) -> None:
        log.warning(
            "%s %s computed for %.1f s after %s, and everything else on this worker waited: let a task or a step do it",
            self._claim.name, self._claim.id, time.monotonic() - began, told,
        )  # fmt: skip

    def record(self, commands: Sequence[Command]) -> None:
        advance, replay = self.page.advance, self.replay
        for command in commands:
            replay.idx += 1
            advance.events.append(_recorded(command, replay.idx, replay.now))
            if command.start is not None:
                advance.starts.append(command.start)
            elif command.type in _CANCELS and command.run_id is not None:
                advance.cancels.append(command.run_id)
            elif command.type is EventType.STATE_PUBLISHED:
                advance.published = command.value

    def end(self, ended: Ended) -> Event:
        """Add the last event of this code."""
        self.replay.idx += 1
        event = Event(
            self.replay.idx, ended.type, self.replay.now, value=ended.value, error=ended.error,
            signals=ended.signals, state=ended.state,
        )  # fmt: skip
        self.page.advance.events.append(event)
        return event

    def take(self, here: Sequence[Start] = ()) -> WritePage:
        """Take the first page for a write: all of it, or only up to the last of `here` if that is long."""
        page = self.full[0] if self.full else self.page
        advance = page.advance
        if PART <= len(here) < len(advance.starts):
            return self._cut(page, here[-1])
        if self.full:
            self.full.popleft()
        else:
            self.page = WritePage(Advance(self._claim, seen=advance.seen))
            page.calls, self.calls = self.calls, []
        events = advance.events
        advance.recorded = events[-1].idx if events else self.replay.idx
        if self.replay.line and events and advance.recorded == self.replay.idx:
            events[-1].more = True
        return page

    def _cut(self, page: WritePage, last: Start) -> WritePage:
        """Take what stands before the end of this start, for a write of its own. What the code asks for upon one
        arrival may be written in parts: the last event of each part says that there is more."""
        whole, count = page.advance, PART
        while whole.starts[count - 1] is not last:
            count += 1
        place = count  # or behind: there are other events, too
        while whole.events[place - 1].run_id != last.id:
            place += 1
        part = replace(whole, events=whole.events[:place], starts=whole.starts[:count], cancels=[])
        part.events[-1].more = True
        part.recorded = part.events[-1].idx
        # The page began with fewer starts than these: whatever was told to the code came before.
        whole.events, whole.starts = whole.events[place:], whole.starts[count:]
        whole.children, whole.took, whole.in_own_tx = [], False, False
        if whole.published is not None:
            part.published, whole.published = _last_shown(part.events), _last_shown(whole.events)
        tx, page.tx = page.tx, None
        return WritePage(part, tx=tx)


def _last_shown(events: Sequence[Event]) -> bytes | None:
    shown = [event.value for event in events if event.type is EventType.STATE_PUBLISHED]
    return shown[-1] if shown else None


def _recorded(command: Command, idx: int, at: datetime) -> Event:
    return Event(
        idx, command.type, at, command.number, command.name, command.run_id, command.takes, command.value,
        command.error, when=command.when, rollback=command.rollback,
    )  # fmt: skip
