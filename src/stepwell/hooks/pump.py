"""The queue between the work and the hooks: events go in without waiting, and one task calls the hooks with them.

The queue is bounded, each hook has a time limit, and errors of hooks end here. So the work never waits for a hook, and
never fails because of one. There is one pump for each event loop on which the app is open.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Thread
from typing import Any

from stepwell.model.hooks import Event

log = logging.getLogger("stepwell.hooks")

MOST = 10_000
"""Limit of events that wait for their hooks."""
WARN = 5.0
"""Seconds between warnings of dropped events."""
CLEANUP = 1.0
"""Seconds that a cancelled hook has to end."""


@dataclass(eq=False)
class Hook:
    """A function of the user's, called with each event of some types."""

    fn: Callable[[Any], Any]
    limit: float
    is_async: bool
    stuck: set[asyncio.Future[Any]] = field(default_factory=set)
    """A call that did not end in time. Until it ends, the hook is not called again."""
    told: set[str] = field(default_factory=set)
    """Types of errors whose traceback was logged already."""

    @property
    def name(self) -> str:
        return getattr(self.fn, "__qualname__", None) or type(self.fn).__qualname__


class Pump:
    """Calls the hooks of an app, one event after the other."""

    def __init__(self, hooks: Mapping[str, Sequence[Hook]]) -> None:
        """`hooks` are the hooks by type of event; more may be added."""
        self._hooks = hooks
        self._events: deque[Event] = deque()
        self._task: asyncio.Task[None] | None = None
        self._context = copy_context()  # taken here: `put` may be called in the context of a body
        self._thread: _Thread | None = None
        self._dropped = 0
        self._warned_at = float("-inf")

    def put(self, event: Event) -> None:
        """Add an event; drop and count it if the queue is full."""
        if len(self._events) >= MOST:
            self._dropped += 1
            return
        self._events.append(event)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), context=self._context.copy())

    async def drain(self, patience: float) -> None:
        """Let the hooks receive the events that wait, for at most `patience` seconds."""
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=patience)
        self._warn(at_once=True)

    async def close(self, patience: float) -> None:
        """Drain the queue, then drop the rest and stop."""
        await self.drain(patience)
        if (task := self._task) is not None:
            log.warning(
                "%d events were dropped at shutdown: the hooks took longer than %g s", len(self._events), patience
            )
            self._events.clear()
            task.cancel()
            await asyncio.wait({task}, timeout=2 * CLEANUP)
        if self._thread is not None:
            self._thread.end()

    async def _run(self) -> None:
        try:
            while self._events:
                event = self._events.popleft()
                for hook in self._hooks.get(event.type, ()):
                    await self._call(hook, event)
                self._warn()
        finally:
            self._task = None

    async def _call(self, hook: Hook, event: Event) -> None:
        if any(not each.done() for each in hook.stuck):
            self._dropped += 1
            return
        hook.stuck.clear()
        call = self._begin(hook, event)
        try:
            ended, _ = await asyncio.wait({call}, timeout=hook.limit)
        except asyncio.CancelledError:
            call.cancel()
            await asyncio.wait({call}, timeout=CLEANUP)
            raise
        if ended:
            _judge(hook, event, call)
            return
        log.error("the hook %s timed out after %g s on %s, and is given up", hook.name, hook.limit, event.type)
        hook.stuck.add(call)
        if hook.is_async:
            call.cancel()
            await asyncio.wait({call}, timeout=CLEANUP)
        else:
            assert self._thread is not None
            self._thread.end()
            self._thread = None

    def _begin(self, hook: Hook, event: Event) -> asyncio.Future[Any]:
        if hook.is_async:
            return asyncio.get_running_loop().create_task(_contained(hook.fn, event), context=self._context.copy())
        if self._thread is None:
            self._thread = _Thread()
        return self._thread.call(hook.fn, event, self._context.copy())

    def _warn(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if self._dropped and (at_once or now >= self._warned_at + WARN):
            log.warning("%d events were dropped: the hooks are slower than the work", self._dropped)
            self._dropped, self._warned_at = 0, now


def _judge(hook: Hook, event: Event, call: asyncio.Future[Any]) -> None:
    error = asyncio.CancelledError() if call.cancelled() else call.result()
    if inspect.iscoroutine(error):
        error.close()
        error = TypeError("the hook returned a coroutine that nothing awaits: make the hook an async def")
    if not isinstance(error, BaseException):
        return
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    # One traceback for each type of error: a burst of events must not fill the log with tracebacks.
    trace = None if kind in hook.told else (type(error), error, error.__traceback__)
    hook.told.add(kind)
    log.error("the hook %s failed on %s: %s", hook.name, event.type, type(error).__name__, exc_info=trace)


async def _contained(fn: Callable[[Any], Any], event: Event) -> object:
    """Call a hook, and return what it raised, or None. A SystemExit raised by a task would end the loop."""
    try:
        await fn(event)
    except BaseException as error:
        return error
    return None


class _Thread:
    """A daemon thread for blocking hooks: a hook that never ends must not keep the process alive."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        Thread(target=self._serve, name="stepwell-hooks", daemon=True).start()

    def call(self, fn: Callable[[Any], Any], event: Event, context: Context) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def call() -> None:
            answer: object
            try:
                answer = context.run(fn, event)
            except BaseException as error:
                answer = error
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing waits for the answer
                loop.call_soon_threadsafe(_answer, future, answer)

        self._calls.put(call)
        return future

    def end(self) -> None:
        """End the thread after the call that is under way."""
        self._calls.put(None)

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call


def _answer(future: asyncio.Future[Any], answer: object) -> None:
    if not future.done():
        future.set_result(answer)
