"""The order of measurements: a small one to find the pace, then rounds in which Stepwell and the limit take turns.

Latency is measured after all drains. Workers announce what finishes for a while after someone waited for a result,
and a drain should not pay for that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial

from stepwell.app import App
from stepwell.cli.measuring.bare import CALLERS, Bare
from stepwell.cli.measuring.clock import Eye, Probe, percentile, probes, rate, times
from stepwell.cli.measuring.figures import LIMIT, PERCENTS, Figures
from stepwell.cli.measuring.ours import ONE, PROBES, TWO, Ours
from stepwell.cli.measuring.processes import Workers, workers
from stepwell.concurrency.group_commit import FLIGHTS
from stepwell.store.pool import Database, Transaction, reaching

MINUTE = 60.0
PACES = (500, 2_000)
"""Runs of the small measurements before the rounds."""
FEWEST = 200
ROUNDS = 5
STARTING, PROBING, SHORTLY = 0.6, 1.2, 0.2
"""Seconds, of one of five rounds, for starts one by one, for probes, and for what is measured with one statement."""
TIMED = 4 * STARTING + 2 * PROBING + 3 * SHORTLY
MOST_PROBES = 200
MOST_TIMES = 100
STEPS = 9
"""Steps of a round."""

Tell = Callable[[str], None]
"""Told what is measured next."""


@dataclass(frozen=True, slots=True)
class Plan:
    runs: int
    rounds: int
    share: float = 1.0
    """The share of its usual time that a measurement by time takes; 1 in one of five rounds."""

    @property
    def steps(self) -> int:
        return len(PACES) + self.rounds * STEPS


class Bench:
    """Everything open that measuring needs."""

    def __init__(self, ours: Ours, bare: Bare, eye: Eye, hired: Workers, tell: Tell) -> None:
        self._ours, self._bare, self._eye = ours, bare, eye
        self._hired = hired
        self._tell = tell
        self.figures = Figures()

    async def measure(self, wanted: Plan, begin: float) -> Plan:
        """All rounds, so that they end about a minute after `begin`; what was done."""
        plan = replace(wanted, share=min(1.0, ROUNDS / wanted.rounds))
        plan = await self._paced(plan, begin)
        for turn in range(plan.rounds):
            await self._in_turns(turn, self._drain_ours, self._drain_bare, plan)
            await self._in_turns(turn, self._start_ours, self._start_bare, plan)
            await self._statements(plan)
        for turn in range(plan.rounds):
            await self._in_turns(turn, self._probe_ours, self._probe_bare, plan)
        return plan

    async def _paced(self, plan: Plan, begin: float) -> Plan:
        """Plan as many runs as there is time for."""
        cost = 0.0
        for runs in PACES:
            self._tell("finding the pace")
            small = replace(plan, runs=min(runs, plan.runs), share=SHORTLY)
            asked = time.perf_counter()
            await self._drain_ours(small, tell=_silent)
            await self._drain_bare(small, tell=_silent)
            cost = (time.perf_counter() - asked) / small.runs
        await self._start_ours(small, tell=_silent)
        self.figures = Figures()
        left = MINUTE - (time.monotonic() - begin) - plan.rounds * plan.share * TIMED
        affordable = int(left / plan.rounds / cost) // 100 * 100
        return replace(plan, runs=min(plan.runs, max(FEWEST, affordable)))

    async def _in_turns(
        self, turn: int, ours: Callable[..., Awaitable[None]], bare: Callable[..., Awaitable[None]], plan: Plan
    ) -> None:
        for side in (ours, bare) if turn % 2 == 0 else (bare, ours):
            await side(plan, tell=self._tell)

    async def _drain_ours(self, plan: Plan, tell: Tell) -> None:
        for queue, name in ((ONE, "drain"), (TWO, "drain2")):
            tell(f"start in bulk and {name.replace('2', ' with two workers')}")
            await self._eye.empty()
            self.figures.add("bulk", await self._ours.bulk(plan.runs, queue))
            self.figures.add(name, await self._ours.drain(plan.runs, queue, self._hired.check))

    async def _drain_bare(self, plan: Plan, tell: Tell) -> None:
        for connections, name in ((2, "drain"), (4, "drain2")):
            tell(f"the same statements alone, on {connections} connections")
            await self._eye.empty()
            self.figures.add("bulk" + LIMIT, await self._bare.bulk(plan.runs))
            await self._bare.drain(connections)
            self.figures.add(name + LIMIT, await self._eye.drained(plan.runs, self._hired.check))

    async def _start_ours(self, plan: Plan, tell: Tell) -> None:
        tell("start one by one")
        await self._eye.empty()
        seconds, start = STARTING * plan.share, self._ours.start
        self.figures.add("single", await rate(start, callers=1, seconds=seconds, most=plan.runs))
        self.figures.add("crowd", await rate(start, callers=CALLERS, seconds=seconds, most=plan.runs))

    async def _start_bare(self, plan: Plan, tell: Tell) -> None:
        tell("the same statements alone")
        await self._eye.empty()
        seconds, group = STARTING * plan.share, CALLERS // FLIGHTS
        single = await rate(self._bare.start, callers=1, seconds=seconds, most=plan.runs)
        self.figures.add("single" + LIMIT, single)
        most = max(FLIGHTS, plan.runs // group)
        flights = (partial(self._bare.start_group, flight) for flight in range(FLIGHTS))
        groups = await asyncio.gather(*(rate(each, callers=1, seconds=seconds, most=most) for each in flights))
        self.figures.add("crowd" + LIMIT, sum(groups) * group)

    async def _statements(self, plan: Plan) -> None:
        self._tell("a round trip, a commit, a NOTIFY")
        for name, call in (
            ("round_trip", self._bare.round_trip),
            ("commit", self._bare.commit),
            ("wake", self._bare.wake),
        ):
            taken = await times(call, seconds=SHORTLY * plan.share, most=min(MOST_TIMES, plan.runs))
            self.figures.add(name, percentile(taken, 50))

    async def _probe_ours(self, plan: Plan, tell: Tell) -> None:
        await self._probes(self._ours.probe, plan, tell, suffix="")

    async def _probe_bare(self, plan: Plan, tell: Tell) -> None:
        await self._probes(self._bare.probe, plan, tell, suffix=LIMIT)

    async def _probes(self, probe: Callable[[int], Awaitable[Probe]], plan: Plan, tell: Tell, *, suffix: str) -> None:
        tell("one run at a time")
        await self._eye.empty()
        seconds, most = PROBING * plan.share, min(MOST_PROBES, plan.runs)
        await probes(probe, seconds=seconds / 4, most=most // 10)
        taken = await probes(probe, seconds=seconds * 3 / 4, most=most)
        for percent in PERCENTS:
            self.figures.add(f"body{percent}{suffix}", percentile([each.body for each in taken], percent))
            self.figures.add(f"result{percent}{suffix}", percentile([each.result for each in taken], percent))


@asynccontextmanager
async def opened(database: Database, tell: Tell) -> AsyncIterator[Bench]:
    """An app, two workers and the bare statements, in the schema of this database."""
    with reaching():
        async with AsyncExitStack() as closing:
            app = await closing.enter_async_context(App(database.dsn, schema=database.schema))
            bare = Bare(database)
            closing.callback(bare.close)
            look = await database.connect()
            closing.callback(look.terminate)
            eye = Eye(Transaction(look, database.statements), database.schema)
            ours = Ours(app, database, eye)
            closing.push_async_callback(ours.close)
            hired = await closing.enter_async_context(workers(database, [ONE, TWO, PROBES], [TWO]))
            await bare.open()
            yield Bench(ours, bare, eye, hired, tell)


def _silent(_what: str) -> None:
    return None
