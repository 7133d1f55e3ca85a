"""Room that a run leaves in a limited queue is announced, whoever could use it and however the run ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeAlias

import asyncpg
import pytest

from stepwell import App, Limits, Retry
from stepwell.dispatch.base import Channel
from stepwell.engine import queues, runs
from stepwell.model.ids import new_claim_id
from stepwell.model.run import Wanted
from stepwell.services.reaper import Reaper
from stepwell.store.pool import Database
from tests.factory import a_start, a_worker
from tests.waiting_for import until

Sql: TypeAlias = "asyncpg.Connection[Any]"


@pytest.fixture
async def sql(dsn: str) -> AsyncIterator[Sql]:
    connection = await asyncpg.connect(dsn)
    yield connection
    await connection.close()


async def words(app: App, *channels: Channel) -> list[str]:
    """What is announced from now on, as it is heard."""
    heard: list[str] = []

    def hear(channel: Channel, told: Sequence[str] | None) -> None:
        heard.extend(f"{channel} {each}" for each in told or ())

    for channel in channels:
        app._opening.wakes.subscribe(channel, partial(hear, channel))
    app._opening.wakes.announce(channels[0], ["now"])
    await until(lambda: told(heard, f"{channels[0]} now"))
    return heard


async def told(heard: list[str], word: str) -> bool:
    return word in heard


@pytest.mark.parametrize("ends", ["completed", "failed", "cancelled", "cancelled with others", "cancelled in a tx"])
async def test_room_that_a_run_leaves_is_announced_even_if_it_was_claimed_before_there_was_a_limit(
    app: App, sql: Sql, ends: str
) -> None:
    gate, began = asyncio.Event(), asyncio.Event()

    @app.task(queue="narrow", retry=Retry(attempts=1))
    async def hold() -> None:
        began.set()
        await gate.wait()
        if ends == "failed":
            raise ValueError

    async with app.worker():
        run = await hold.start()
        await began.wait()
        heard = await words(app, Channel.LIMITED, Channel.PENDING)
        await app.queue("narrow").set(concurrency=1)
        await until(lambda: told(heard, "limited narrow"))
        await until(lambda: told(heard, "pending narrow"))
        heard.clear()
        match ends:
            case "cancelled":
                await run.cancel()
            case "cancelled with others":
                await app._opening.client.many.cancel([run.id])
            case "cancelled in a tx":
                async with sql.transaction():
                    await run.cancel(tx=sql)
            case _:
                gate.set()
        await until(lambda: told(heard, "pending narrow"))


async def test_room_that_a_lost_worker_leaves_is_announced(app: App, database: Database, sql: Sql) -> None:
    heard = await words(app, Channel.PENDING)
    await queues.set_limits(database, "mail", Limits(concurrency=1), sets={"concurrency"})
    await runs.start(database, [a_start(queue="mail", retry=Retry(attempts=1))])
    worker = await a_worker(database)  # type: ignore[arg-type]
    await runs.claim_limited(database, Wanted(worker, None, ["tests.task"], 1, alone=True), new_claim_id())
    await sql.execute("update stepwell.workers set lease_until = now() - interval '1 minute'")
    reaper = Reaper(database, app._opening.wakes, app.telemetry, calm=timedelta(0))
    assert (await reaper.reap())[0] == 1
    await until(lambda: told(heard, "pending mail"))
