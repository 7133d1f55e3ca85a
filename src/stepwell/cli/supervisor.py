"""Several workers, each a process of its own, and one parent that starts, restarts and stops them.

Everything that happens, a signal, a child's end, a pause that is over, is an event in one queue, and one
loop judges them in turn.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from types import FrameType

from stepwell.cli.loading import Named
from stepwell.operator.errors import Exit

log = logging.getLogger("stepwell.supervisor")

QUICK_DEATH = 10.0
"""Seconds a child must last for its next death to be forgiven at once."""
LONGEST_PAUSE = 30.0


@dataclass(frozen=True, slots=True)
class Signalled:
    """A SIGTERM or SIGINT, which mean the same."""


@dataclass(frozen=True, slots=True)
class ChildEnded:
    place: int
    code: int


@dataclass(frozen=True, slots=True)
class PauseOver:
    place: int


@dataclass(slots=True)
class Child:
    process: subprocess.Popen[bytes]
    started: float


def worker_command(
    named: Named, *, queues: Sequence[str] | None, slots: int, grace: float, log_level: str
) -> list[str]:
    """The command line of one worker. `-P`: a file of the user's must not stand in for one of our modules."""
    only = [] if queues is None else ["--queues", ",".join(queues)]
    return [
        *(sys.executable, "-P", "-m", "stepwell", "worker", *named.words, *only, "--slots", str(slots)),
        *("--grace", str(grace), "--log-level", log_level),
    ]


def start_worker(command: Sequence[str], leash: int) -> subprocess.Popen[bytes]:
    """A worker that ends with us: it holds the reading end of a pipe that only we can write to.

    In a session of its own, so that Ctrl-C on the terminal comes to us alone.
    """
    return subprocess.Popen([*command, "--leash", str(leash)], pass_fds=(leash,), start_new_session=True)


class Supervisor:
    def __init__(self, command: Sequence[str], processes: int, *, name: str | None = None) -> None:
        self._command = command
        self._processes = processes
        self._name = name
        self._events: SimpleQueue[Signalled | ChildEnded | PauseOver] = SimpleQueue()
        self._children: dict[int, Child] = {}
        self._quick_deaths: dict[int, int] = {}
        self._stopping = False
        self._proven = False
        self._code = 0
        # The writing end is never used: its closing, when we die, is the message.
        self._leash, self._held = os.pipe()

    def run(self) -> int:
        """Wait until all children have ended after a request to stop. Return 0 if each ended well."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._signalled)
        log.info("supervisor, pid %d: starting %d workers", os.getpid(), self._processes)
        for place in range(1, self._processes + 1):
            self._start(place)
        while self._children or not self._stopping:
            self._judge(self._events.get())
        log.info("supervisor: all workers have ended")
        return self._code

    def _judge(self, event: Signalled | ChildEnded | PauseOver) -> None:
        match event:
            case Signalled():
                self._stop()
            case ChildEnded(place, code):
                self._ended(place, code)
            case PauseOver(place) if not self._stopping:
                self._start(place)
            case _:
                pass

    def _start(self, place: int) -> None:
        named = [] if self._name is None else ["--name", f"{self._name}-{place}"]
        child = Child(start_worker([*self._command, *named], self._leash), time.monotonic())
        self._children[place] = child
        log.info("worker %d started, pid %d", place, child.process.pid)
        threading.Thread(target=self._await_end, args=(place, child.process), daemon=True).start()

    def _await_end(self, place: int, process: subprocess.Popen[bytes]) -> None:
        self._events.put(ChildEnded(place, process.wait()))

    def _ended(self, place: int, code: int) -> None:
        child = self._children.pop(place)
        lived = time.monotonic() - child.started
        if self._stopping:
            # One that had not come so far as to hear signals dies of ours, and has nothing to lose.
            clean = code in (0, -signal.SIGTERM)
            self._code = self._code or (Exit.DONE if clean else Exit.FAILED)
            log.log(logging.INFO if clean else logging.ERROR, "worker %d ended: %s", place, how(code))
            return
        self._proven = self._proven or lived >= QUICK_DEATH
        if code in (Exit.WRONG_USAGE, Exit.NOT_REACHABLE) and not self._proven:
            # It has just said why, and it would say the same again.
            self._code = code
            self._stop()
            return
        pause = self._pause(place, lived)
        log.error(
            "worker %d, pid %d, ended unexpectedly: %s; again in %.1f s", place, child.process.pid, how(code), pause
        )
        self._later(pause, PauseOver(place))

    def _pause(self, place: int, lived: float) -> float:
        """None after a first death, then growing for as long as it keeps dying young."""
        deaths = self._quick_deaths.get(place, 0) + 1 if lived < QUICK_DEATH else 0
        self._quick_deaths[place] = deaths
        return 0.0 if deaths <= 1 else float(min(2.0 ** (deaths - 2), LONGEST_PAUSE))

    def _later(self, seconds: float, event: PauseOver) -> None:
        timer = threading.Timer(seconds, self._events.put, (event,))
        timer.daemon = True
        timer.start()

    def _stop(self) -> None:
        """Each call is one more signal to every worker: the second means now."""
        self._stopping = True
        for child in self._children.values():
            with suppress(ProcessLookupError):
                child.process.terminate()

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self._events.put(Signalled())


def how(code: int) -> str:
    """Describe in words how a process ended."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
