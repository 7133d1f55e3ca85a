"""The timers of a workflow that have not fired, in the order of their time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush

from stepwell.model.commands import Command
from stepwell.replay.futures import DurableTimer

NEVER = datetime.max.replace(tzinfo=UTC)


def moment(began: datetime, seconds: float) -> datetime:
    """So many seconds after a workflow began, as far as there is a date for it."""
    try:
        return began + timedelta(seconds=seconds)
    except OverflowError:
        return NEVER


class Timers:
    def __init__(self) -> None:
        self.pending: dict[int, DurableTimer] = {}
        """By the numbers of their commands."""
        self._order: list[tuple[datetime, int]] = []

    def add(self, timer: DurableTimer, command: Command, when: datetime) -> None:
        timer.command = command
        number = command.number or 0
        self.pending[number] = timer
        heappush(self._order, (when, number))

    def drop(self, timer: DurableTimer) -> None:
        if timer.command is not None:
            timer.command.dropped = True
            self.pending.pop(timer.command.number, None)

    def take(self, number: int) -> DurableTimer | None:
        """One that fires; None if there is none of this number."""
        return self.pending.pop(number, None)

    @property
    def due(self) -> datetime | None:
        """When the next one fires."""
        timer = self._next()
        return None if timer is None else timer.when

    def due_by(self, now: datetime) -> tuple[int, str | None] | None:
        """The first that fires by this time: its number, and the signal whose wait it ends, if it does. Only the first:
        what it wakes may cancel the next."""
        timer = self._next()
        return None if timer is None or timer.when is None or timer.when > now else (timer.number or 0, timer.name)

    def _next(self) -> Command | None:
        """The command of the one that fires first."""
        while self._order:
            timer = self.pending.get(self._order[0][1])
            if timer is not None:
                command: Command = timer.command
                return command
            heappop(self._order)
        return None

    def clear(self) -> None:
        self.pending.clear()
