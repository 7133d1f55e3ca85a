"""The thread executor: `def` bodies in threads of their own.

The threads are daemons of our own: concurrent.futures joins its threads when the interpreter exits, so that
one stuck body would keep the whole process alive.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

from stepwell.executors.base import Body, contained, nobody
from stepwell.model.errors import InvalidSetting

Reply = bytes | BaseException | None


class ThreadExecutor:
    @staticmethod
    def refuses(fn: Callable[..., Any]) -> str | None:
        return "inline is for async def, thread is for def" if inspect.iscoroutinefunction(fn) else None

    def __init__(self, threads: int) -> None:
        if threads < 1:
            raise InvalidSetting("threads", threads, "at least one is needed")
        self._limit = threads
        self._threads: list[Thread] = []
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._open: set[_Call] = set()
        self._returns: _Returns | None = None
        self._closed = False

    async def run(self, body: Body, input: bytes, begun: Callable[[], None] = nobody) -> bytes:
        reply = await self._hand_over(body, input, contextvars.copy_context(), begun)
        if isinstance(reply, bytes):
            return reply
        assert reply is not None, "only a cancelled call ends without an reply, and nobody awaits it"
        try:
            raise reply
        finally:
            # The error's traceback holds this frame: a frame holding the error would be a cycle.
            del reply

    @property
    def stuck(self) -> int:
        return sum([call.started and call.future.cancelled() for call in self._open.copy()]) if self._open else 0

    async def close(self, grace: float = 0.0) -> None:
        self._closed = True
        returns = _Returns(asyncio.get_running_loop())
        # A stuck call may be left from a loop that is gone: its end must be heard here.
        for call in self._open.copy():
            call.returns = returns
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await returns.until_empty(self._open)
        for call in self._open.copy():
            if call.future.get_loop() is returns.loop:
                call.future.cancel()
        for _ in self._threads:
            self._calls.put(None)

    def _hand_over(
        self, body: Body, input: bytes, context: contextvars.Context, begun: Callable[[], None]
    ) -> asyncio.Future[Reply]:
        if self._closed:
            raise RuntimeError("the thread executor is closed")
        loop = asyncio.get_running_loop()
        if self._returns is None or self._returns.loop is not loop:
            self._returns = _Returns(loop)
        if len(self._threads) <= len(self._open) and len(self._threads) < self._limit:
            self._start_thread()
        call = _Call(body, input, context, loop.create_future(), self._returns)
        if len(self._open) < self._limit:
            begun()
        elif begun is not nobody:
            call.begun = begun
        self._open.add(call)
        self._calls.put(call)
        return call.future

    def _start_thread(self) -> None:
        name = f"stepwell-body-{len(self._threads) + 1}"
        thread = Thread(target=_serve, args=(self._calls, self._open), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


class _Call:
    __slots__ = ("begun", "body", "context", "future", "input", "returns", "started")

    def __init__(
        self,
        body: Body,
        input: bytes,
        context: contextvars.Context,
        future: asyncio.Future[Reply],
        returns: _Returns,
    ) -> None:
        self.body = body
        self.input = input
        self.context = context
        self.future = future
        self.returns = returns
        self.started = False
        self.begun: Callable[[], None] | None = None
        """Called once a thread takes the call."""


class _Returns:
    """The way back to one loop: however many threads finish meanwhile, the loop is woken once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._finished: deque[tuple[asyncio.Future[Reply], Reply]] = deque()
        self._woken = False
        self._delivered = asyncio.Event()

    def post(self, future: asyncio.Future[Reply], reply: Reply) -> None:
        self._finished.append((future, reply))
        if self._woken:
            return
        self._woken = True
        # A closed loop has nobody left who waits for the reply.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._deliver)

    def tell(self, begun: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(begun)

    def _deliver(self) -> None:
        # Cleared before looking: a thread that still sees it set has appended before we look.
        self._woken = False
        while self._finished:
            future, reply = self._finished.popleft()
            if not future.done() and future.get_loop() is self.loop:
                future.set_result(reply)
        self._delivered.set()

    async def until_empty(self, calls: set[_Call]) -> None:
        while calls:
            self._delivered.clear()
            await self._delivered.wait()


def _serve(calls: SimpleQueue[_Call | None], open_calls: set[_Call]) -> None:
    while (call := calls.get()) is not None:
        # Marked before asking: a cancel that comes too late to be seen here finds the call marked.
        call.started = True
        if call.begun is not None:
            call.returns.tell(call.begun)
        reply = None if call.future.cancelled() else _reply(call.context, call.body, call.input)
        open_calls.discard(call)
        call.returns.post(call.future, reply)
        # An idle thread must not keep the last input and result alive.
        del call, reply


def _reply(context: contextvars.Context, body: Body, input: bytes) -> bytes | BaseException:
    try:
        return context.run(_call, body, input)
    except BaseException as error:
        return contained(error)


def _call(body: Body, input: bytes) -> bytes:
    args, kwargs = body.signature.decode_input(input)
    return body.signature.encode_result(body.fn(*args, **kwargs))
