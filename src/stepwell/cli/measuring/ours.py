"""Stepwell through what its users have: an app, `start`, `start_many`, `result`, and workers."""

from __future__ import annotations

import time
from collections.abc import Callable

from stepwell.app import App
from stepwell.cli.measuring.clock import Eye, Probe
from stepwell.cli.measuring.processes import Unmeasured
from stepwell.cli.measuring.tasks import TEXT, TO, define
from stepwell.dispatch.base import Channel
from stepwell.dispatch.postgres import PostgresWakes
from stepwell.store.pool import Database
from stepwell.store.statements import in_schema

ONE, TWO, PROBES, NOBODY = "one", "two", "probes", "nobody"
"""The queues: of one worker, of both, of single probes, and one that nobody serves."""
PATIENCE = 30.0

_PAUSE = """
insert into stepwell.queues (name, paused_at) values ($1, now())
    on conflict (name) do update set paused_at = now()
"""
_GO_ON = "update stepwell.queues set paused_at = null where name = $1"


class Ours:
    def __init__(self, app: App, database: Database, eye: Eye) -> None:
        self._tasks = define(app)
        self._database = database
        self._eye = eye
        self._wakes = PostgresWakes(database)
        self._probe = self._tasks.probe.options(queue=PROBES)
        self._single = self._tasks.noop.options(queue=NOBODY)

    async def close(self) -> None:
        await self._wakes.close()

    async def bulk(self, count: int, queue: str) -> float:
        """Runs per second, into a queue that waits until it is drained."""
        await self._say(_PAUSE, queue)
        task = self._tasks.noop.options(queue=queue)
        calls = [(TO, number, TEXT) for number in range(count)]
        begin = time.perf_counter()
        await task.start_many(calls)
        return count / (time.perf_counter() - begin)

    async def drain(self, count: int, queue: str, check: Callable[[], None]) -> float:
        await self._say(_GO_ON, queue)
        self._wakes.announce(Channel.PENDING, [queue])
        return await self._eye.drained(count, check)

    async def start(self, number: int) -> None:
        await self._single.start(TO, number, TEXT)

    async def probe(self, number: int) -> Probe:
        begin = time.monotonic()
        run = await self._probe.start(TO, number, TEXT)
        try:
            began = await run.result(timeout=PATIENCE)
        except TimeoutError:
            raise Unmeasured(f"no worker ran a probe within {PATIENCE:.0f} s") from None
        return Probe((began - begin) * 1000, (time.monotonic() - begin) * 1000)

    async def _say(self, sql: str, queue: str) -> None:
        async with self._database.transaction() as tx:
            await tx.connection.fetch(in_schema(sql, self._database.schema), queue)
