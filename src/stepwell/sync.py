"""The same verbs for blocking code: calls are handed to a thread that runs an event loop.

There is no second implementation. `t.sync.start(...)` is `await t.start(...)` on that loop.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, TypeVar

from stepwell.model.errors import UsageError

T = TypeVar("T")


@dataclass(eq=False)
class InEventLoop(UsageError):
    """.sync blocks, and would stop the event loop this code runs in. Await the verb itself instead."""


class Portal:
    """Hands calls of blocking code to the event loop of a thread. `resource` is open on that loop."""

    def __init__(self, resource: AbstractAsyncContextManager[Any]) -> None:
        self._resource = resource
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine that `make` returns on the portal's loop, in the caller's context. Return its result."""
        _refuse_in_event_loop()
        loop = self._opened()
        context = copy_context()

        async def run() -> T:
            return await asyncio.create_task(make(), context=context)

        future = asyncio.run_coroutine_threadsafe(run(), loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the resource, and end the thread."""
        with self._lock:
            loop, done, thread = self._loop, self._done, self._thread
            self._loop = self._done = self._thread = None
        if loop is not None and done is not None and thread is not None and self._pid == os.getpid():
            loop.call_soon_threadsafe(done.set)
            thread.join(timeout=10)

    def _opened(self) -> asyncio.AbstractEventLoop:
        """Return the loop; start its thread if there is none."""
        with self._lock:
            # A forked child has a copy of this object, but not the thread.
            if self._loop is None or self._pid != os.getpid():
                ready: list[BaseException] = []
                started = threading.Event()
                self._thread = threading.Thread(
                    target=lambda: asyncio.run(self._serve(started, ready)), name="stepwell.sync", daemon=True
                )
                self._pid = os.getpid()
                self._thread.start()
                started.wait()
                if ready:
                    self._loop = None
                    raise ready[0]
                atexit.register(self.close)
            loop = self._loop
        if loop is None:
            raise RuntimeError("the portal closed while it was opening")
        return loop

    async def _serve(self, started: threading.Event, failed: list[BaseException]) -> None:
        done = asyncio.Event()
        try:
            async with self._resource:
                self._loop, self._done = asyncio.get_running_loop(), done
                started.set()
                await done.wait()
        except BaseException as error:
            failed.append(error)
            started.set()


def _refuse_in_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InEventLoop
