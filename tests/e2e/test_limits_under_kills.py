"""Eight worker processes, one of which is killed every now and then: no limit is ever exceeded, no slot is lost."""

from __future__ import annotations

import asyncio
import json
import random
import signal
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest
from e2e_processes import Hire, hiring

from stepwell import App, Retry

Sql: TypeAlias = "asyncpg.Connection[Any]"
CAP, PROCESSES, KILLS, RUNS = 4, 8, 8, 200
PATIENT = Retry(attempts=1000, delay=0.01, max_delay=0.05)
NARROW, TENANTS = "gauge_app.counted", "gauge_app.counted_by"


@pytest.mark.timeout(150)
async def test_a_gauge_read_at_every_start_never_exceeds_the_limits(
    dsn: str, place: Path, client: App, sql: Sql
) -> None:
    await client.queue("narrow").set(concurrency=CAP)
    async with hiring(dsn, place, lease="2s") as hire:
        workers = list(await asyncio.gather(*(hire(app="gauge_app:app") for _ in range(PROCESSES))))
        narrow = (
            await client.definition(NARROW)
            .options(queue="narrow", retry=PATIENT)
            .start_many([(n,) for n in range(RUNS)])
        )
        by_tenant = client.definition(TENANTS).options(
            queue="tenants", retry=PATIENT, limit_by=lambda tenant, _n: tenant, per_key=2
        )
        tenants = await by_tenant.start_many([(f"tenant{n % 3}", n) for n in range(RUNS // 2)])
        await _kill_now_and_then(workers, hire)
        async with asyncio.timeout(100):
            assert [await run.result() for run in narrow] == list(range(RUNS))
            assert [await run.result() for run in tenants] == list(range(RUNS // 2))
        assert await sql.fetchval("select count(*) from stepwell.runs") == 0, "every slot is free again"
    gauge = [json.loads(line) for line in (place / "gauge").read_text().splitlines()]
    narrows = [max(live.values()) for queue, live in gauge if queue == "narrow"]
    tenants_live = [max(live.values()) for queue, live in gauge if queue == "tenants"]
    print(f"\n{len(narrows)} starts, at most {max(narrows)} of {CAP}")
    print(f"{len(tenants_live)} starts by tenant, at most {max(tenants_live)} of 2")
    assert len(narrows) >= RUNS
    assert max(narrows) == CAP
    assert max(tenants_live) == 2


async def _kill_now_and_then(workers: list[Any], hire: Hire) -> None:
    chance = random.Random(7)
    for _ in range(KILLS):
        await asyncio.sleep(chance.uniform(0.1, 0.5))
        victim = workers.pop(chance.randrange(len(workers)))
        victim.signal(signal.SIGKILL)
        workers.append(await hire(app="gauge_app:app", ready=False))
