"""A draft: what the code of a turn was told and asked for upon it, until a write takes it along."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from stepwell.model.commands import Command, Ended, StepCall
from stepwell.model.events import Event, EventType
from stepwell.model.run import Claim
from stepwell.model.turn import Advance
from stepwell.replay.replay import Replay
from stepwell.telemetry import log

LONG = 0.5
"""Seconds of the worker's time that the code may take before someone is told."""

_CANCELS = frozenset({EventType.TASK_CANCELLED, EventType.CHILD_CANCELLED})


class Draft:
    """Code runs ahead of what is written: this is how far."""

    __slots__ = ("_claim", "advance", "calls", "replay")

    def __init__(self, claim: Claim, replay: Replay) -> None:
        self._claim = claim
        self.replay = replay
        self.advance = Advance(claim)
        """What the next write holds."""
        self.calls: list[StepCall] = replay.take_steps()
        """Steps that were asked for, and begin once that is written."""

    def deliver(self, event: Event) -> None:
        """Tell the code of something, and note what it asks for."""
        replay = self.replay
        event.idx = replay.idx + 1
        if event.at < replay.now:
            event.at = replay.now
        self.advance.events.append(event)
        began = time.monotonic()
        commands = replay.delivered(event)
        if time.monotonic() > began + LONG:
            log.warning(
                "%s %s computed for %.1f s after %s, and everyone on this worker waited: let a task or a step do it",
                self._claim.name, self._claim.id, time.monotonic() - began, event.type,
            )  # fmt: skip
        if commands:
            self.record(commands)
        self.calls += replay.take_steps()

    def record(self, commands: Sequence[Command]) -> None:
        advance, replay = self.advance, self.replay
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
        """The last event of this code."""
        self.replay.idx += 1
        event = Event(
            self.replay.idx, ended.type, self.replay.now, value=ended.value, error=ended.error,
            signals=ended.signals, state=ended.state,
        )  # fmt: skip
        self.advance.events.append(event)
        return event

    def take(self) -> Advance:
        """It is on its way, and another begins."""
        taken, self.advance = self.advance, Advance(self._claim)
        taken.recorded = self.replay.idx
        taken.calls, self.calls = self.calls, []
        return taken


def _recorded(command: Command, idx: int, at: datetime) -> Event:
    return Event(
        idx, command.type, at, command.number, command.name, command.run_id, command.takes, command.value,
        command.error, when=command.when,
    )  # fmt: skip
