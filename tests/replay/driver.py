"""A world without a database: it gives a workflow what it asks for, keeps its history, and tells it again.

`World` says how tasks, children and steps end, how long they take, and what comes from outside at which second.
`World.run` drives a workflow through it to the end; `told_again` replays what came out in every way there is.
"""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count, repeat
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec

from stepwell.definitions import definition
from stepwell.model.commands import Command, Ended, StepCall
from stepwell.model.events import COMMANDS, Event, EventType
from stepwell.model.run import Error, Reason
from stepwell.model.start import Start, Terms
from stepwell.replay.calling import Calling
from stepwell.replay.current_replay import here
from stepwell.replay.replay import About, Replay

RUN = UUID("018f0000-0000-7000-8000-00000000abcd")
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
NOWHERE = repeat(False)
MANY = 20_000
"""Arrivals after which a workflow is taken to run for ever."""

encoded, decoded = msgspec.json.encode, msgspec.json.decode


# -- what a workflow of a test asks for


def task(name: str, *args: Any, takes: tuple[str, ...] = ()) -> Calling[Any]:
    """A task, awaited as a workflow's code awaits one."""
    return _calling(EventType.TASK_SCHEDULED, name, args, takes)


def child(name: str, *args: Any, takes: tuple[str, ...] = ()) -> Calling[Any]:
    return _calling(EventType.CHILD_STARTED, name, args, takes)


def _calling(type: EventType, name: str, args: Any, takes: tuple[str, ...]) -> Calling[Any]:
    def issue(replay: Any, args: Any, kwargs: Any, by: Any) -> Any:
        return replay.call(type, Start(RUN, encoded(args), Terms(name)), takes, by)  # type: ignore[arg-type]

    callee: Any = SimpleNamespace(name=name, _issue=issue, _decode=decoded)
    return Calling(callee, here(), args, {})


async def step(name: str, *args: Any) -> Any:
    replay = here()
    assert replay is not None
    return decoded(await replay.step(SimpleNamespace(name=name), encoded(args)))


def begun(name: str, *args: Any) -> Awaitable[bytes]:
    """A child that was started, and may be awaited later."""
    return _called(EventType.CHILD_STARTED, name, args, ())


def _called(type: EventType, name: str, args: Any, takes: tuple[str, ...]) -> Any:
    replay = here()
    assert replay is not None
    return replay.call(type, Start(RUN, encoded(args), Terms(name)), takes)  # type: ignore[arg-type]


for _fn in (task, child, _calling, step, begun, _called):
    # As ours are: the line that is told is that of the workflow which awaits them.
    _fn.__code__ = _fn.__code__.replace(co_filename=definition.__file__)


class TestCode:
    """The code of a workflow that takes JSON and gives JSON."""

    __test__ = False

    def __init__(self, fn: Callable[..., Awaitable[Any]]) -> None:
        self.fn = fn

    def body(self, input: bytes | None) -> Any:
        async def body() -> bytes:
            return encoded(await self.fn(*(decoded(input) if input else ())))

        return body()

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        assert not kwargs
        return encoded(args)

    def describe(self, error: BaseException) -> Error:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        return Error(type(error).__name__, f"{error}{notes}", Reason.RAISED)


def new_replay(fn: Callable[..., Awaitable[Any]], id: UUID = RUN) -> Replay:
    return Replay(About(id, fn.__name__), TestCode(fn))


# -- how a test's world answers


@dataclass
class Fails:
    """Ends with an error; or by a state, without one."""

    message: str = "no luck"
    type: str = "Unlucky"
    state: str | None = None


@dataclass
class Takes:
    """Ends so, after so many seconds. None: it never does."""

    seconds: float | None
    outcome: Any = None


NEVER = Takes(None)


@dataclass
class Told:
    """What became of it."""

    fn: Callable[..., Awaitable[Any]]
    history: list[Event]
    ended: Ended | None
    replay: Replay

    @property
    def result(self) -> Any:
        assert self.ended is not None, "it waits: " + str(self.replay.waits_for())
        assert self.ended.type == EventType.WORKFLOW_COMPLETED, self.ended
        return decoded(self.ended.value or b"null")

    @property
    def error(self) -> Error:
        assert self.ended is not None
        assert self.ended.error is not None, self.ended
        return self.ended.error

    @property
    def types(self) -> list[str]:
        return [str(event.type) for event in self.history]

    def commands(self, *types: EventType) -> list[str | None]:
        """The names of the commands of these types."""
        return [event.name for event in self.history if event.type in types]


@dataclass
class World:
    answers: dict[str, Any] = field(default_factory=dict)
    """By name, how a task, child or step ends: a value, Fails, Takes, or a list of them to be used in turn; a
    function is asked, with the arguments. Without an answer it gives its own name, at once."""
    arrives: Sequence[tuple[float, Any]] = ()
    """At which second what comes: signal(…), update(…), CANCEL."""
    id: UUID = RUN

    def run(self, fn: Callable[..., Awaitable[Any]], *args: Any, check: bool = True) -> Told:
        """To its end, or until nothing more can happen; then, unless told otherwise, all of it again."""
        driving = Driving(self, fn)
        driving.begin(encoded(args) if args else None)
        told = driving.to_the_end()
        if check:
            told_again(told)
        return told


@dataclass
class Comes:
    type: EventType
    name: str | None = None
    value: Any = None
    run_id: UUID | None = None


def signal(name: str, value: Any = None) -> Comes:
    return Comes(EventType.SIGNAL_RECEIVED, name, value)


def update(name: str, number: int = 1, /, **input: Any) -> Comes:
    return Comes(EventType.UPDATE_REQUESTED, name, input, UUID(int=number))


CANCEL = Comes(EventType.CANCEL_REQUESTED)


class Driving:
    """A workflow on its way through a world."""

    def __init__(self, world: World, fn: Callable[..., Awaitable[Any]], lost: Iterator[bool] = NOWHERE) -> None:
        """`lost`: whether the worker is, behind this part of what the code asks for upon one arrival; and the next."""
        self.world = world
        self._lost = lost
        self.fn = fn
        self.replay = new_replay(fn, world.id)
        self.history: list[Event] = []
        self.now = BEGAN
        self._order = count()
        self._coming: list[tuple[datetime, int, Callable[[], Event | None]]] = []
        self._used: dict[str, int] = {}
        self._unheard: set[int] = set()
        self._steps: dict[int, StepCall] = {}
        for second, comes in world.arrives:
            self._come(second, lambda comes=comes: self._outside(comes))

    def begin(self, input: bytes | None) -> None:
        self.deliver(Event(0, EventType.WORKFLOW_STARTED, self.now, value=input))

    def begin_again(self) -> None:
        """The worker has let go of it, and another has it now. Steps go on where they are."""
        self.replay.evict()
        self.replay = new_replay(self.fn, self.world.id)
        self.replay.recorded(self.history)
        if self.history[-1].more:
            self._record(self.replay.take())
        self._steps.update((call.number, call) for call in self.replay.take_steps())

    def to_the_end(self) -> Told:
        for _ in range(MANY):
            if self.replay.ended is not None or not self.once():
                break
        else:
            raise AssertionError("it goes on for ever")
        ended = self.replay.ended
        if ended is not None:
            idx = len(self.history) + 1
            self.history.append(
                Event(idx, ended.type, self.now, value=ended.value, error=ended.error, signals=ended.signals)
            )
        return Told(self.fn, self.history, ended, self.replay)

    def once(self) -> bool:
        """The next thing that happens, whatever its kind; False if nothing will."""
        due = self.replay.timers.due
        if self._coming and (due is None or self._coming[0][0] <= due):
            at, _, happens = heapq.heappop(self._coming)
            self.now = max(self.now, at)
            event = happens()
        elif due is not None and due.year < 9999:
            self.now = max(self.now, due)
            moment = self.replay.timers.due_by(self.now)
            for place, (number, name) in enumerate(moment, 1):
                type = EventType.TIMER_FIRED if name is None else EventType.SIGNAL_TIMED_OUT
                self.deliver(Event(0, type, self.now, number, name, together=place < len(moment) or None))
            return True
        else:
            return False
        if event is not None:
            self.deliver(event)
        return True

    def deliver(self, event: Event) -> None:
        event.idx = len(self.history) + 1
        self.history.append(event)
        self._record(self.replay.delivered(event))
        while self.replay.line and not event.together:
            if self.history[-1].more and next(self._lost):
                self.begin_again()
            else:
                self._record(self.replay.go_on())
        for call in self.replay.take_steps():
            self._steps[call.number] = call
            self._answer_later(call)

    def _record(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self.history.append(as_event(command, len(self.history) + 1, self.now))
            self._carry_out(command)
        if commands and self.replay.line:
            self.history[-1].more = True

    def _carry_out(self, command: Command) -> None:
        if command.start is not None:
            self._answer_later(command)
        elif command.type in (EventType.TASK_CANCELLED, EventType.CHILD_CANCELLED):
            self._unheard.add(next(e.command for e in self.history if e.run_id == command.run_id and e.command) or 0)

    def _answer_later(self, call: Command | StepCall) -> None:
        name = call.name or ""
        outcome = self.world.answers.get(name, name)
        if isinstance(outcome, list):
            self._used[name] = self._used.get(name, -1) + 1
            outcome = outcome[min(self._used[name], len(outcome) - 1)]
        if inspect.isfunction(outcome):
            given = call.input if isinstance(call, StepCall) else call.start.input if call.start else b"[]"
            outcome = outcome(*decoded(given))
        seconds: float | None = 0.0
        if isinstance(outcome, Takes):
            seconds, outcome = outcome.seconds, outcome.outcome
        if seconds is not None:
            self._come(seconds, lambda: self._end_of(call, outcome))

    def _come(self, seconds: float, happens: Callable[[], Event | None]) -> None:
        heapq.heappush(self._coming, (self.now + timedelta(seconds=seconds), next(self._order), happens))

    def _end_of(self, call: Command | StepCall, outcome: Any) -> Event | None:
        """None: it was cancelled before."""
        number = call.number or 0
        if self._steps.get(number, call).dropped or number in self._unheard:
            return None
        if isinstance(call, StepCall):
            kind, name = "Step", call.name
        else:
            kind, name = ("Task" if call.type == EventType.TASK_SCHEDULED else "Child"), None
        if not isinstance(outcome, Fails):
            return Event(0, EventType(f"{kind}Completed"), self.now, number, name, value=encoded(outcome))
        error = None if outcome.state else Error(outcome.type, outcome.message, Reason.RAISED)
        return Event(0, EventType(f"{kind}Failed"), self.now, number, name, error=error, state=outcome.state)

    def _outside(self, comes: Comes) -> Event:
        return Event(0, comes.type, self.now, None, comes.name, comes.run_id, value=encoded(comes.value))


def as_event(command: Command, idx: int, at: datetime) -> Event:
    return Event(
        idx, command.type, at, command.number, command.name, command.run_id, command.takes, command.value,
        command.error, when=command.when,
    )  # fmt: skip


# -- told again


def told_again(told: Told) -> None:
    """Whole, event by event, as news, from every prefix, and with eviction after every turn: the same commands, each
    time."""
    whole(told)
    event_by_event(told)
    as_news(told)
    from_every_prefix(told)
    from_every_part(told)


def whole(told: Told) -> None:
    replay = new_replay(told.fn, told.replay.about.id)
    replay.recorded(told.history)
    assert replay.take() == []
    assert replay.ended == told.ended
    assert replay.waits_for() == told.replay.waits_for()
    assert replay.timers.due == told.replay.timers.due
    replay.evict()


def event_by_event(told: Told) -> None:
    replay = new_replay(told.fn, told.replay.about.id)
    for event in told.history:
        replay.recorded([event], more=True)
    replay.recorded([])
    assert replay.take() == []
    assert replay.ended == told.ended
    replay.evict()


def as_news(told: Told) -> None:
    """New to it once more, and what comes at the same time told in one go: it is told of no more when it asks for
    something, and that is the same."""
    replay, arrivals = new_replay(told.fn, told.replay.about.id), arrivals_of(told)
    place = 0

    def more(like: Event) -> Iterator[Event]:
        nonlocal place
        while place < len(arrivals) and (arrivals[place][0].type, arrivals[place][0].at) == (like.type, like.at):
            assert not arrivals[place - 1][1], "it has asked for something, and is told of more before that is recorded"
            place += 1
            yield arrivals[place - 1][0]

    while place < len(arrivals):
        first, place = arrivals[place][0], place + 1
        asked = replay.delivered(first, None if first.together else more(first))
        while replay.line and not first.together:
            asked += replay.go_on()
        assert [same(each) for each in asked] == [same(each) for each in arrivals[place - 1][1]]
        replay.take_steps()
        replay.idx += len(asked)
    assert replay.ended == told.ended
    replay.evict()


def arrivals_of(told: Told) -> list[tuple[Event, list[Event]]]:
    """Each with what the code asked for upon it."""
    arrivals: list[tuple[Event, list[Event]]] = []
    for event in told.history if told.ended is None else told.history[:-1]:
        if event.type in COMMANDS:
            arrivals[-1][1].append(event)
        else:
            arrivals.append((event, []))
    return arrivals


def from_every_prefix(told: Told) -> None:
    """A worker that has only the history so far does what the one did that went on: evicted after every turn."""
    places = [place for place, event in enumerate(told.history) if event.type not in COMMANDS]
    if told.ended is not None:
        del places[-1]
    for place in spread(places[1:]):
        replay = new_replay(told.fn, told.replay.about.id)
        replay.recorded(told.history[:place])
        assert replay.take() == []
        assert replay.ended is None
        ended = {event.command for event in told.history[:place] if event.type.startswith("Step")}
        assert not ended & {call.number for call in replay.take_steps()}, "a step that ended is not run again"
        behind = []
        for event in told.history[place + 1 :]:
            if event.type not in COMMANDS:
                break
            behind.append(event)
        again = replay.delivered(told.history[place])
        while replay.line and not told.history[place].together:
            again += replay.go_on()
        assert [same(each) for each in again] == [same(each) for each in behind]
        replay.evict()


def from_every_part(told: Told) -> None:
    """What the code asked for upon one arrival was written in part: who has that goes on with the rest, which fits."""
    for place in spread([place for place, event in enumerate(told.history) if event.more]):
        history = told.history[: place + 1]
        replay = new_replay(told.fn, told.replay.about.id)
        replay.recorded(history)
        rest = [as_event(command, place + 2 + more, replay.now) for more, command in enumerate(replay.take())]
        replay.evict()
        again = new_replay(told.fn, told.replay.about.id)
        again.recorded([*history, *rest])
        assert again.take() == []
        again.evict()


def spread(places: list[int], most: int = 60) -> list[int]:
    """All of few, and of many some: a prefix costs as much as what it holds."""
    return places if len(places) <= most else places[:: len(places) // most + 1] + places[-1:]


def same(each: Command | Event) -> tuple[Any, ...]:
    number = each.number if isinstance(each, Command) else each.command
    return each.type, number, each.name, each.run_id, each.takes, each.value, each.error, each.when
