"""The child's side of what a body reports and asks: it goes through the parent process.

Log lines leave at once, so that they are there if the child dies right after. The latest progress and sign of life
leave now and then, by a thread of their own: the body never waits for them. Reports after the end of a call are
dropped: the parent would take them for reports of the next call.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from itertools import count
from threading import Event, RLock, Thread
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from stepwell.context.current import Running, noted
from stepwell.executors.frames import Alive, Ask, EndFrame, FromChild, LineFrame, Reply, StepFrame, pack
from stepwell.model.errors import ClaimLost, NewerCheckpoint, StepwellError, Unavailable
from stepwell.model.notes import Saved

T = TypeVar("T")

PAUSE = 0.05
"""Seconds between two reports of progress."""

_ERRORS: dict[str, type[StepwellError]] = {each.__name__: each for each in (ClaimLost, NewerCheckpoint, Unavailable)}


class Telling:
    def __init__(self, connection: socket.socket) -> None:
        self.capture: int | None = None
        self._connection = connection
        # Reentrant: the garbage collector may log while the lock is held.
        self._lock = RLock()
        self._here: Running | None = None
        self._steps: dict[str, list[bytes]] = {}
        self._is_alive = False
        self._stirred = Event()
        self._thread: Thread | None = None
        self._numbers = count(1)
        self._replies: dict[int, Future[tuple[Reply, bytes]]] = {}

    def begin(self, here: Running | None) -> None:
        self._here = here

    def end(self, ended: EndFrame, result: bytes) -> None:
        """Send the end of a call, after everything that its body has reported."""
        with self._lock:
            self._here = None
            self._connection.sendall(b"".join([*self._gathered(), *_frame(ended, result)]))

    # -- reports of the body

    def alive(self, here: Running) -> None:
        self._is_alive = True
        self._stir()

    def progress(self, here: Running, step: str, done: float, total: float | None, detail: bytes | None) -> None:
        with self._lock:
            if here is self._here and noted(here).takes_step(step):
                self._steps[step] = _frame(StepFrame(step, done, total), detail or b"")
        self._stir()

    def line(self, here: Running, level: str, logger: str, message: str) -> None:
        with self._lock:
            if here is self._here and noted(here).takes_line(len(message.encode())):
                self._connection.sendall(b"".join(_frame(LineFrame(level, logger, message))))

    def leave_out(self, here: Running, lines: int) -> None:
        """Count lines that were left out. The parent gets the count when the call ends."""
        noted(here).dropped += lines

    def _stir(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._serve, name="stepwell-telling", daemon=True)
            self._thread.start()
        self._stirred.set()

    def _serve(self) -> None:
        while True:
            self._stirred.wait()
            self._stirred.clear()
            with self._lock:
                frames = self._gathered()
                if frames and self._here is not None:
                    try:
                        self._connection.sendall(b"".join(frames))
                    except OSError:
                        return  # the parent is gone, and so are we
            time.sleep(PAUSE)

    def _gathered(self) -> list[bytes]:
        steps, self._steps = self._steps, {}
        alive, self._is_alive = self._is_alive, False
        return [part for frame in steps.values() for part in frame] or (_frame(Alive()) if alive else [])

    # -- questions of the body

    async def save(self, here: Running, state: bytes, schema: int) -> int:
        reply, _ = await self._ask(here, Ask(next(self._numbers), "save", schema), state)
        return reply.version or 0

    async def load(self, here: Running) -> Saved | None:
        reply, state = await self._ask(here, Ask(next(self._numbers), "load", 0))
        return None if reply.version is None else Saved(reply.version, reply.schema or 0, state)

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(asked)

    async def _ask(self, here: Running, ask: Ask, state: bytes = b"") -> tuple[Reply, bytes]:
        future = self._replies[ask.number] = Future[tuple[Reply, bytes]]()
        try:
            with self._lock:
                if self._here is None or self._here.claim is not here.claim:
                    raise Unavailable("the call that asks has ended")
                self._connection.sendall(b"".join(_frame(ask, state)))
            reply, body = await asyncio.wrap_future(future)
        finally:
            del self._replies[ask.number]
        if reply.error is not None:
            raise _rebuilt(reply.error, reply.facts or {})
        return reply, body

    def replied(self, reply: Reply, body: bytes) -> None:
        """Take a reply. Called by the thread that reads from the parent."""
        future = self._replies.get(reply.number)
        if future is not None and future.set_running_or_notify_cancel():
            future.set_result((reply, body))


def _frame(frame: FromChild, body: bytes = b"") -> list[bytes]:
    return pack(msgspec.json.encode(frame), body)


def _rebuilt(name: str, facts: dict[str, Any]) -> StepwellError:
    if "run_id" in facts:
        facts["run_id"] = UUID(facts["run_id"])
    return _ERRORS[name](**facts)
