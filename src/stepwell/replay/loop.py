"""The event loop for workflow code: a queue of callbacks, a clock that stands still, and nothing else.

Plain asyncio works in it, because asyncio needs little of its loop. The loop must behave the same in every replay.
Whatever would differ is refused; the error names the line that asked for it, and an alternative.

* Time passes only from event to event. A timer is a durable command.
* Futures and tasks are hashed by the order of their creation. A set of them, as `wait` returns and `TaskGroup` keeps,
  therefore always iterates in the same order.
* Garbage is not collected while the loop runs. If the code drops the last reference to an async generator, the
  generator ends at once. A generator that the collector finds, at whatever time, ends with the workflow.
* Threads, sockets, processes and files are not available. A task or a step may use them.
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
"""The most callbacks after one event: code that needs more loops without waiting for anything."""

_CLOSING_ROUNDS = 100
"""The number of rounds in which evicted code may create further tasks, before those are abandoned."""

CAN_BE_EAGER = sys.version_info >= (3, 12)

BARE: Any = (asyncio.Task, getattr(asyncio.tasks, "_PyTask", asyncio.Task))
"""The task classes that code can instantiate without asking the loop."""

_NUMBERED = re.compile(r"Task-\d+")

_OF_A_THREAD = asyncio.wrap_future.__code__


class NeverWaits(Exception):
    """The code ran too many callbacks without waiting for anything durable."""

    def __init__(self, line: str) -> None:
        self.line = line


class Driver(Protocol):
    """The owner of the loop."""

    evicting: bool

    def timer_set(self, timer: DurableTimer) -> None: ...

    def timer_cancelled(self, timer: DurableTimer) -> None: ...

    def unheard(self, what: str, error: BaseException) -> None:
        """Report an error that no code will retrieve."""


class _Gone:
    """The driver of a closed loop."""

    evicting = True

    def timer_set(self, timer: DurableTimer) -> None: ...

    def timer_cancelled(self, timer: DurableTimer) -> None: ...

    def unheard(self, what: str, error: BaseException) -> None: ...


GONE = _Gone()
"""A shared driver for closed loops. It breaks the reference cycle between a loop and its replay, which only a garbage
collection, and those are rare, would free."""


kept_by_task: list[MutableMapping[Any, Any]] = []
"""Mappings in which libraries keep data of each task until its callbacks have run. The callbacks of an evicted task
never run, so its entry must be removed: otherwise the task would leak."""

Before = tuple[asyncio.AbstractEventLoop | None, bool, asyncio.Task[Any] | None]
"""The state of the thread before our loop was entered: the running loop, gc.isenabled(), and the current task."""


@refusing
class Loop(asyncio.AbstractEventLoop):
    """A deterministic event loop for the code of one workflow."""

    def __init__(self, driver: Driver, *, seed: int = 0) -> None:
        self.driver = driver
        self.line: deque[Any] = deque()
        """The queue of ready callbacks."""
        self._now = 0.0
        self.began_ns = 0
        """The start of the loop's time, in nanoseconds since the epoch."""
        self.looks = 0
        """The number of reads of the time since the last event."""
        self.seed(seed)
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._tidy_at = 100
        self._unnamed = 0
        """The number of tasks created without a name."""
        self._bare = 0
        """The number of bare futures and tasks that have a sequence number."""
        self._may_be_eager = False
        """True once is_running() was called: a bare task with eager_start calls it."""
        self._tidy_in = 0
        self._generators: WeakValueDictionary[int, Any] | None = None
        """The async generators, by sequence number. Created with the first one, because hardly any workflow has any."""
        self._let_go: list[Generator] = []
        self._given: set[int] = set()
        """The sequence numbers of generators that were already taken to be closed."""
        self._begun: dict[int, int] = {}
        """The sequence number of each async generator, by its identity."""
        self._closed = False
        self._entered = False
        self.stretch: int | None = None
        """The number of callbacks after which `run_until_idle` returns, even if the queue is not empty; None: all."""
        self.ran = 0
        """The number of callbacks in whole stretches since the last event."""
        self._scopes = 0
        """The number of anyio cancel scopes created."""
        self._tries: dict[int, int] = {}
        """The number of retries of each cancel scope since the last event, by the scope's number."""
        self._held: list[asyncio.Handle] = []
        """Handles that are postponed until after the next event."""
        self._forgotten: list[asyncio.Task[Any]] = []

    def seed(self, seed: int) -> None:
        """Set the start of the sequence numbers, which serve as hashes.

        The seed separates the hashes of different loops, because some sets contain tasks of all loops. The lowest bits
        count from zero, so that a small set iterates in the order in which its members were created.
        """
        self.first_seq = self._seq = seed & 0xFFFF_FFFF_0000

    # -- for the driver

    def run_until_idle(self, now: float, then: Callable[[], bool] | None = None) -> None:
        """Run the ready callbacks at this time, at most one stretch of them. Repeat while `then` returns True, which
        means that it made more callbacks ready. Restore the running loop of the thread afterwards."""
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
        """Be the running loop of this thread for several calls of `run_until_idle`."""
        before = self._enter()
        try:
            yield
        finally:
            self._leave(before)

    def _enter(self) -> Before:
        outer, collects = events._get_running_loop(), gc.isenabled()
        # Disabled first here and enabled last in _leave: no collection may finalize objects of the code in between.
        gc.disable()
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
                    if not _is_of_a_task(handle):  # a task keeps the error itself
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
        """The tasks that have not ended, in the order of their creation."""
        return [task for task in self._tasks.values() if not task.done()]

    def tidy_some(self) -> None:
        """Drop ended tasks now and then, so that asyncio reports failures of tasks to which no other reference is left.

        With many tasks this is done less often, because it scans all of them.
        """
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
        """Report the errors that no code has retrieved, after all code has ended."""
        for task in list(self._tasks.values()):
            future: Any = task
            if task.done() and future._log_traceback:
                future._log_traceback = False
                self.unheard({"exception": future._exception, "future": task})

    @property
    def has_generators(self) -> bool:
        """True if there may be async generators that have not ended."""
        return self._generators is not None or bool(self._let_go)

    def current_task(self) -> asyncio.Task[Any] | None:
        return asyncio.current_task(self) if self._entered else None

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def name_task(self, name: object) -> str | int:
        """Return the given name as text, as asyncio does; without one, the number of this unnamed task."""
        if name is not None:
            return str(name)
        self._unnamed += 1
        return self._unnamed

    def asks(self) -> asyncio.Task[Any] | None:
        """Return the task that is running now. Adopt it if it is bare."""
        task = asyncio.current_task(self)
        if task.__class__ is not DurableTask and isinstance(task, BARE):
            self._adopt(task, None)
        return task

    def _adopt(self, task: Any, context: Context | None) -> None:
        """Register a task that was created without the loop, by `asyncio.Task(coro, loop=loop)`."""
        if isinstance(task, DurableTask) or hasattr(task, "_stepwell_seq"):
            return
        task._stepwell_seq = self._next_bare()
        if CAN_BE_EAGER:
            context = task.get_context()
        task._stepwell_context = copy_context() if context is None else context
        if _NUMBERED.fullmatch(task.get_name()):  # asyncio's default name counts the tasks of the process
            task.set_name(name_of_task(self.name_task(None)))
        self._add(-task._stepwell_seq, task)

    def number(self, future: Any) -> None:
        """Give a bare future or task a sequence number: these are hashed by address, and would have no order."""
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
        """Adopt bare tasks that began eagerly and have not called the loop since. asyncio has a list of them."""
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
        """Postpone this handle, the last in the queue, until the next event if its scope has retried more than `most`
        times after this one: further retries would change nothing."""
        if not self.line or self.line[-1] is not handle:
            return
        tries = self._tries[scope] = self._tries.get(scope, 0) + 1
        if tries > most:
            self._held.append(self.line.pop())

    def begin_event(self) -> None:
        """Reset the counts for a new event, and queue the postponed handles after those that the event made ready."""
        self.ran = self.looks = 0
        if self._tries:
            self._tries.clear()
            self.line.extend(self._held)
            self._held.clear()

    def wind_up(self) -> list[asyncio.Task[Any]]:
        """Cancel the remaining tasks at the end of the workflow, as asyncio.run does. Return the tasks to wait for."""
        self._adopt_eager()
        left = self.tasks
        for task in left:
            task.cancel()
        if not left and self.has_generators and (suspended := self._take_suspended()):
            left = [self.create_task(_close_all(suspended))]
        return left

    def end_all(self) -> None:
        """Close all code where it is suspended. A `finally` runs as far as its first await. Nothing is cancelled,
        because code may respond to a cancellation."""
        self.line.clear()
        self._held.clear()
        self._adopt_eager()
        if self.tasks or self.has_generators:
            self.call_soon(self._end_all)
            with suppress(NeverWaits):
                self.run_until_idle(0.0)
        self._forget_tasks()  # also the ended ones: they refer to this loop
        if self._begun:
            # A generator that is still alive, perhaps referenced by a traceback, stays ours until it is freed.
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
        for _ in range(_CLOSING_ROUNDS):  # code may create further tasks while it is closed, repeatedly
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
        """Close a generator to which no reference is left, or keep it to be closed with the workflow."""
        if self.driver.evicting:
            close_generator(generator)
        elif self._entered:
            self.create_task(generator.aclose())
        else:
            self._let_go.append(generator)

    def _take_suspended(self) -> list[Any]:
        """Return the generators suspended at a `yield`, in the order in which they began. Each is returned only once,
        because it may refuse to end."""
        # Copy in one step, with strong references: a garbage collection between keys() and values() would change it.
        begun: dict[int, Any] = {} if self._generators is None else dict(self._generators.items())
        let_go, self._let_go = self._let_go, []
        there = [*(each for number, each in begun.items() if number not in self._given), *let_go]
        self._given.update(begun)
        at_a_yield = [each for each in there if each.ag_frame is not None and not each.ag_running]
        return sorted(at_a_yield, key=lambda each: self._begun[id(each)])

    # -- the interface for asyncio

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
        """Queue a handle as it is: a timer that fires, or a task that is its own handle."""
        self.line.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, DurableTimer):
            self.driver.timer_cancelled(handle)

    def create_future(self) -> DurableFuture[Any]:
        if sys._getframe(1).f_code is _OF_A_THREAD:
            raise NotDurable("threads", line_of_user())
        if CAN_BE_EAGER:
            self.asks()  # adopts a bare task that began eagerly
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
        """Report an error that was never retrieved. asyncio calls this when such a future is freed."""
        error, future = context.get("exception"), context.get("future")
        if error is not None and not getattr(future, "is_told_elsewhere", False):
            name = f" {future.get_name()!r}" if future is not None and hasattr(future, "get_name") else ""
            self.driver.unheard(f"the error of a {'task' if name else 'future'}{name} was never retrieved", error)

    def get_task_factory(self) -> None:
        return None

    get_debug = staticmethod(bool)
    """Always False. Every new future calls it, so a C function avoids the cost of a call in Python."""

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
        with suppress(Exception):  # no code is left that could handle it
            await generator.aclose()


def _is_of_a_task(handle: Any) -> bool:
    return isinstance(handle, EndsItself) or isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


def _line_of(handle: asyncio.Handle) -> str:
    task = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]  # asyncio's own
    return line_in(task.get_coro()) if isinstance(task, asyncio.Task) else "an unknown line"


_swap: Any = getattr(asyncio.tasks, "_swap_current_task", None)
"""The function that swaps the current task of a thread. From Python 3.14 on a thread has only one current task,
whatever its loop, and ours would be the second."""
