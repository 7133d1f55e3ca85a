"""The first turn of a workflow: where nothing has come for it, its claim says so, and nobody asks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell import App, workflow
from stepwell.engine import arrivals, runs, settle, turns
from stepwell.model.events import Event, EventType
from stepwell.model.ids import new_claim_id, new_run_id
from stepwell.model.outcome import Released
from stepwell.model.run import Claim, Wanted
from stepwell.model.turn import Advance, Consequences
from stepwell.replay.replay import LONG_AGO
from stepwell.store.pool import Transaction
from stepwell.worker.turns import turns as worker_turns
from tests.factory import a_start, a_worker, claimed

SOON = 30


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many turns were asked for at a time."""
    asked: list[int] = []
    ask = turns.news

    async def heard(tx: Any, claims: Sequence[Claim]) -> Any:
        asked.append(len(claims))
        return await ask(tx, claims)

    monkeypatch.setattr(turns, "news", heard)
    return asked


def define(app: App) -> tuple[Any, Any]:
    @app.step
    async def double(x: int) -> int:
        return 2 * x

    @app.workflow
    async def steps(x: int) -> int:
        return await double(await double(x))

    @app.workflow
    async def hears(x: int) -> int:
        return x + await workflow.signal("more", int)

    return steps, hears


async def test_nobody_asks_what_there_is_for_a_workflow_that_has_not_begun(app: App, asked: list[int]) -> None:
    steps, _ = define(app)
    async with app, app.worker():
        runs = await steps.start_many([(x,) for x in range(50)])
        assert [await run.result(SOON) for run in runs] == [4 * x for x in range(50)]
    assert asked == []


async def test_what_came_before_the_first_turn_is_found(app: App, asked: list[int]) -> None:
    _, hears = define(app)
    async with app:
        run = await hears.start(1)
        await run.signal("more", 2)
        async with app.worker():
            assert await run.result(SOON) == 3
    assert asked


async def test_a_first_turn_that_waited_long_for_its_slot_asks_anew(
    app: App, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_turns, "FRESH", 0.0)
    steps, _ = define(app)
    async with app, app.worker():
        assert await (await steps.start(1)).result(SOON) == 4
    assert asked


async def test_signals_that_race_the_first_turn_are_all_heard(app: App) -> None:
    @app.workflow
    async def adds(count: int) -> int:
        return sum([await workflow.signal("n", int) for _ in range(count)])

    async with app, app.worker():
        for _ in range(30):
            run = await adds.start(3)
            await asyncio.gather(*(run.signal("n", n) for n in range(3)))
            assert await run.result(SOON) == 3


async def test_what_comes_behind_the_claim_is_told_by_the_first_write(tx: Transaction) -> None:
    claim = await claimed(tx, a_start("flow", kind="workflow"))
    assert claim.fresh is not None
    assert await arrivals.arrive(tx, claim.id, signal(), Consequences())
    begun = Event(1, EventType.WORKFLOW_STARTED, claim.fresh)
    recorded = await turns.record(tx, [Advance(claim, recorded=1, events=[begun], to="stay").leave()])
    assert recorded[claim.id].arrived > 0


async def test_only_a_workflow_that_has_not_begun_is_fresh(tx: Transaction) -> None:
    assert (await claimed(tx, a_start("task"))).fresh is None
    begun = await claimed(tx, a_start("flow", kind="workflow"))
    assert begun.fresh is not None
    first = Event(1, EventType.WORKFLOW_STARTED, begun.fresh)
    await turns.record(tx, [Advance(begun, recorded=1, events=[first], to="stay").leave()])
    await settle.apply(tx, settle.plan([(begun, Released())]))
    assert (await claimed_again(tx, begun)).fresh is None


async def claimed_again(tx: Transaction, claim: Claim) -> Claim:
    wanted = Wanted(await a_worker(tx), None, [claim.name], 10, alone=True)
    (again,) = (await runs.claim(tx, wanted, new_claim_id())).claims
    return again


def signal() -> Event:
    return Event(0, EventType.SIGNAL_RECEIVED, LONG_AGO, name="more", value=b"1", id=new_run_id())
