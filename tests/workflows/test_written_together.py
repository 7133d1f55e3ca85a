"""What turns write together: many small workflows take few statements, and one alone waits for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell import App
from stepwell.model.turn import Advance
from stepwell.worker.turns import writes

SOON = 30


def tapped(worker: Any) -> list[list[str | None]]:
    """Of each group that the worker writes: what its members do."""
    link, groups = worker._link, []
    advance = link.advance

    async def tap_advance(advances: Sequence[Advance], claim_id: Any) -> Any:
        groups.append([each.only for each in advances])
        return await advance(advances, claim_id)

    link.advance = tap_advance
    return groups


def define(app: App) -> Any:
    @app.step
    async def plus_one(x: int) -> int:
        return x + 1

    @app.workflow
    async def plus_three(x: int) -> int:
        return await plus_one(await plus_one(await plus_one(x)))

    return plus_three


async def test_many_small_workflows_take_few_statements(app: App) -> None:
    plus_three = define(app)
    async with app:
        runs = await plus_three.start_many([(x,) for x in range(300)])
        async with app.worker() as worker:
            groups = tapped(worker)
            assert [await run.result(SOON) for run in runs] == [x + 3 for x in range(300)]
    kinds = {kind: [group for group in groups if set(group) == {kind}] for kind in ("records", "completes")}
    assert len(kinds["records"]) + len(kinds["completes"]) == len(groups), "nothing goes with what is not of its kind"
    assert sum(map(len, kinds["completes"])) == 300
    assert len(kinds["completes"]) < 100
    assert len(kinds["records"]) < 300


async def test_a_workflow_alone_waits_for_nobody_to_complete_with(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writes, "PAUSE", 3600.0)
    plus_three = define(app)
    async with app, app.worker():
        assert await (await plus_three.start(1)).result(SOON) == 4


async def test_a_workflow_whose_code_has_ended_needs_no_slot_while_that_is_written(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold, begun = asyncio.Event(), asyncio.Event()

    @app.workflow
    async def first() -> int:
        return 1

    @app.task
    async def second() -> None:
        begun.set()

    async with app, app.worker(slots=1) as worker:
        link: Any = worker._link
        advance = link.advance

        async def later(advances: Sequence[Advance], claim_id: Any) -> Any:
            await hold.wait()
            return await advance(advances, claim_id)

        monkeypatch.setattr(link, "advance", later)
        one, two = await first.start(), await second.start()
        await asyncio.wait_for(begun.wait(), SOON)
        assert not hold.is_set(), "what the first has come to is not written yet"
        hold.set()
        assert await one.result(SOON) == 1
        await two.result(SOON)
