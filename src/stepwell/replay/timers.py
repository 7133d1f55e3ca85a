"""The timers of a workflow that have not fired, in order of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush

from stepwell.model.commands import Command
from stepwell.replay.futures import DurableTimer

NEVER = datetime.max.replace(tzinfo=UTC)


def moment(began: datetime, seconds: float) -> datetime:
    """Return the time `seconds` after the workflow began, or NEVER if there is no such date."""
    try:
        return began + timedelta(seconds=seconds)
    except OverflowError:
        return NEVER


class Timers:
    """The pending timers of one workflow."""

    def __init__(self) -> None:
        self.pending: dict[int, DurableTimer] = {}
        """The timers by the number of their command."""
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
        """Remove and return the timer of this number, which fires; None if there is none."""
        return self.pending.pop(number, None)

    @property
    def due(self) -> datetime | None:
        """The time of the next timer; None if there is none."""
        timer = self._next()
        return None if timer is None else timer.when

    def due_by(self, now: datetime) -> list[tuple[int, str | None]]:
        """Return the timers of the earliest moment up to `now`: each one's number, and the signal whose wait it ends.

        Timers of one moment fire together, as in asyncio. Later ones are left out, because the code that these wake may
        cancel them.
        """
        first = self._next()
        if first is None or first.when is None or first.when > now:
            return []
        together = []
        while self._order and self._order[0][0] == first.when:
            place = heappop(self._order)
            if place[1] in self.pending:
                together.append(place)
        for place in together:
            heappush(self._order, place)
        return [(number, self.pending[number].command.name) for _, number in together]

    def _next(self) -> Command | None:
        """Return the command of the timer that fires first."""
        while self._order:
            timer = self.pending.get(self._order[0][1])
            if timer is not None:
                command: Command = timer.command
                return command
            heappop(self._order)
        return None

    def clear(self) -> None:
        self.pending.clear()
