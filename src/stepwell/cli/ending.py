"""The end of a worker's process: by signals, and in any case.

A thread of its own hears the signals, so that a third one is obeyed even while a body blocks the event
loop, and so that nothing that hangs on the way out (a stuck thread, a lost database) keeps the process.

    first signal     gently: attempts have the grace time, what is left is given back
    second           now: everything is given back at once
    third            not even that: the lease runs out, and others reap what was held
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import FrameType
from typing import NoReturn

log = logging.getLogger("stepwell.worker")

STOPPING = 20.0
"""Seconds after the grace time for recording outcomes, leaving and closing, each of which has its own bound."""
UNREADY = 2.0
"""Seconds to end for a worker that has claimed nothing yet."""
WRITING = 1.0
"""Seconds for a line of the log, or for what is still to be printed."""
LEAVING = 5.0
"""Seconds for exit hooks and threads once everything is recorded."""

Step = Callable[[], object]


class Ending:
    def __init__(self, grace: float) -> None:
        self.code = 1
        """The exit code if the process has to be cut off: 0 from when there is nothing left to lose."""
        self.ready = False
        self._grace = grace
        self._events: SimpleQueue[str] = SimpleQueue()
        self._steps: list[Step] = []

    def hear(self, *, leash: int | None = None) -> None:
        """Handle signals from now on. A leash is a pipe that closes when the supervisor dies."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._signalled)
        threading.Thread(target=self._wait, name="stepwell.ending", daemon=True).start()
        if leash is not None:
            threading.Thread(target=self._hold, args=(leash,), name="stepwell.leash", daemon=True).start()
        threading.excepthook = self._thread_died

    def obey(self, *, gently: Step, now: Step) -> None:
        """Set what the first and the second signal do, each on this event loop."""
        loop = asyncio.get_running_loop()
        self._steps = [lambda: _on(loop, gently), lambda: _on(loop, now)]

    def leave(self, code: int) -> None:
        """All is recorded: only what does not matter any more can take time now."""
        self.code = code
        self._events.put("left")

    def _signalled(self, number: int, _frame: FrameType | None) -> None:
        # SimpleQueue.put may be interrupted by itself: it is the one thing here that a handler may call.
        self._events.put(signal.Signals(number).name)

    def _hold(self, leash: int) -> None:
        os.read(leash, 1)
        self._events.put("the end of the supervisor")

    def _wait(self) -> None:
        patience: float | None = None
        heard = 0
        while True:
            try:
                event = self._events.get(timeout=patience)
            except Empty:
                _say(logging.WARNING, "something of the app's still runs after %g s: leaving without it", patience)
                self._cut()
            if event == "left":
                patience = LEAVING
                continue
            heard += 1
            if heard > 2:
                released = "stopped by %s without releasing what is held: it is reaped when the lease ends"
                _say(logging.ERROR, released, event)
                self.code = 1
                self._cut()
            patience = self._step(heard, event)

    def _step(self, heard: int, event: str) -> float:
        """Take the step that follows; how long it may last."""
        if not self.ready:
            self.code = 0
        elif heard == 1:
            _say(logging.INFO, "stopping on %s: attempts have %g s to end; once more to stop now", event, self._grace)
        else:
            _say(logging.INFO, "stopping now on %s: what is running is released", event)
        if self._steps:
            self._steps[heard - 1]()
        if not self.ready:
            return UNREADY
        return STOPPING + (self._grace if heard == 1 else 0.0)

    def _thread_died(self, death: threading.ExceptHookArgs) -> None:
        _for_a_moment(partial(threading.__excepthook__, death))
        if death.thread is not None and death.thread.name.startswith("stepwell."):
            _say(logging.CRITICAL, "%s died: a worker without it is not safe to go on", death.thread.name)
            self.code = 1
            self._cut()

    def _cut(self) -> NoReturn:
        _for_a_moment(_flush)
        os._exit(self.code)


def _say(level: int, message: str, *facts: object) -> None:
    _for_a_moment(lambda: log.log(level, message, *facts))


def _for_a_moment(write: Step) -> None:
    """Write, but wait no longer for it than a moment: a pipe that nobody reads may be full."""
    writing = threading.Thread(target=write, name="writing", daemon=True)
    writing.start()
    writing.join(WRITING)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # as after `>&-`
            with suppress(OSError, ValueError):  # its reader has left, or it is closed
                stream.flush()


def _on(loop: asyncio.AbstractEventLoop, step: Step) -> None:
    try:
        loop.call_soon_threadsafe(step)
    except RuntimeError:
        pass  # the loop is closed: there is nothing left to stop
