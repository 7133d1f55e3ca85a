"""What a workflow asks for at once is written in parts where it is much. Any of them may be the last of its turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import asyncpg
import pytest

from stepwell import App, Run, RunCancelled, State, workflow
from stepwell.replay import replay
from stepwell.worker.direct import DirectLink
from stepwell.worker.turns import children, drafts, inbox, run_turn
from stepwell.worker.turns.turn_state import TurnState
from tests.waiting_for import until
from tests.workflows.telling import reaches, types_of

Sql: TypeAlias = "asyncpg.Connection[Any]"
LOST = """update stepwell.runs set state = 'pending', claim_id = null, claimed_by = null, started_at = null
           where kind = 'workflow' and state = 'running'"""
"""A turn whose worker was given up for dead."""
SOON = 60
WIDE = 60


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "STRETCH", 7)
    monkeypatch.setattr(drafts, "PART", 5)
    monkeypatch.setattr(run_turn, "PART", 5)


class Fan:
    """A workflow of many tasks, which counts what it does."""

    def __init__(self, app: App, *, queue: str = "default") -> None:
        self.done: Counter[int] = Counter()
        self.gate = asyncio.Event()
        self.gate.set()

        @app.task(queue=queue)
        async def double(x: int) -> int:
            self.done[x] += 1
            return 2 * x

        @app.task
        async def waits(x: int) -> int:
            await self.gate.wait()
            return x

        @app.workflow
        async def fan(wide: int) -> int:
            workflow.publish("begun")
            return sum(await asyncio.gather(*(double(x) for x in range(wide))))

        @app.workflow
        async def slow(wide: int) -> int:
            return sum(await asyncio.gather(*(waits(x) for x in range(wide))))

        @app.workflow
        async def thinks_again(wide: int) -> list[str]:
            made = [asyncio.create_task(waits(x)) for x in range(wide)]
            await asyncio.sleep(0)
            for each in made[1:]:
                each.cancel()
            ended = await asyncio.gather(*made, return_exceptions=True)
            return [type(each).__name__ for each in ended]

        self.fan, self.slow, self.thinks_again = fan, slow, thinks_again


@asynccontextmanager
async def stopping_before(
    app: App, monkeypatch: pytest.MonkeyPatch, write: int, does: Callable[[], Any]
) -> AsyncIterator[Any]:
    """A worker. Before its nth write of a turn, something else happens."""
    advance, writes = DirectLink.advance, 0

    async def counted(link: DirectLink, advances: Any, claim_id: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes == write:
            await does()
        return await advance(link, advances, claim_id)

    with monkeypatch.context() as changed:
        changed.setattr(DirectLink, "advance", counted)
        async with app.worker(slots=10) as worker:
            yield worker


async def parts_of(run: Run[Any]) -> int:
    return [event.data.get("more") for event in await run.history()].count(True)


async def test_a_large_fan_out_is_written_in_parts_and_each_task_is_done_once(app: App, sql: Sql) -> None:
    of = Fan(app)
    async with app, app.worker(slots=10):
        for _ in range(3):  # the worker knows by then that they are quick, and takes them as it starts them
            of.done.clear()
            run = await of.fan.start(WIDE)
            assert await run.result(timeout=SOON) == WIDE * (WIDE - 1)
            assert of.done == dict.fromkeys(range(WIDE), 1)
            assert await parts_of(run) >= 1
            types = await types_of(run)
            assert types[2 : 2 + WIDE] == ["TaskScheduled"] * WIDE, "in the order in which the code asked for them"
            assert types.count("TaskCompleted") == WIDE
        assert await sql.fetchval("select count(*) from stepwell.runs") == 0
        assert (
            await sql.fetchval("select count(*) from stepwell.finished_runs where kind = 'task' and attempt > 1") == 0
        )


async def test_a_thousand_of_a_fan_out_are_claimed_as_they_are_copied(
    app: App, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "STRETCH", 100)
    monkeypatch.setattr(drafts, "PART", 400)
    monkeypatch.setattr(run_turn, "PART", 400)
    of = Fan(app)
    claimed: list[int] = []
    advance = DirectLink.advance

    async def noted(link: DirectLink, advances: Any, claim_id: Any) -> Any:
        claimed.append(sum(len(each.here) for each in advances))
        return await advance(link, advances, claim_id)

    monkeypatch.setattr(DirectLink, "advance", noted)
    async with app, app.worker():
        await (await of.fan.start(50)).result(timeout=SOON)
        run = await of.fan.start(2000)
        assert await run.result(timeout=SOON) == 2000 * 1999
    assert max(claimed) >= 400
    once = "select count(*) from stepwell.finished_runs where attempt = 1 and started_at is not null"
    assert await sql.fetchval(once) == 2052


async def test_a_turn_stays_until_its_code_has_been_told_of_all_that_has_ended(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing of its own is run any more: whoever ends it then settles the rest in the long way."""
    monkeypatch.setattr(inbox, "AT_ONCE", 1)
    for module in (drafts, run_turn):
        monkeypatch.setattr(module, "PART", 200)
    of = Fan(app)
    async with app, app.worker():
        await (await of.fan.start(50)).result(timeout=SOON)
        run = await of.fan.start(1000)
        assert await run.result(timeout=SOON) == 1000 * 999
        assert (await run.info()).attempt == 1


async def test_what_may_not_be_claimed_here_waits_in_its_queue(
    app: App, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.engine.runs.MANY", 3)
    of = Fan(app, queue="held")
    async with app, app.worker(slots=10):
        await (await of.fan.start(20)).result(timeout=SOON)
        await app.queue("held").pause()
        run = await of.fan.start(WIDE)

        async def all_there() -> bool:
            there = "select count(*) from stepwell.runs where queue = 'held' and state = 'pending'"
            return await sql.fetchval(there) == WIDE

        await until(all_there)
        await app.queue("held").resume()
        assert await run.result(timeout=SOON) == WIDE * (WIDE - 1)


@pytest.mark.parametrize("write", [2, 3])
async def test_a_turn_that_is_lost_between_two_parts_is_gone_on_with(
    app: App, sql: Sql, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    of = Fan(app)

    async def lose() -> None:
        await sql.execute(LOST)

    async with app, stopping_before(app, monkeypatch, write, lose):
        run = await of.fan.start(WIDE)
        assert await run.result(timeout=SOON) == WIDE * (WIDE - 1)
    assert (await types_of(run)).count("TaskScheduled") == WIDE
    assert (await run.info()).attempt >= 2
    assert set(of.done) == set(range(WIDE))


async def test_a_turn_that_ends_late_leaves_the_next_one_of_its_run_its_ears(
    app: App, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both on one worker: the first has lost its claim and does not know it, when the second begins."""

    held, gate, first = asyncio.Event(), asyncio.Event(), []
    run: Run[str]

    @app.step
    async def done() -> None: ...

    @app.step
    async def hold() -> None:
        held.set()
        await gate.wait()

    @app.workflow
    async def waits() -> str:
        await done()
        async with asyncio.TaskGroup() as group:
            group.create_task(hold())  # by which the turn stays: nobody but itself hears of the signal
            said = await workflow.signal("go", str)
            gate.set()
        return said

    async def lose() -> None:
        first.append(worker._turns._under_way[run.id])
        await sql.execute(LOST)
        await until(begun, within=SOON)

    async def begun() -> bool:
        worker._lanes.heard()
        return worker._turns._under_way.get(run.id) not in (*first, None)

    async def first_is_over() -> bool:
        return all(turn.state is TurnState.ENDED for turn in first)

    async with app, stopping_before(app, monkeypatch, 2, lose) as worker:
        run = await waits.start()
        await asyncio.wait_for(held.wait(), SOON)
        await until(first_is_over, within=SOON)
        await run.signal("go", "gone")
        assert await run.result(timeout=20) == "gone"


async def test_a_pause_between_two_parts_holds_when_all_are_written(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    of = Fan(app)
    run: Run[int]

    async def pause() -> None:
        await run.pause()

    async with app, stopping_before(app, monkeypatch, 2, pause):
        run = await of.fan.start(WIDE)
        await reaches(run, State.PAUSED, within=SOON)
        assert (await types_of(run)).count("TaskScheduled") == WIDE
        await run.resume()
        assert await run.result(timeout=SOON) == WIDE * (WIDE - 1)
    assert of.done == dict.fromkeys(range(WIDE), 1)


async def test_a_cancel_between_two_parts_ends_all_that_was_started(
    app: App, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Fan(app)
    of.gate.clear()
    run: Run[int]

    async def cancel() -> None:
        await run.cancel()

    async with app, stopping_before(app, monkeypatch, 2, cancel):
        run = await of.slow.start(WIDE)
        with pytest.raises(RunCancelled):
            await run.result(timeout=SOON)

        async def none_left() -> bool:
            return await sql.fetchval("select count(*) from stepwell.runs") == 0

        await until(none_left, within=SOON)
        types = await types_of(run)
        assert types.count("TaskScheduled") == types.count("TaskCancelled") == WIDE


async def test_what_is_taken_back_after_its_part_was_written_is_cancelled_and_told_again_so(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nobody has heard of never was. What was written has begun, whichever code goes on with it."""
    monkeypatch.setattr("stepwell.worker.turns.turns.Turns.__init__.__kwdefaults__", {"keep": 0})
    monkeypatch.setattr(children, "HOLD", 0.0)
    of = Fan(app)
    of.gate.clear()
    async with app, app.worker(slots=10):
        run = await of.thinks_again.start(WIDE)
        await reaches(run, State.WAITING, within=SOON)
        types = await types_of(run)
        assert types.count("TaskScheduled") == types.count("TaskCancelled") + 1 > 5
        of.gate.set()
        assert await run.result(timeout=SOON) == ["int"] + ["CancelledError"] * (WIDE - 1)


async def test_a_fork_of_what_was_written_in_part_goes_on_with_the_rest(
    app: App, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = Fan(app)
    hold, held = asyncio.Event(), asyncio.Event()
    forks: list[Run[Any]] = []
    run: Run[int]

    async def fork() -> None:
        history = await run.history()
        assert history[-1].data.get("more") is True
        forks.append(await run.fork(at=len(history)))
        held.set()
        await hold.wait()

    async with app, stopping_before(app, monkeypatch, 2, fork):
        run = await of.fan.start(WIDE)
        await asyncio.wait_for(held.wait(), SOON)
        hold.set()
        for each in (run, *forks):
            assert await each.result(timeout=SOON) == WIDE * (WIDE - 1)
            assert (await types_of(each)).count("TaskScheduled") == WIDE
