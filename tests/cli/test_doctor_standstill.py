"""What `stepwell doctor` tells of work that stands still."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stepwell import Run, workflow
from stepwell.testing import Clock
from tests.factory import execute
from tests.waiting_for import until

HERE = Path(__file__).parent


@pytest.fixture
async def flows(stepwell: Any) -> AsyncIterator[Any]:
    for name in ("flows", "flows_changed"):
        sys.modules.pop(name, None)
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    module = import_module("flows")
    async with module.app:
        yield module


async def finding(stepwell: Any, subject: str) -> dict[str, Any]:
    said = await stepwell("doctor", "--json")
    (found,) = [each for each in said.json["findings"] if each["subject"] == subject]
    assert (said.code == 1) == any(each["verdict"] == "bad" for each in said.json["findings"])
    return {**found, "code": said.code}


async def waiting_for(run: Run[Any], signal: str) -> None:
    async def waits() -> bool:
        told = [each.facts.get("signal") for each in (await run.explain()).causes]
        return signal in told and (await run.info()).state == "waiting"

    await until(waits, within=15)


async def blocked(flows: Any) -> Run[Any]:
    """A workflow that has stopped at code that does not fit."""
    async with flows.app.worker():
        run = await flows.checkout.start(1)
        await waiting_for(run, "pay")
    changed = import_module("flows_changed")
    async with changed.app, changed.app.worker():
        await run.signal("pay", 1)

        async def is_blocked() -> bool:
            return "blocked" in {cause.code for cause in (await run.explain()).causes}

        await until(is_blocked, within=15)
    return run


async def test_doctor_tells_of_blocked_workflows_since_when_and_what_to_do(stepwell, flows, database):
    assert (await finding(stepwell, "blocked"))["verdict"] == "good"
    run = await blocked(flows)
    found = await finding(stepwell, "blocked")
    assert (found["verdict"], found["code"]) == ("bad", 1)
    assert found["says"].startswith("1 workflows wait for code that fits their history since 20")
    assert "flows.checkout (1)" in found["says"]
    assert f"`stepwell explain {run.id}`" in found["says"]
    assert "bring the old code back" in found["says"]
    assert "does not fit its history since 20" in (await stepwell("explain", run.id)).out
    async with database.transaction() as tx:  # as workers of earlier versions wrote it
        await execute(tx, "update stepwell.runs set blocked = blocked - 'at'")
    assert "fits their history: flows.checkout" in (await finding(stepwell, "blocked"))["says"]


@pytest.mark.parametrize("options", [{}, {"limit_key": "acme"}, {"priority": 9}])
async def test_doctor_names_what_no_live_worker_knows(stepwell, app, client, dsn, database, options):
    for _ in range(3):
        run = await client.definition("shop.renamed").options(
            **{name: value for name, value in options.items() if name != "limit_key"}
        ).start(1)  # fmt: skip
        if "limit_key" in options:
            async with database.transaction() as tx:
                await execute(tx, "update stepwell.runs set limit_key = 'acme', per_key = 1")
    assert "no worker is alive" in (await finding(stepwell, "names"))["says"]
    async with app.worker(name="web1"):
        await until(lambda: _alive(app), within=15)
        young = await finding(stepwell, "names")
        assert young["verdict"] == "look"
        assert "no live worker takes shop.renamed in queue default" in young["says"]
        assert "`stepwell explain " in young["says"]
        await Clock(dsn).skip("10m")
        old = await finding(stepwell, "names")
        assert (old["verdict"], old["code"]) == ("bad", 1)
        for each in (await client.runs(name="shop.renamed")).items:
            await client.run(each.id).cancel()
        assert (await finding(stepwell, "names"))["verdict"] == "good"
    assert run


async def test_doctor_names_what_waits_in_a_queue_that_nobody_serves(stepwell, app, client):
    await client.definition("shop.add").options(queue="reports").start(1)
    async with app.worker(queues=["mail"]):
        await until(lambda: _alive(app), within=15)
        assert "shop.add in queue reports (1)" in (await finding(stepwell, "names"))["says"]


async def test_doctor_tells_of_signals_that_nobody_waits_for(stepwell, app):
    @app.workflow(name="shop.ship")
    async def ship() -> None:
        await workflow.signal("shipped")

    async with app.worker():
        run = await ship.start()
        await waiting_for(run, "shipped")
        assert (await finding(stepwell, "signals"))["verdict"] == "good"
        for _ in range(2):
            await run.signal("shiped")
        await until(lambda: _untaken(run, 2), within=15)
        found = await finding(stepwell, "signals")
        assert found["verdict"] == "look"
        assert found["says"] == (
            "1 workflows wait for a signal, and others arrived that they have not taken. "
            f"shop.ship {run.id}, for one: the signal 'shiped' arrived twice, and it waits for 'shipped': a typo?"
        )
        await run.signal("shipped")
        await run.result(10)
    assert (await finding(stepwell, "signals"))["verdict"] == "good"


async def _alive(app: Any) -> bool:
    return any(each.state == "live" for each in await app.workers())


async def _untaken(run: Run[Any], count: int) -> bool:
    counts = [sum(each.facts["untaken"].values()) for each in (await run.explain()).causes if "untaken" in each.facts]
    return counts == [count]
