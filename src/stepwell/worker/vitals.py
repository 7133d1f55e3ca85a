"""The vitals of a worker's process, read by the lease's thread before each sample."""

from __future__ import annotations

import os
import sys
import time

from stepwell.model.worker import Unrecorded, Vitals

if sys.platform != "win32":
    import resource


class Meter:
    """Reads the vitals. Processor time is the difference between two readings."""

    def __init__(self) -> None:
        self._read_at, self._used = time.monotonic(), time.process_time()

    def read(self, *, running: int, claimed: int, unrecorded: Unrecorded | None = None) -> Vitals:
        before, used_before = self._read_at, self._used
        self._read_at, self._used = time.monotonic(), time.process_time()
        cores = (self._used - used_before) / max(self._read_at - before, 0.001)
        return Vitals(cores, memory(), running, claimed, unrecorded)


def memory() -> int:
    """Return the bytes of this process that are in memory; where the system does not tell, the highest number so
    far."""
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb") as told:
            return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if sys.platform == "win32":
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
