"""The states of a turn: what it may do in each, and which may follow."""

from __future__ import annotations

import asyncio
from enum import StrEnum

from stepwell.model.turn import Advanced
from stepwell.worker.turns.host import WritePage, Wrote


class TurnState(StrEnum):
    RUNNING = "running"
    """The code is told of events. What it asks for is written at once."""
    WRITING = "writing"
    """A write is on its way. The code is told of events; what it asks for leaves with the next write."""
    CLOSING = "closing"
    """The last write is on its way. The code is told nothing, and the turn takes no end of a child."""
    FAILING = "failing"
    """An error ends the turn as soon as its write is answered. Nothing else is done."""
    ENDED = "ended"
    """The turn has its result or its error, or its attempt was ended from outside. Nothing is done."""


_RUNNING, _WRITING, _CLOSING, _FAILING, _ENDED = TurnState
MOVES: dict[TurnState, frozenset[TurnState]] = {
    _RUNNING: frozenset({_WRITING, _CLOSING, _ENDED}),
    _WRITING: frozenset({_RUNNING, _FAILING, _ENDED}),
    _CLOSING: frozenset({_FAILING, _ENDED}),
    _FAILING: frozenset({_ENDED}),
    _ENDED: frozenset(),
}


class IllegalMove(RuntimeError):
    """A move between two states of a turn that is not in the table: a mistake of ours."""


class Lifecycle:
    """The state of one turn, its write on the way, and its end."""

    __slots__ = ("_error", "end", "flying", "state", "written")

    def __init__(self, written: tuple[int, int]) -> None:
        self.state = TurnState.RUNNING
        self.end: asyncio.Future[Advanced] = asyncio.get_running_loop().create_future()
        self.flying: WritePage | None = None
        """The write that is on its way."""
        self.written = written
        """Number of events in the history, and of arrivals among them."""
        self._error: BaseException | None = None

    @property
    def is_open(self) -> bool:
        """True if the code can be told something, now or later."""
        return (self.state is _RUNNING or self.state is _WRITING) and not self.end.done()

    def send(self, page: WritePage, *, last: bool = False) -> None:
        """running -> writing, closing: a write leaves."""
        self.move(_CLOSING if last else _WRITING)
        self.flying = page

    def answer(self, answer: Wrote | BaseException) -> WritePage | None:
        """writing -> running, or -> ended: a write was answered. Return that write if the turn goes on."""
        flown, self.flying = self.flying, None
        if flown is None or self.end.done():
            return None  # the attempt was ended from outside
        if self._error is not None or isinstance(answer, BaseException):
            self._end_by(self._error or _error(answer))
        elif self.state is _CLOSING:
            self.move(_ENDED)
            if not self.end.done():
                self.end.set_result(answer[0])
        else:
            self.move(_RUNNING)
            self.written = flown.advance.recorded, flown.advance.seen
            return flown
        return None

    def fail(self, error: BaseException) -> None:
        """running -> ended, writing, closing -> failing: end by the first error, once the write is answered."""
        if self.state is _RUNNING:
            self._end_by(error)
        elif self.state is not _FAILING and self.state is not _ENDED:
            self.move(_FAILING)
            self._error = error

    def leave(self) -> None:
        """any -> ended: the attempt was ended from outside."""
        self.flying = None
        if self.state is not _ENDED:
            self.move(_ENDED)

    def move(self, to: TurnState) -> None:
        if to not in MOVES[self.state]:
            raise IllegalMove(f"a turn that is {self.state} cannot become {to}")
        self.state = to

    def _end_by(self, error: BaseException) -> None:
        self.move(_ENDED)
        if not self.end.done():
            self.end.set_exception(error)


def _error(answer: Wrote | BaseException) -> BaseException:
    assert isinstance(answer, BaseException)
    return answer
