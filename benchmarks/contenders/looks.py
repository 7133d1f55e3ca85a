"""Looks at a store while workers work: how much of it was stored when, and what it had cost until then."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable

from processes import Workers, cpu_seconds
from telling import PATIENCE

BURSTS = 6


class Look:
    """What the store held at a time, and what it had cost until then."""

    def __init__(self, at: float, stored: int, workers: Workers) -> None:
        self.at = at
        self.stored = stored
        self.cpu = workers.cpu()
        server = os.environ.get("BENCH_SERVER")
        self.server = cpu_seconds(int(server)) if server else 0.0


async def watch(
    stored: Callable[[], Awaitable[int]], workers: Workers, *, until: int, gap: float, most: float
) -> list[Look]:
    """The looks that found more than the one before. Few of them are bursts, and get three times as long."""
    looks: list[Look] = []
    cost, begin, gone = 0.0, time.monotonic(), 0.0
    while gone < most or (len(looks) < BURSTS and gone < 3 * most):
        # A look is work for the database too: it may take an eighth of a core, and of a long drain there are few.
        await asyncio.sleep(max(gap, 8 * cost, gone / 100))
        workers.check()
        at = time.monotonic()
        count = await stored()
        cost = time.monotonic() - at
        if count > (looks[-1].stored if looks else 0):
            looks.append(Look(at, count, workers))
        if count >= until:
            break
        if looks:
            gone = at - looks[0].at
        elif at - begin > PATIENCE:
            raise RuntimeError(f"nothing was stored in {PATIENCE:.0f} s\n{workers.words()}")
    return looks


def rate_of(looks: list[Look]) -> dict[str, float]:
    """From the first look that found something to the last that found more."""
    first, last = looks[0], looks[-1]
    if len(looks) < 2:
        raise RuntimeError(f"all {last.stored} were stored between two looks: too few for a rate")
    window = last.stored - first.stored
    return {
        "rate": window / (last.at - first.at),
        "stored": last.stored,
        "window": window,
        "seconds": last.at - first.at,
        "cpu": last.cpu - first.cpu,
        "server_cpu": last.server - first.server,
    }
