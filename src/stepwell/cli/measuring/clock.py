"""The timing of calls, the same for Stepwell and for the bare statements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from stepwell.cli.measuring.processes import Unmeasured
from stepwell.store.pool import Row, Transaction
from stepwell.store.statements import in_schema

PAUSE = 0.005
"""Seconds between two probes: the last one has been settled by then, and everyone is idle."""
STUCK = 30.0

_EMPTY = "truncate stepwell.runs, stepwell.finished_runs, stepwell.keys"
_LEFT = "select count(*) as left from stepwell.runs"
_SPAN = """
select count(*) as finished, extract(epoch from max(finished_at) - min(started_at))::float8 as seconds
  from stepwell.finished_runs
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """Milliseconds from the call of start to the body's first line, and to the result in the caller's hands."""

    body: float
    result: float


async def rate(call: Callable[[int], Awaitable[object]], *, callers: int, seconds: float, most: int) -> float:
    """Calls per second, each caller making one after another; for so long, and at most so many."""
    numbers, done = iter(range(most)), 0
    await call(-1)
    begin = time.perf_counter()

    async def work() -> None:
        nonlocal done
        for number in numbers:
            await call(number)
            done += 1
            if time.perf_counter() - begin >= seconds:
                return

    await asyncio.gather(*(work() for _ in range(callers)))
    return done / (time.perf_counter() - begin)


async def times(call: Callable[[], Awaitable[object]], *, seconds: float, most: int) -> list[float]:
    """Return the milliseconds of each call: for so many seconds, and at most so many calls."""
    await call()
    taken: list[float] = []
    end = time.perf_counter() + seconds
    while len(taken) < most and (not taken or time.perf_counter() < end):
        begin = time.perf_counter()
        await call()
        taken.append((time.perf_counter() - begin) * 1000)
    return taken


async def probes(probe: Callable[[int], Awaitable[Probe]], *, seconds: float, most: int) -> list[Probe]:
    """Make the calls one at a time, with pauses in which every process becomes idle."""
    taken: list[Probe] = []
    end = time.perf_counter() + seconds
    while len(taken) < most and (not taken or time.perf_counter() < end):
        taken.append(await probe(len(taken)))
        await asyncio.sleep(PAUSE)
    return taken


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent are not above."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


class Eye:
    """Looks at the tables, on a connection of its own."""

    def __init__(self, line: Transaction, schema: str) -> None:
        self._line = line
        self._empty, self._left, self._span = (in_schema(sql, schema) for sql in (_EMPTY, _LEFT, _SPAN))

    async def empty(self) -> None:
        """Clean the tables, so that every measurement finds them as the one before did."""
        await self._look(self._empty)

    async def drained(self, count: int, check: Callable[[], None]) -> float:
        """Wait until all have finished; runs per second from the first claim to the last outcome.

        By the database's clock, so that neither our looks nor the way to the workers count.
        """
        left, moved = -1, time.monotonic()
        while True:
            asked = time.monotonic()
            now = (await self._look(self._left))[0]["left"]
            if not now:
                break
            check()
            if now != left:
                left, moved = now, asked
            elif asked - moved > STUCK:
                raise Unmeasured(f"{left} runs did not move for {STUCK:.0f} s")
            # A look is work for the database too: it may take an eighth of a core.
            await asyncio.sleep(max(0.02, 8 * (time.monotonic() - asked)))
        span = (await self._look(self._span))[0]
        if span["finished"] != count:
            raise Unmeasured(f"{count} runs were started, and {span['finished']} finished")
        return count / max(float(span["seconds"]), 1e-4)

    async def _look(self, sql: str) -> list[Row]:
        return await self._line.connection.fetch(sql)
