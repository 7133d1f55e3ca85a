"""The worker processes of a contender: started, watched, measured in /proc, and never left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

TICK = os.sysconf("SC_CLK_TCK")
PR_SET_PDEATHSIG = 1
GRACE = 2.0
STARTING, CALM = 10.0, 6
"""Seconds that workers have to start in, and looks in a row that find them waiting."""


class Workers:
    """Processes that run one verb of the contender's own script, until the `with` block ends."""

    def __init__(self, count: int, *verb: str) -> None:
        self._command = [sys.executable, str(Path(sys.argv[0]).absolute()), *(verb or ("worker",))]
        self._count = count
        self._children: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Workers:
        self._log = tempfile.TemporaryFile()
        try:
            for _ in range(self._count):
                self._children.append(
                    subprocess.Popen(
                        self._command,
                        stdin=subprocess.DEVNULL,
                        stdout=self._log,
                        stderr=self._log,
                        start_new_session=True,
                        preexec_fn=_die_with_parent,
                    )
                )
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self._end()
        self._log.close()

    def _end(self) -> None:
        """Asked first, but not for long: what is measured is measured, and the database is thrown away."""
        for child in self._children:
            child.terminate()
        deadline = time.monotonic() + GRACE
        for child in self._children:
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                pass
            try:
                # The group, because a worker may have children of its own.
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()

    def check(self) -> None:
        if any(child.poll() is not None for child in self._children):
            raise RuntimeError(f"a worker ended by itself\n{self.words()}")

    def words(self) -> str:
        """The end of what the workers wrote."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 2000))
        return self._log.read().decode(errors="replace").strip()

    def begin_together(self) -> None:
        """Let nobody reach the server before all of them are there: the second would be starting, on half of the
        processors, while the first is measured already. Who is there waits for an answer, and takes no time."""
        server = os.environ.get("BENCH_SERVER")
        if not server or self._count < 2:
            return
        os.kill(int(server), signal.SIGSTOP)
        try:
            deadline, took, calm = time.monotonic() + STARTING, -1.0, 0
            while calm < CALM and time.monotonic() < deadline:
                time.sleep(0.05)
                self.check()
                took, before = self.cpu(), took
                calm = calm + 1 if took == before else 0
        finally:
            os.kill(int(server), signal.SIGCONT)

    def cpu(self) -> float:
        return sum(cpu_seconds(child.pid) for child in self._children)

    def rss(self) -> int:
        """The peak memory of one worker in bytes, with the processes it started; the mean where there are several."""
        return self._memory("VmHWM:")

    def resident(self) -> int:
        """The same as it is now."""
        return self._memory("VmRSS:")

    def _memory(self, field: str) -> int:
        sizes = [_size(pid, field) for child in self._children for pid in _tree(child.pid)]
        return sum(sizes) // len(self._children)


def cpu_seconds(root: int) -> float:
    """CPU that a process and its descendants took, the dead ones that it waited for included."""
    total = 0
    for pid in _tree(root):
        try:
            facts = _stat(pid)
        except OSError:
            continue
        total += sum(int(ticks) for ticks in facts[11:15])
    return total / TICK


def _tree(root: int) -> list[int]:
    found, unseen = [], [root]
    while unseen:
        pid = unseen.pop()
        found.append(pid)
        try:
            for thread in os.listdir(f"/proc/{pid}/task"):
                unseen += map(int, Path(f"/proc/{pid}/task/{thread}/children").read_text().split())
        except OSError:
            continue
    return found


def _stat(pid: int) -> list[str]:
    """The fields after the name: state first, utime at 11."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _size(pid: int, field: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
