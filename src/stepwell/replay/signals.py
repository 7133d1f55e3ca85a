"""Signals of a workflow: arrived ones that no code awaits yet, and receivers that wait. Both queues are FIFO."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from stepwell.replay.futures import DurableFuture, DurableTimer
from stepwell.replay.loop import Loop

MOST_NAMES = 20
"""The most names of untaken signals to show."""


class Receiving(DurableFuture[bytes]):
    """A future for the next signal of a name."""

    __slots__ = ("leave", "place", "timer")

    def __init__(self, *, loop: Loop, leave: Callable[[Receiving], Any]) -> None:
        super().__init__(loop=loop)
        self.leave = leave
        self.place = 0
        """The signal's position in the order of all arrivals."""
        self.timer: DurableTimer | None = None

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.done():
            self.left()
        return super().cancel(msg)

    def left(self) -> None:
        """Stop waiting."""
        self.leave(self)
        if self.timer is not None:
            self.timer.cancel()

    def time_out(self) -> None:
        if not self.done():
            self.leave(self)
            self.set_exception(TimeoutError())


class Signals:
    """The signals of one workflow."""

    def __init__(self, loop: Loop, set_timer: Callable[[DurableTimer, str], None]) -> None:
        self._loop = loop
        self._set_timer = set_timer
        self._came: dict[str, dict[int, bytes]] = {}
        """Signals that no code has taken yet, by name and position in the order of all arrivals."""
        self._waiting: dict[str, dict[Receiving, None]] = {}
        self._so_far = 0

    def came(self, name: str, value: bytes) -> None:
        self._so_far += 1
        self._came.setdefault(name, {})[self._so_far] = value
        self._hand_out(name)

    def receive(self, name: str, timeout: float | None) -> Receiving:
        waiting = self._waiting.setdefault(name, {})
        receiving = Receiving(loop=self._loop, leave=lambda who: waiting.pop(who, None))
        waiting[receiving] = None
        self._hand_out(name)
        if timeout is not None and not receiving.done():
            receiving.timer = DurableTimer(self._loop.time() + timeout, receiving.time_out, (), self._loop)
            self._set_timer(receiving.timer, name)
        return receiving

    def never(self) -> Receiving:
        """Return a receiver that gets no signal, for code that is being closed."""
        return Receiving(loop=self._loop, leave=lambda _: None)

    def give_back(self, name: str, receiving: Receiving) -> None:
        """Put back a signal that its receiver could not take, at its old position."""
        came = {receiving.place: receiving.result(), **self._came.get(name, {})}
        self._came[name] = dict(sorted(came.items()))
        self._hand_out(name)

    def unread(self) -> tuple[tuple[str, bytes], ...] | None:
        """Return the signals that no code has taken, in order of arrival; None if there are none."""
        unread = sorted((place, name, value) for name, came in self._came.items() for place, value in came.items())
        return tuple((name, value) for _, name, value in unread) or None

    def untaken(self) -> dict[str, int]:
        """Return the number of untaken signals by name, for the first names that arrived."""
        left = ((name, len(came)) for name, came in self._came.items() if came)
        return dict(islice(left, MOST_NAMES))

    def awaited(self) -> list[str]:
        return sorted(name for name, waiting in self._waiting.items() if waiting)

    def clear(self) -> None:
        for waiting in self._waiting.values():
            for receiving in waiting:
                receiving.leave = lambda _: None
        self._came.clear()
        self._waiting.clear()
        self._set_timer = lambda _timer, _name: None

    def _hand_out(self, name: str) -> None:
        came, waiting = self._came.get(name), self._waiting.get(name)
        while came and waiting:
            place, receiving = next(iter(came)), next(iter(waiting))
            receiving.place = place
            receiving.left()
            receiving.set_result(came.pop(place))
