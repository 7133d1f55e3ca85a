"""The event loop that workflow code runs on: a line of callbacks, a clock that stands still, and nothing else.

Plain asyncio works in it, because asyncio asks little of its loop. What it must not do is differ from one replay
to the next, and what would differ is refused, with the line that asked and what to do instead:

* Time passes only from event to event. A timer is a durable command.
* Futures and tasks are hashed by the order in which they were made, so that a set of them, which `wait` returns
  and `TaskGroup` keeps, is always walked in the same order.
* Garbage is not collected while it runs. An async generator that is let go of ends then, if it is the code that
  lets go; one that the collector finds, at whatever time, ends with the workflow.
* Threads, sockets, processes and files do not exist here. A task or a step may use them.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import Context, copy_context
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from stepwell.model.errors import NotDurable
from stepwell.replay import clocks, generators
from stepwell.replay.closing import close_coroutine, close_generator
from stepwell.replay.futures import (
    DurableFuture,
    DurableTask,
    DurableTimer,
    EndsItself,
    MakesItsTask,
    Soon,
    name_of_task,
)
from stepwell.replay.generators import Generator
from stepwell.replay.guard import guarded
from stepwell.replay.places import line_in, line_of_user
from stepwell.replay.refused import refusing

T = TypeVar("T")

MANY = 1_000_000
"""Callbacks after one event: code that takes more is waiting for nothing."""

_TIMES = 100
"""How often code that is being ended may make other tasks, before those are left to themselves."""

CAN_BE_EAGER = sys.version_info >= (3, 12)

BARE: Any = (asyncio.Task, getattr(asyncio.tasks, "_PyTask", asyncio.Task))
"""The classes of tasks that anyone may make without asking a loop."""

_NUMBERED = re.compile(r"Task-\d+")

_OF_A_THREAD = asyncio.wrap_future.__code__


class NeverWaits(Exception):
    """Code went on and on without waiting for anything durable."""

    def __init__(self, line: str) -> None:
        self.line = line


class Driver(Protocol):
    """Whoever the loop belongs to."""

    evicting: bool

    def timer_set(self, timer: DurableTimer) -> None: ...

    def timer_cancelled(self, timer: DurableTimer) -> None: ...

    def unheard(self, what: str, error: BaseException) -> None:
        """An error of which nobody else will hear."""


class _Gone:
    """The driver of a loop that has ended."""

    evicting = True

    def timer_set(self, timer: DurableTimer) -> None: ...

    def timer_cancelled(self, timer: DurableTimer) -> None: ...

    def unheard(self, what: str, error: BaseException) -> None: ...


GONE = _Gone()
"""Whoever is let go of must not be held in a circle: it would stay until circles are looked for, and that is seldom."""


kept_by_task: list[MutableMapping[Any, Any]] = []
"""What libraries keep for each task until its callbacks have run. Those of a task that is evicted never run: without
its removal the task would be kept for ever."""

Before = tuple[asyncio.AbstractEventLoop | None, bool, asyncio.Task[Any] | None]
"""Which loop ran here, whether garbage was collected, and in which task it was."""


@refusing
class Loop(asyncio.AbstractEventLoop):
    def __init__(self, driver: Driver, *, seed: int = 0) -> None:
        self.driver = driver
        self.line: deque[Any] = deque()
        """What is ready to be run."""
        self._now = 0.0
        self.began_ns = 0
        """When its time began, by the clocks of the world."""
        self.looks = 0
        """How often its code has asked for the time since the last event."""
        self.seed(seed)
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._tidy_at = 100
        self._unnamed = 0
        """How many tasks were made without a name."""
        self._bare = 0
        """How many bare futures and tasks have a number."""
        self._may_be_eager = False
        """Someone asked whether it runs: a bare task does that if it is to begin at once."""
        self._tidy_in = 0
        self._generators: WeakValueDictionary[int, Any] | None = None
        """Made for the first: hardly any workflow has one."""
        self._let_go: list[Generator] = []
        self._given: set[int] = set()
        """Those that were taken to be closed."""
        self._begun: dict[int, int] = {}
        """The identity of an async generator, and the how manieth it is."""
        self._closed = False
        self._entered = False
        self.stretch: int | None = None
        """Callbacks that are run at a time, if not all there are: `run_until_idle` may leave more."""
        self.ran = 0
        """Whole stretches of them since the last event."""
        self._scopes = 0
        """How many cancel scopes of anyio's were made."""
        self._tries: dict[int, int] = {}
        """By the number of a cancel scope: how often it has tried again since the last event."""
        self._held: list[asyncio.Handle] = []
        """Handles that are run after the next event."""
        self._forgotten: list[asyncio.Task[Any]] = []

    def seed(self, seed: int) -> None:
        """Sets hashes apart from those of other loops: there are sets of everyone's tasks. Their lowest bits count
        from nought, so that a small set is walked in the order in which its members were made."""
        self.first_seq = self._seq = seed & 0xFFFF_FFFF_0000

    # -- for those who drive it

    def run_until_idle(self, now: float, then: Callable[[], bool] | None = None) -> None:
        """Run whatever is ready, at this time, for a stretch at most; and as long as `then` makes more of it ready,
        that. Leaves the loop that runs here as it was."""
        if now > self._now:
            self._now = now
        if not self.line:
            return
        if self._entered:
            self._run_ready(then)
            return
        before = self._enter()
        try:
            self._run_ready(then)
        finally:
            self._leave(before)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Be the loop that runs here, for several runs of it."""
        before = self._enter()
        try:
            yield
        finally:
            self._leave(before)

    def _enter(self) -> Before:
        outer, collects = events._get_running_loop(), gc.isenabled()
        gc.disable()  # first here and last there: what is found in between is not let go of by the code
        left = None if _swap is None or outer is None else _swap(outer, None)
        if type(sys.get_asyncgen_hooks()[0]) is not generators.Begins:
            generators.hear(Loop)
        events._set_running_loop(self)
        clocks.stand_still()
        self._entered = True
        return outer, collects, left

    def _leave(self, before: Before) -> None:
        outer, collects, left = before
        self._entered = False
        clocks.go_on()
        events._set_running_loop(outer)
        if left is not None:
            _swap(outer, left)
        if collects:
            gc.enable()

    @guarded
    def _run_ready(self, then: Callable[[], bool] | None) -> None:
        ready, stretch = self.line, self.stretch or MANY
        handle: Any = None
        while True:
            for _ in range(stretch):
                if not ready:
                    break
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except BaseException as error:
                    if not _is_of_a_task(handle):  # else that has it too
                        self.driver.unheard("a callback raised", error)
            else:
                break
            if then is None or not then():
                return
        self.ran += stretch
        if self.ran >= MANY:
            raise NeverWaits(_line_of(handle))

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that have not ended, in the order in which they were made."""
        return [task for task in self._tasks.values() if not task.done()]

    def tidy_some(self) -> None:
        """Let go of tasks that have ended, so that failures are told of those that nobody else holds. Among many that
        is done seldom: they are all looked at."""
        if len(self._tasks) < 2:
            return
        self._tidy_in -= 1
        if self._tidy_in < 0:
            self.tidy()
            self._tidy_in = len(self._tasks) // 200

    def tidy(self) -> None:
        self._tasks = {seq: each for seq, each in self._tasks.items() if not each.done()}
        self._tidy_at = 100 + 2 * len(self._tasks)

    def tell_unheard(self) -> None:
        """All has ended: what nobody has asked for, nobody will."""
        for task in list(self._tasks.values()):
            future: Any = task
            if task.done() and future._log_traceback:
                future._log_traceback = False
                self.unheard({"exception": future._exception, "future": task})

    @property
    def has_generators(self) -> bool:
        """Some that may not have ended."""
        return self._generators is not None or bool(self._let_go)

    def current_task(self) -> asyncio.Task[Any] | None:
        return asyncio.current_task(self) if self._entered else None

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def name_task(self, name: object) -> str | int:
        """The given name as text, as asyncio has it; without one the number of this task."""
        if name is not None:
            return str(name)
        self._unnamed += 1
        return self._unnamed

    def asks(self) -> asyncio.Task[Any] | None:
        """The task that asks for something now."""
        task = asyncio.current_task(self)
        if task.__class__ is not DurableTask and isinstance(task, BARE):
            self._adopt(task, None)
        return task

    def _adopt(self, task: Any, context: Context | None) -> None:
        """Take a task that was made without asking the loop, `asyncio.Task(coro, loop=loop)`, for one of its own."""
        if isinstance(task, DurableTask) or hasattr(task, "_stepwell_seq"):
            return
        task._stepwell_seq = self._next_bare()
        if CAN_BE_EAGER:
            context = task.get_context()
        task._stepwell_context = copy_context() if context is None else context
        if _NUMBERED.fullmatch(task.get_name()):  # by asyncio, which counts the tasks of a process
            task.set_name(name_of_task(self.name_task(None)))
        self._add(-task._stepwell_seq, task)

    def number(self, future: Any) -> None:
        """Have an order among bare futures and bare tasks, which are hashed by address."""
        if isinstance(future, BARE):
            self._adopt(future, None)
        elif not hasattr(future, "_stepwell_seq"):
            future._stepwell_seq = self._next_bare()

    def _next_bare(self) -> int:
        self._bare += 1
        return self._bare

    def _add(self, key: int, task: asyncio.Task[Any]) -> None:
        self._tasks[key] = task
        if len(self._tasks) > self._tidy_at:
            self.tidy()

    def _adopt_eager(self) -> None:
        """Take also bare tasks that began at once, and have asked for nothing since: asyncio knows them."""
        if not self._may_be_eager:
            return
        all_there: Any = getattr(asyncio.tasks, "_scheduled_tasks", None)
        there = asyncio.all_tasks(self) if all_there is None else list(all_there)
        bare = [each for each in there if isinstance(each, BARE) and each.get_loop() is self and not each.done()]
        for task in sorted(bare, key=lambda each: (len(each.get_name()), each.get_name())):
            self._adopt(task, None)

    def next_scope(self) -> int:
        self._scopes += 1
        return self._scopes

    def tries_again(self, scope: int, handle: asyncio.Handle, most: int) -> None:
        """Hold this handle, the last in the line, until the next event if its scope has tried so often after this one:
        more of it would change nothing."""
        if not self.line or self.line[-1] is not handle:
            return
        tries = self._tries[scope] = self._tries.get(scope, 0) + 1
        if tries > most:
            self._held.append(self.line.pop())

    def begin_event(self) -> None:
        """Count anew what happens after an event, and run what was held until then, behind what the event woke."""
        self.ran = self.looks = 0
        if self._tries:
            self._tries.clear()
            self.line.extend(self._held)
            self._held.clear()

    def wind_up(self) -> list[asyncio.Task[Any]]:
        """As asyncio.run does: what is left ends with the workflow, and may clean up. Those to be waited for now."""
        self._adopt_eager()
        left = self.tasks
        for task in left:
            task.cancel()
        if not left and self.has_generators and (suspended := self._take_suspended()):
            left = [self.create_task(_close_all(suspended))]
        return left

    def end_all(self) -> None:
        """Close all code where it stands. `finally` runs, as far as it awaits nothing; nothing is cancelled, as that
        is something that code may answer."""
        self.line.clear()
        self._held.clear()
        self._adopt_eager()
        if self.tasks or self.has_generators:
            self.call_soon(self._end_all)
            with suppress(NeverWaits):
                self.run_until_idle(0.0)
        self._forget_tasks()  # those that had ended, too: they hold this loop
        if self._begun:
            # One that was neither closed nor has ended, held by an error perhaps, is still ours when it is let go of.
            alive = {id(each) for each in (self._generators or {}).values() if each.ag_frame is not None}
            generators.forget([identity for identity in self._begun if identity not in alive], self)
        self._closed = True
        self.driver = GONE
        for states in kept_by_task:
            for task in self._forgotten:
                states.pop(task, None)
        self._forgotten.clear()

    def _forget_tasks(self) -> None:
        if kept_by_task:
            self._forgotten.extend(self._tasks.values())
        self._tasks = {}

    def _end_all(self) -> None:
        suspended = self._take_suspended()
        for _ in range(_TIMES):  # what is ended may make others, and those again
            if not (tasks := self.tasks):
                break
            self._forget_tasks()
            for task in tasks:
                if isinstance(task, EndsItself):
                    task.end()
                else:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # asyncio's own
                    context = task.context if isinstance(task, DurableTask) else task._stepwell_context  # type: ignore[attr-defined]  # see _adopt
                    context.run(self._end, task)
        for generator in suspended:
            close_generator(generator)
            generators.forget([id(generator)], self)
        self.line.clear()

    def _end(self, task: asyncio.Task[Any]) -> None:
        asyncio.tasks._enter_task(self, task)
        try:
            close_coroutine(task.get_coro())
        finally:
            asyncio.tasks._leave_task(self, task)
        awaited: Any = getattr(task, "_fut_waiter", None)
        for callback, _ in list(getattr(awaited, "_callbacks", None) or ()):
            awaited.remove_done_callback(callback)

    # -- async generators

    def begins(self, generator: Generator) -> None:
        number = self._begun[id(generator)] = self.next_seq()
        if self._generators is None:
            self._generators = WeakValueDictionary()
        self._generators[number] = generator

    def ends(self, generator: Generator) -> None:
        """Nobody has it any more."""
        if self.driver.evicting:
            close_generator(generator)
        elif self._entered:
            self.create_task(generator.aclose())
        else:
            self._let_go.append(generator)

    def _take_suspended(self) -> list[Any]:
        """Those that are at a `yield`, in the order in which they began. Each is given once: it may refuse to end."""
        # One look, which holds what it finds: between its keys and its values garbage may be collected.
        begun: dict[int, Any] = {} if self._generators is None else dict(self._generators.items())
        let_go, self._let_go = self._let_go, []
        there = [*(each for number, each in begun.items() if number not in self._given), *let_go]
        self._given.update(begun)
        at_a_yield = [each for each in there if each.ag_frame is not None and not each.ag_running]
        return sorted(at_a_yield, key=lambda each: self._begun[id(each)])

    # -- what asyncio asks of it

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = Soon(callback, args, self, context)
        self.line.append(handle)
        owner = getattr(callback, "__self__", None)
        if owner.__class__ is not DurableTask and isinstance(owner, BARE):
            self._adopt(owner, handle._context)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = DurableTimer(when, callback, args, self, context)
        if when <= self._now:
            self.line.append(timer)
        elif not self.driver.evicting:
            self.driver.timer_set(timer)
        return timer

    def ready(self, handle: Any) -> None:
        """What goes into the line as it is: a timer that fires, or a task that is its own handle."""
        self.line.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, DurableTimer):
            self.driver.timer_cancelled(handle)

    def create_future(self) -> DurableFuture[Any]:
        if sys._getframe(1).f_code is _OF_A_THREAD:
            raise NotDurable("threads", line_of_user())
        if CAN_BE_EAGER:
            self.asks()  # a bare task that began at once, perhaps
        return DurableFuture(loop=self)

    def create_task(
        self, coro: Any, *, name: object = None, context: Context | None = None, eager_start: bool | None = None
    ) -> asyncio.Task[Any]:
        if eager_start and not CAN_BE_EAGER:
            raise TypeError("eager_start needs Python 3.12 or newer: leave it out, and the task begins in its turn")
        task: DurableTask[Any]
        if isinstance(coro, MakesItsTask):
            task = coro.make_task(self, name, context, eager=bool(eager_start))
        else:
            task = DurableTask(coro, loop=self, name=name, context=context, eager=bool(eager_start))
        self._add(task.seq, task)
        return task

    def unheard(self, context: dict[str, Any]) -> None:
        """Called by asyncio for a future that is let go of with an error that nobody has asked for."""
        error, future = context.get("exception"), context.get("future")
        if error is not None and not getattr(future, "is_told_elsewhere", False):
            name = f" {future.get_name()!r}" if future is not None and hasattr(future, "get_name") else ""
            self.driver.unheard(f"the error of a {'task' if name else 'future'}{name} was never retrieved", error)

    def get_task_factory(self) -> None:
        return None

    get_debug = staticmethod(bool)
    """Never. Every future asks when it is made: so, it does not take a call in Python to say so."""

    def is_running(self) -> bool:
        self._may_be_eager = True
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        self._closed = True

    async def shutdown_asyncgens(self) -> None:
        pass

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        pass


async def _close_all(generators: Sequence[Generator]) -> None:
    for generator in generators:
        with suppress(Exception):  # nobody is left who could hear of it
            await generator.aclose()


def _is_of_a_task(handle: Any) -> bool:
    return isinstance(handle, EndsItself) or isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


def _line_of(handle: asyncio.Handle) -> str:
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]  # asyncio's own
    return line_in(task.get_coro()) if isinstance(task, asyncio.Task) else "an unknown line"


_swap: Any = getattr(asyncio.tasks, "_swap_current_task", None)
"""From Python 3.14 on a thread has one current task, whatever its loop: ours would be the second."""
