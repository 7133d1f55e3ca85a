"""What every contender is, and the verbs that the harness speaks to it.

A contender is a script: `PYTHON contenders/NAME.py VERB [options]`. It finds its store in `BENCH_STORE` and prints
one JSON object on its last line. The verbs are written once, here, so that every contender is measured by the same
clock, the same looks at the store and the same rules. Only the standard library: it runs in two environments.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from looks import rate_of, watch
from processes import Workers
from telling import PATIENCE, listening, tell, told
from workflow_verbs import WORKFLOW_VERBS

__all__ = ["TEXT", "TO", "Contender", "Lacking", "main", "store", "tell"]

TO = "someone@example.org"
TEXT = "a hundred bytes of input or so, as in real life, a line of it"
BEAT = 0.05
WARM = 20


class Lacking(Exception):
    """The contender has no such thing: a dash in the table, with this reason."""


def store() -> str:
    return os.environ["BENCH_STORE"]


class Contender(ABC):
    name: str
    store: str
    keeps: str
    version: str
    can_result: bool = True
    # Whether its client blocks: then the callers of `single` are threads and not coroutines.
    blocking: bool = False
    # `start_one` starts the probe if set, else the no-op.
    probing: bool = False

    def setup(self) -> None:
        """Prepare an empty database; once."""
        return None

    async def open(self) -> None:
        return None

    async def close(self) -> None:
        return None

    @abstractmethod
    async def start_bulk(self, count: int) -> None: ...

    @abstractmethod
    async def start_one(self, number: int) -> Any: ...

    async def result(self, handle: Any) -> None:
        raise Lacking("has no results")

    @abstractmethod
    def worker(self) -> None: ...

    @abstractmethod
    async def left(self) -> int: ...

    async def statements(self) -> int:
        """How many statements the database has been asked so far."""
        raise Lacking("its statements are not counted")

    async def fill_finished(self, count: int) -> None:
        raise Lacking("keeps nothing that could be filled")

    async def fill_scheduled(self, count: int) -> None:
        raise Lacking("has no schedule that could be filled")

    # -- of those with workflows

    async def start_workflows(self, shape: str, count: int, length: int) -> list[Any]:
        """Handles of workflows that are as long as told, and of the shape that SHAPES in `workflow_verbs` describes."""
        raise Lacking(f"has no workflows of {shape}")

    async def recorded(self, shape: str) -> int:
        """How many steps, or tasks, of its workflows the store holds."""
        raise Lacking("does not record steps")

    async def write_steps(self, count: int, group: int) -> None:
        """What recording so many steps takes at the least, so many to a commit."""
        raise Lacking("is no limit")

    async def parked(self) -> int:
        """How many workflows wait for something outside of them."""
        raise Lacking("has no workflows that wait")

    async def wake(self, length: int) -> Any:
        """Tell the one with the long history to end; its handle."""
        raise Lacking("has no workflows that wait")


# -- the verbs


async def bulk(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """The first of them connects, and does not count."""
    await contender.start_bulk(1)
    begin = time.perf_counter()
    await contender.start_bulk(chosen.count - 1)
    return {"seconds": time.perf_counter() - begin}


async def single(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """Callers in one process, each starting one after another; one start before, which connects, is not counted."""
    numbers = iter(range(chosen.count))

    async def call() -> None:
        for number in numbers:
            await contender.start_one(number)

    # Also of a blocking contender: it may have opened its connections in `open`, on this thread.
    await contender.start_one(-1)
    begin = time.perf_counter()
    if contender.blocking and chosen.callers > 1:
        with ThreadPoolExecutor(chosen.callers) as threads:
            for done in [threads.submit(drive, call()) for _ in range(chosen.callers)]:
                done.result()
    else:
        await asyncio.gather(*(call() for _ in range(chosen.callers)))
    return {"seconds": time.perf_counter() - begin}


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that never waits for a loop, in whichever thread this is."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a blocking contender waited for a loop")


async def drain(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """The rate from the first look that finds an outcome to the last that finds more.

    So starting processes does not count, nor does the pause after the last of those who store in bursts.
    """
    before = await contender.left()
    if before < chosen.count:
        raise RuntimeError(f"{chosen.count} should be queued, but {before} are")

    async def stored() -> int:
        return before - await contender.left()

    gap = 0.02 if before <= 50_000 else 0.25
    with Workers(chosen.processes) as workers:
        workers.begin_together()
        looks = await watch(stored, workers, until=chosen.count, gap=gap, most=chosen.most)
        rss = workers.rss()
    return {**rate_of(looks), "rss": rss}


async def latency(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """Probes, one at a time, on one worker; beside a load if asked. At most so many, for at most so long."""
    contender.probing = True
    figures: dict[str, Any] = {"body": [], "result": []}
    with listening() as ear, Workers(1) as workers:
        for number in range(WARM):
            await _probe(contender, ear, number)
        with Workers(1 if chosen.load else 0, "load", "--load", str(chosen.load)) as callers:
            await asyncio.sleep(1.5 if chosen.load else 0.2)
            end = time.monotonic() + chosen.most
            for number in range(WARM, WARM + chosen.count):
                begin = time.monotonic()
                if begin > end and figures["body"]:
                    break
                body, result = await _probe(contender, ear, number)
                figures["body"].append(body)
                figures["result"] += [result] if contender.can_result else []
                workers.check()
                callers.check()
                await asyncio.sleep(max(0.0, begin + chosen.every - time.monotonic()))
    return figures


async def _probe(contender: Contender, ear: socket.socket, number: int) -> tuple[float, float]:
    """Milliseconds from the call of start to the body's first line, and to the outcome in the caller's hands."""
    begin = time.monotonic()
    handle = await contender.start_one(number)
    if contender.can_result:
        await asyncio.wait_for(contender.result(handle), PATIENCE)
    end = time.monotonic()
    at = await told(ear, number)
    return (at - begin) * 1000, (end - begin) * 1000


async def load(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """Start no-ops at a steady rate until told to end: the load beside which latency is taken."""
    begin, started = time.monotonic(), 0
    while True:
        due = int((time.monotonic() - begin) * chosen.load) - started
        if due:
            await contender.start_bulk(due)
            started += due
        await asyncio.sleep(max(0.0, BEAT - (time.monotonic() - begin) % BEAT))


async def idle(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """What one worker with nothing to do takes: its share of a core, and statements."""
    with Workers(1) as workers:
        await asyncio.sleep(4.0)
        said, cpu, begin = await contender.statements(), workers.cpu(), time.monotonic()
        await asyncio.sleep(chosen.seconds)
        workers.check()
        cpu, seconds = workers.cpu() - cpu, time.monotonic() - begin
        # One of them is the question itself.
        said = await contender.statements() - said - 1
        return {"share": cpu / seconds, "statements": said / seconds, "rss": workers.rss()}


async def trickle(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    """A queue that is never longer than `count`: filled, emptied and filled again, in front of one worker."""
    with Workers(1) as workers:
        for _ in range(chosen.times):
            await contender.start_bulk(chosen.count)
            while await contender.left():
                await asyncio.sleep(0.02)
                workers.check()
    return {"stored": chosen.count * chosen.times}


async def fill(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    begin = time.perf_counter()
    if chosen.finished:
        await contender.fill_finished(chosen.finished)
    if chosen.scheduled:
        await contender.fill_scheduled(chosen.scheduled)
    return {"seconds": time.perf_counter() - begin}


VERBS = {each.__name__: each for each in (bulk, single, drain, latency, load, idle, trickle, fill)} | WORKFLOW_VERBS


# -- the command


def main(kind: type[Contender]) -> None:
    chosen = _arguments()
    contender = kind()
    if chosen.verb == "worker":
        contender.worker()
        return
    # So that `with` blocks end and no worker is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        answer = _answer(contender, chosen)
    except Lacking as lacking:
        answer = {"lacking": str(lacking)}
    print(json.dumps(answer), flush=True)


def _answer(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    if chosen.verb == "version":
        return {name: getattr(contender, name) for name in ("name", "store", "keeps", "version", "can_result")}
    if chosen.verb == "setup":
        contender.setup()
        return {}
    return _run(_ask(contender, chosen))


async def _ask(contender: Contender, chosen: argparse.Namespace) -> dict[str, Any]:
    await contender.open()
    try:
        return await VERBS[chosen.verb](contender, chosen)
    finally:
        await contender.close()


def _run(work: Coroutine[Any, Any, dict[str, Any]]) -> dict[str, Any]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="one contender of the benchmark")
    parser.add_argument("verb", choices=[*VERBS, "setup", "worker", "version"])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--callers", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--most", type=float, default=60.0)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--every", type=float, default=0.0)
    parser.add_argument("--load", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--finished", type=int, default=0)
    parser.add_argument("--scheduled", type=int, default=0)
    parser.add_argument("--shape", default="steps")
    parser.add_argument("--length", type=int, default=10)
    parser.add_argument("--group", type=int, default=1)
    return parser.parse_args()
