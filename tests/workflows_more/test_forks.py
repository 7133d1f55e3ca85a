"""Forks: a new run that begins with a part of another's history; and the retry of a failed workflow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from stepwell import App, InvalidSetting, NotFound, Retry, Run, RunFailed, UsageError, workflow
from stepwell.client.client import Client
from stepwell.engine import forks, runs
from stepwell.model.ids import new_run_id
from stepwell.store.pool import Database
from stepwell.testing import Clock
from tests.waiting_for import until

ONCE = Retry(attempts=1)


async def types(run: Run[Any]) -> list[str]:
    return [event.type for event in await run.history()]


async def place_of(run: Run[Any], type: str, *, nth: int = 0) -> int:
    """The number of an event of this type."""
    return [event.idx for event in await run.history() if event.type == type][nth]


async def until_state(run: Run[Any], *states: str) -> None:
    await until(lambda: _is(run, states), within=15)


async def _is(run: Run[Any], states: Sequence[str]) -> bool:
    return (await run.info()).state in states


class Shop:
    """Two tasks with a signal between them, and what they were called with."""

    def __init__(self, app: App) -> None:
        self.calls: list[tuple[str, int]] = []
        self.broken = False

        @app.task(retry=ONCE)
        async def reserve(order: int) -> int:
            self.calls.append(("reserve", order))
            return order * 10

        @app.task(retry=ONCE)
        async def charge(order: int) -> int:
            self.calls.append(("charge", order))
            if self.broken:
                raise ValueError("declined")
            return order * 100

        @app.workflow
        async def checkout(order: int) -> int:
            held = await reserve(order)
            workflow.publish({"held": held})
            paid = await workflow.signal("pay", int)
            charged = await charge(order)
            return held + paid + charged

        self.checkout, self.charge, self.reserve = checkout, charge, reserve

    async def paying(self, order: int) -> Run[int]:
        """A run that has waited for its signal, and has it now."""
        run = await self.checkout.start(order)
        await until(lambda: run.state(), within=15)
        await run.signal("pay", 5)
        return run


async def test_a_fork_goes_on_from_the_event_with_all_that_came_before(app: App) -> None:
    shop = Shop(app)
    async with app.worker():
        run = await shop.paying(1)
        assert await run.result(timeout=20) == 115
        at = await place_of(run, "SignalReceived") - 1
        shop.calls.clear()
        fork = await run.fork(at=at)
        assert fork.id != run.id
        await until_state(fork, "waiting")
        assert await fork.state() == {"held": 10}
        await fork.signal("pay", 7)
        assert await fork.result(timeout=20) == 117
        assert shop.calls == [("charge", 1)]
        info = await fork.info()
        assert (info.retry_of, info.kind, info.name) == (run.id, "workflow", shop.checkout.name)
        old, new = await run.history(), await fork.history()
        assert [(e.idx, e.type, e.at) for e in old[:at]] == [(e.idx, e.type, e.at) for e in new[:at]]
        assert [e.idx for e in new] == list(range(1, len(new) + 1))
        assert new[0].data["run"] == str(run.id)


async def test_what_was_under_way_is_started_anew_for_the_fork(app: App) -> None:
    gate = asyncio.Event()
    called: list[str] = []

    @app.task(retry=ONCE)
    async def slow(what: str) -> str:
        called.append(what)
        await gate.wait()
        return what

    @app.workflow
    async def child(what: str) -> str:
        return await slow(what)

    @app.workflow
    async def both() -> list[str]:
        return list(await asyncio.gather(slow("task"), child("child"), slow("other")))

    async with app.worker():
        run = await both.start()
        await until(lambda: _answer(len(called) == 3))
        fork = await run.fork(at=len(await run.history()))
        await until(lambda: _answer(len(called) == 6), within=15)
        olds, news = [{child.id for child in await each.children()} for each in (run, fork)]
        assert len(news) == 3
        assert not olds & news
        for each in await fork.children():
            info = await each.info()
            assert (info.parent_id, info.root_id) == (fork.id, fork.id)
            assert info.retry_of in olds
        gate.set()
        assert await fork.result(timeout=20) == ["task", "child", "other"]
        assert await run.result(timeout=20) == ["task", "child", "other"]
    assert sorted(called) == ["child", "child", "other", "other", "task", "task"]


async def _answer(value: bool) -> bool:
    return value


async def test_a_cut_in_the_middle_of_what_code_did_upon_an_event_is_before_that_event(app: App) -> None:
    shop = Shop(app)
    async with app.worker():
        run = await shop.paying(1)
        await run.result(timeout=20)
        found = await types(run)
        upon = found.index("TaskCompleted") + 1  # behind it stands StatePublished
        assert found[upon] == "StatePublished"
        fork = await run.fork(at=upon)
        # Before the first task ended: it is started anew.
        await until_state(fork, "waiting")
        assert shop.calls.count(("reserve", 1)) == 2
        await fork.signal("pay", 1)
        assert await fork.result(timeout=20) == 111


async def test_from_the_very_beginning(app: App) -> None:
    shop = Shop(app)
    run = await shop.checkout.start(3)
    fork = await run.fork(at=0)
    async with app.worker():
        for each in (run, fork):
            await each.signal("pay", 1)
            assert await each.result(timeout=20) == 331


async def test_signals_that_nobody_had_waited_for_are_there_in_the_fork(app: App) -> None:
    shop = Shop(app)
    async with app.worker():
        run = await shop.checkout.start(1)
        await until_state(run, "waiting")
        await run.signal("unheard", "of")
        await run.signal("pay", 1)
        await run.result(timeout=20)
        fork = await run.fork(at=await place_of(run, "TaskScheduled", nth=1))
        assert await fork.result(timeout=20) == 111
        assert "unheard" in [event.data.get("name") for event in await fork.history()]


async def test_timers_have_what_was_left_of_them(app: App, dsn: str) -> None:
    @app.workflow
    async def sleepy() -> str:
        try:
            return await workflow.signal("word", str, timeout=3600)
        except TimeoutError:
            return "silence"

    async with app.worker():
        run = await sleepy.start()
        await until_state(run, "waiting")
        connection = await asyncpg.connect(dsn)
        await connection.execute("alter table stepwell.events disable trigger all")
        await connection.execute("update stepwell.events set at = at - interval '2 hours'")
        await connection.execute(
            "update stepwell.events set data = jsonb_set(data, '{when}', to_jsonb((data ->> 'when')::timestamptz - "
            "interval '2 hours')) where data ? 'when'"
        )
        await connection.execute("alter table stepwell.events enable trigger all")
        await connection.close()
        fork = await run.fork(at=2)
        await until_state(fork, "waiting")
        due = (await fork.info()).due_at
        assert due is not None
        left = (due - (await fork.info()).created_at).total_seconds()
        assert 3500 < left <= 3601
        await fork.signal("word", "hello")
        assert await fork.result(timeout=20) == "hello"


async def test_what_cannot_be_forked_is_refused_with_a_reason(app: App) -> None:
    shop = Shop(app)
    async with app.worker():
        run = await shop.paying(1)
        await run.result(timeout=20)
        last = len(await run.history())
        with pytest.raises(InvalidSetting, match=f"events 1 to {last}"):
            await run.fork(at=last + 1)
        with pytest.raises(InvalidSetting, match="at = -1: a whole number from 0"):
            await run.fork(at=-1)
        with pytest.raises(InvalidSetting, match="this event is its end, WorkflowCompleted"):
            await run.fork(at=last)
        task = await shop.reserve.start(1)
        with pytest.raises(UsageError, match="only a workflow has a history"):
            await task.fork(at=1)
        with pytest.raises(NotFound):
            await app.run(new_run_id()).fork(at=1)


async def test_a_child_that_is_no_longer_kept_is_told_and_nothing_is_started(app: App, dsn: str) -> None:
    shop = Shop(app)
    async with app.worker():
        run = await shop.paying(1)
        await run.result(timeout=20)
    at = await place_of(run, "TaskScheduled")
    connection = await asyncpg.connect(dsn)
    await connection.execute("delete from stepwell.finished_runs where parent_id = $1", run.id)
    before = await connection.fetchval("select count(*) from stepwell.all_runs")
    with pytest.raises(UsageError, match="no longer kept"):
        await run.fork(at=at)
    assert await connection.fetchval("select count(*) from stepwell.all_runs") == before
    await connection.close()


async def test_a_fork_draws_the_same_random_numbers_as_its_origin(app: App) -> None:
    @app.workflow
    async def dice() -> list[int]:
        first = workflow.random.randrange(10**9)
        await workflow.signal("go", int)
        return [first, workflow.random.randrange(10**9)]

    async with app.worker():
        run = await dice.start()
        await run.signal("go", 1)
        thrown = await run.result(timeout=20)
        fork = await run.fork(at=1)
        await fork.signal("go", 1)
        assert await fork.result(timeout=20) == thrown
        again = await fork.fork(at=1)
        await again.signal("go", 1)
        assert await again.result(timeout=20) == thrown


# -- retry


async def test_a_failed_workflow_goes_on_before_the_failure_that_ended_it(app: App) -> None:
    shop = Shop(app)
    shop.broken = True
    async with app.worker():
        run = await shop.paying(1)
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        shop.broken = False
        again = await run.retry()
        assert await again.result(timeout=20) == 115
    assert shop.calls == [("reserve", 1), ("charge", 1), ("charge", 1)]
    assert (await again.info()).retry_of == run.id


async def test_a_failed_step_is_run_again(app: App) -> None:
    tries: list[int] = []

    @app.step
    async def flaky() -> str:
        tries.append(1)
        if len(tries) < 2:
            raise ValueError("not yet")
        return "done"

    @app.workflow
    async def steps() -> str:
        return await flaky()

    async with app.worker():
        run = await steps.start()
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        assert await (await run.retry()).result(timeout=20) == "done"


async def test_a_signal_that_did_not_come_in_time_is_waited_for_once_more(app: App) -> None:
    @app.workflow
    async def impatient() -> int:
        return await workflow.signal("late", int, timeout="1h")

    async with app.worker():
        run = await impatient.start()
        await until_state(run, "waiting")
        await Clock(app.dsn).skip("2h")
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        again = await run.retry()
        await again.signal("late", 7)
        assert await again.result(timeout=20) == 7


async def test_a_failure_of_its_own_code_goes_on_before_its_end_with_the_code_of_now(app: App) -> None:
    fixed = False
    counted: list[int] = []

    @app.task
    async def count() -> int:
        counted.append(1)
        return 1

    @app.workflow
    async def buggy() -> str:
        await count()
        if not fixed:
            raise ValueError("a bug")
        return "fixed"

    async with app.worker():
        run = await buggy.start()
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        fixed = True
        assert await (await run.retry()).result(timeout=20) == "fixed"
    assert len(counted) == 1


async def test_a_workflow_that_completed_begins_anew(app: App) -> None:
    shop = Shop(app)
    async with app.worker():
        run = await shop.paying(1)
        await run.result(timeout=20)
        again = await run.retry()
        await again.signal("pay", 6)
        assert await again.result(timeout=20) == 116
    assert shop.calls.count(("reserve", 1)) == 2


async def test_many_at_once(app: App) -> None:
    shop = Shop(app)
    shop.broken = True
    async with app.worker():
        failing = [await shop.checkout.start(number) for number in range(1, 6)]
        task = await shop.charge.start(9)
        for run in failing:
            await run.signal("pay", 0)
        for run in (*failing, task):
            with pytest.raises(RunFailed):
                await run.result(timeout=20)
        shop.broken = False
        shop.calls.clear()
        client = app.door
        assert isinstance(client, Client)
        ids: list[UUID] = [*(run.id for run in failing), task.id]
        started = await client.many.retry(ids)
        assert started.keys() == set(ids)
        for number, run in enumerate(failing, 1):
            assert await app.run(started[run.id]).result(timeout=20) == number * 110
    assert not [call for call in shop.calls if call[0] == "reserve"]


# -- when an answer is lost


async def test_a_fork_that_is_asked_for_again_is_made_once(app: App, database: Database) -> None:
    shop = Shop(app)
    async with app.worker():
        run = await shop.checkout.start(1)
        await until(run.state, within=15)
    at, new_id = await place_of(run, "TaskScheduled"), new_run_id()
    for again in (False, True, True):
        async with database.transaction() as tx:
            await forks.fork(tx, run.id, new_id, at=at, again=again)
    fork = app.run(new_id)
    assert len(await fork.history()) == at
    assert len(await fork.children()) == 1
    async with database.transaction() as tx:
        # However late the first try comes: it is known that it was given up.
        late = new_run_id()
        await runs.note_repeated_starts(tx, [late])
        assert await forks.fork(tx, run.id, late, at=at) == set()
    with pytest.raises(NotFound):
        await app.run(late).info()
    async with app.worker():
        await fork.signal("pay", 5)
        assert await fork.result(timeout=20) == 115


async def test_one_that_cannot_be_retried_keeps_no_other_from_it(app: App, dsn: str) -> None:
    shop = Shop(app)
    shop.broken = True
    async with app.worker():
        gone, kept = [await shop.paying(order) for order in (1, 2)]
        for run in (gone, kept):
            with pytest.raises(RunFailed):
                await run.result(timeout=20)
    connection = await asyncpg.connect(dsn)
    await connection.execute("delete from stepwell.finished_runs where parent_id = $1", gone.id)
    await connection.close()
    client = app.door
    assert isinstance(client, Client)
    started = await client.many.retry([gone.id, kept.id])
    assert started.keys() == {kept.id}
    with pytest.raises(UsageError, match="no longer kept"):
        await gone.retry()


async def test_what_was_rolled_back_begins_anew(app: App) -> None:
    broken, calls = True, list[str]()

    @app.step
    async def reserve() -> None:
        calls.append("reserve")

    @app.step
    async def release() -> None:
        calls.append("release")

    @app.step
    async def charge() -> None:
        calls.append("charge")
        if broken:
            raise ValueError("declined")

    @app.workflow
    async def saga(left: int) -> str:
        if left:
            workflow.continue_as_new(left - 1)
        await reserve()
        workflow.on_rollback(release)
        await charge()
        return "done"

    async with app.worker():
        for left in (0, 1):
            broken = True
            calls.clear()
            run = await saga.start(left)
            with pytest.raises(RunFailed):
                await run.result(timeout=20)
            assert calls == ["reserve", "charge", "release"]
            broken = False
            again = await run.retry()
            assert await again.result(timeout=20) == "done"
            assert calls == ["reserve", "charge", "release", "reserve", "charge"]
            assert [event.idx for event in await again.history()] == list(range(1, len(await again.history()) + 1))


async def test_a_fork_has_what_was_left_of_the_timeout(app: App) -> None:
    @app.workflow(timeout=3600)
    async def timed() -> int:
        return await workflow.signal("go", int)

    @app.workflow
    async def untimed() -> int:
        return await workflow.signal("go", int)

    async with app.worker():
        run, other = await timed.start(), await untimed.start()
        for each in (run, other):
            await until_state(each, "waiting")
        for at in (0, 1):
            fork = await run.fork(at=at)
            left = (await fork.explain()).deadline_at
            assert left is not None
            assert 3590 < (left - (await fork.info()).created_at).total_seconds() <= 3600.1
        assert (await (await other.fork(at=1)).explain()).deadline_at is None


async def test_one_that_timed_out_goes_on_with_what_was_left_when_it_last_went_on(app: App) -> None:
    @app.workflow(timeout="1h")
    async def timed() -> int:
        return await workflow.signal("go", int)

    async with app.worker():
        run = await timed.start()
        await until_state(run, "waiting")
        await Clock(app.dsn).skip("2h")
        with pytest.raises(RunFailed):
            await run.result(timeout=20)
        again = await run.retry()
        await again.signal("go", 3)
        assert await again.result(timeout=20) == 3
