"""`stepwell dev`: a worker that starts again whenever the code is saved, and runs as they move."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

import click

from stepwell.cli import logs
from stepwell.cli.exits import say
from stepwell.cli.loading import Named, source_of, wanted_app
from stepwell.cli.options import length
from stepwell.cli.supervisor import how, start_worker, worker_command
from stepwell.cli.watching import SaveWatch, forget_compiled, look
from stepwell.operator.errors import Exit

LOOK = 0.15
HOLD_UP = 10.0
"""Seconds after the grace time, until a worker that has not ended for a reload is killed."""


@click.command()
@click.argument("app_reference", metavar="[APP]", required=False)
@click.option("--slots", type=click.IntRange(1), default=20, show_default=True)
@click.option("--grace", callback=length, metavar="DURATION", default="5s", help="Time for attempts to end.  [5s]")
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True)
def dev(app_reference: str | None, *, slots: int, grace: float, log_level: str) -> int:
    """Run APP (app.py, or module:app) while you write it.

    Without a DSN the database is an embedded one in .stepwell/. Every save starts the worker anew.
    """
    named = wanted_app(app_reference)
    command = worker_command(named, queues=None, slots=slots, grace=grace, log_level=log_level)
    os.environ.setdefault("STEPWELL_STRICT", "1")  # for its workers: see replay/guard.py
    return Dev([*command, "--live", "--embedded"], _watched(named), grace=grace).run()


def _watched(named: Named) -> Path:
    """The directory of a file; of a module, the directory it is imported from."""
    source = source_of(named)
    return source.resolve().parent if source.suffix == ".py" else named.root


class Dev:
    def __init__(self, command: Sequence[str], directory: Path, *, grace: float) -> None:
        self._command = command
        self._directory = directory
        self._patience = grace + HOLD_UP
        self._ends: SimpleQueue[subprocess.Popen[bytes] | None] = SimpleQueue()
        self._worker: subprocess.Popen[bytes] | None = None
        self._stopping = False
        self._leash, self._held = os.pipe()

    def run(self) -> int:
        """Run until Ctrl-C. A worker that ends by itself is started again by the next save."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._signalled)
        saves = SaveWatch(look(self._directory))
        say(f"watching {self._directory} for saves; Ctrl-C to stop")
        self._start()
        while self._worker is not None or not self._stopping:
            if (code := self._hear()) is not None:
                return code
            if not self._stopping and (saved := saves.among(look(self._directory))):
                self._reload(saved)
        return Exit.DONE

    def _hear(self, *, draining: bool = False) -> int | None:
        """Wait a moment for a signal or the worker's end; an exit code if that is the end of all."""
        try:
            ended = self._ends.get(timeout=LOOK)
        except Empty:
            return None
        if ended is None:
            self._stopping = True
            self._tell(signal.SIGTERM)
        elif ended is self._worker:
            self._worker = None
            if ended.returncode == Exit.NOT_REACHABLE and not draining:
                return Exit.NOT_REACHABLE
            if not self._stopping and not draining:
                say(f"the worker ended ({how(ended.returncode)}): waiting for the next save")
        return None

    def _reload(self, saved: Sequence[str]) -> None:
        shown = ", ".join(os.path.relpath(path, self._directory) for path in saved[:3])
        say(f"{shown}{' and more' if len(saved) > 3 else ''} saved: starting again")
        self._drain()
        if not self._stopping:
            forget_compiled(saved)
            self._start()

    def _drain(self) -> None:
        """Let the old worker end before the new one starts: one version of the code at a time."""
        self._tell(signal.SIGTERM)
        end = time.monotonic() + self._patience
        while self._worker is not None:
            self._hear(draining=True)
            if time.monotonic() > end and self._worker is not None:
                self._tell(signal.SIGKILL)

    def _start(self) -> None:
        worker = self._worker = start_worker(self._command, self._leash)
        threading.Thread(target=self._await_end, args=(worker,), daemon=True).start()

    def _await_end(self, worker: subprocess.Popen[bytes]) -> None:
        worker.wait()
        self._ends.put(worker)

    def _tell(self, number: signal.Signals) -> None:
        if self._worker is not None:
            with suppress(ProcessLookupError):
                self._worker.send_signal(number)

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self._ends.put(None)
