"""Signals: there once they are accepted, in their order, whether or not anyone waits yet."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from stepwell import (
    AlreadyFinished,
    App,
    InvalidSetting,
    NotDecodable,
    NotFound,
    State,
    UpdateFailed,
    UpdateRejected,
    WrongUse,
    workflow,
)
from stepwell.testing import Clock
from tests.workflows.telling import has, reaches, types_of


@dataclass
class Payment:
    amount: int
    by: str


async def test_a_signal_wakes_who_waits_for_it(app: App) -> None:
    @app.workflow
    async def order() -> str:
        paid = await workflow.signal("paid", Payment)
        return f"{paid.amount} by {paid.by}"

    async with app.worker():
        run = await order.start()
        await reaches(run, State.WAITING)
        await run.signal("paid", Payment(10, "card"))
        assert await run.result(10) == "10 by card"
    assert await types_of(run) == ["WorkflowStarted", "SignalReceived", "WorkflowCompleted"]


async def test_signals_that_come_before_anyone_waits_are_kept_in_their_order(app: App) -> None:
    @app.workflow
    async def collect() -> list[int]:
        first = await workflow.signal("b", int)
        return [first, *[await workflow.signal("a", int) for _ in range(3)]]

    run = await collect.start()
    for n in range(3):
        await run.signal("a", n)
    await run.signal("b", 100)
    async with app.worker():
        assert await run.result(10) == [100, 0, 1, 2]


async def test_signals_go_to_those_who_wait_in_the_order_in_which_they_began_to(app: App) -> None:
    @app.workflow
    async def share() -> list[int]:
        return list(await asyncio.gather(*(workflow.signal("n", int) for _ in range(3))))

    async with app.worker():
        run = await share.start()
        await reaches(run, State.WAITING)
        for n in range(3):
            await run.signal("n", n)
        assert await run.result(10) == [0, 1, 2]


async def test_a_wait_for_a_signal_that_times_out_is_recorded(app: App) -> None:
    @app.workflow
    async def wait() -> list[Any]:
        try:
            await workflow.signal("paid", int, timeout="2d")
        except TimeoutError:
            return ["late", await workflow.signal("paid", int, timeout="2d")]
        return ["?"]

    async with app.worker():
        run = await wait.start()
        await reaches(run, State.WAITING)
        await Clock(app.dsn).skip("2d")
        await has(run, "SignalTimedOut")
        await reaches(run, State.WAITING)
    await run.signal("paid", 7)
    async with app.worker():
        assert await run.result(10) == ["late", 7]
    assert await types_of(run) == [
        "WorkflowStarted", "TimerScheduled", "SignalTimedOut", "TimerScheduled", "SignalReceived", "WorkflowCompleted",
    ]  # fmt: skip


async def test_a_signal_that_came_before_the_timeout_wins_though_nobody_was_there(app: App) -> None:
    @app.workflow
    async def wait() -> str:
        try:
            return await workflow.signal("paid", str, timeout="1h")
        except TimeoutError:
            return "late"

    async with app.worker():
        run = await wait.start()
        await reaches(run, State.WAITING)
    await run.signal("paid", "in time")
    await Clock(app.dsn).skip("2h")
    async with app.worker():
        assert await run.result(10) == "in time"


async def test_signals_from_fifty_clients_at_once_are_neither_lost_nor_doubled_and_keep_their_order(
    app: App, dsn: str
) -> None:
    clients, each = 50, 10

    @app.workflow
    async def collect(count: int) -> list[tuple[int, int]]:
        return [await workflow.signal("n", tuple[int, int]) for _ in range(count)]

    async with app.worker():
        run = await collect.start(clients * each)

        async def send(client: int, own: App) -> None:
            for n in range(each):
                await own.run(run.id).signal("n", (client, n))

        others = [App(dsn, migrate=False) for _ in range(5)]
        for other in others:
            await other.__aenter__()
        await asyncio.gather(*(send(client, others[client % len(others)]) for client in range(clients)))
        came = await run.result(30)
        for other in others:
            await other.__aexit__()
    assert sorted(came) == sorted((client, n) for client in range(clients) for n in range(each))
    for client in range(clients):
        assert [n for who, n in came if who == client] == list(range(each))


async def test_a_signal_to_a_workflow_in_a_turn_is_heard_in_it(app: App) -> None:
    begun = asyncio.Event()

    @app.step
    async def wait_for_ever() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.workflow
    async def work() -> str:
        step = asyncio.create_task(wait_for_ever())
        stop = await workflow.signal("stop", str)
        step.cancel()
        return stop

    async with app.worker():
        run = await work.start()
        async with asyncio.timeout(30):
            await begun.wait()
        await run.signal("stop", "now")
        assert await run.result(10) == "now"
        assert (await run.info()).attempt == 1


async def test_a_signal_whose_waiter_was_given_up_goes_to_the_next(app: App) -> None:
    @app.workflow
    async def wait() -> list[Any]:
        try:
            async with asyncio.timeout(60):
                await workflow.signal("n", int)
        except TimeoutError:
            pass
        return [await workflow.signal("n", int)]

    async with app.worker():
        run = await wait.start()
        await reaches(run, State.WAITING)
        await Clock(app.dsn).skip("2m")
        await has(run, "TimerFired")
        await run.signal("n", 3)
        assert await run.result(10) == [3]


async def test_a_signal_of_another_type_than_was_waited_for_says_so(app: App) -> None:
    @app.workflow
    async def wait() -> str:
        try:
            await workflow.signal("n", int)
        except NotDecodable as error:
            return str(error)
        return "?"

    async with app.worker():
        run = await wait.start()
        await run.signal("n", "three")
        assert "signal 'n'" in await run.result(10)


async def test_a_signal_that_nobody_can_take_is_refused_with_the_reason(app: App) -> None:
    @app.workflow
    async def done() -> None:
        pass

    @app.task
    async def one() -> int:
        return 1

    with pytest.raises(NotFound):
        await app.run(uuid4()).signal("x")
    task = await one.start()
    with pytest.raises(WrongUse, match="is a task: only workflows take signals"):
        await task.signal("x")
    with pytest.raises(InvalidSetting):
        await task.signal("")
    async with app.worker():
        run = await done.start()
        await run.result(10)
        with pytest.raises(AlreadyFinished, match="completed"):
            await run.signal("x")


async def test_signals_that_come_too_late_leave_nothing_behind(app: App, sql: asyncpg.Connection[Any]) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.step
    async def hold() -> None:
        begun.set()
        await gate.wait()

    @app.workflow
    async def work() -> int:
        await hold()
        return 1

    async with app.worker():
        run = await work.start()
        async with asyncio.timeout(30):
            await begun.wait()
        for n in range(3):
            await run.signal("n", n)
        gate.set()
        assert await run.result(10) == 1
    assert await sql.fetchval("select count(*) from stepwell.arrivals") == 0


async def test_what_is_published_is_read_with_no_worker_alive_and_by_sql(
    app: App, sql: asyncpg.Connection[Any]
) -> None:
    @app.workflow
    async def show() -> None:
        workflow.publish({"step": 1})
        workflow.publish(Payment(2, "card"))
        await workflow.signal("go")
        workflow.publish(Payment(3, "cash"))

    run = await show.start()
    assert await run.state(Payment) is None
    async with app.worker():
        await reaches(run, State.WAITING)
    assert await run.state(Payment) == Payment(2, "card")
    assert await run.state() == {"amount": 2, "by": "card"}
    assert await sql.fetchval("select state ->> 'by' from stepwell.published where run_id = $1", run.id) == "card"
    await run.signal("go")
    async with app.worker():
        await run.result(10)
    assert await run.state(Payment) == Payment(3, "cash")


async def test_an_update_is_answered_by_the_workflow_or_refused_by_its_validator(app: App) -> None:
    @app.step
    async def double(n: int) -> int:
        return 2 * n

    @app.workflow
    async def counter() -> int:
        total = 0

        @workflow.update
        async def add(n: int) -> int:
            nonlocal total
            total += await double(n)
            if total > 100:
                raise OverflowError("too much")
            return total

        @add.validator
        def positive(n: int) -> None:
            if n <= 0:
                raise ValueError("nothing to add")

        await workflow.signal("end")
        return total

    async with app.worker():
        run = await counter.start()
        assert await run.update("add", 3, timeout=10) == 6
        assert await run.update("add", n=4, timeout=10) == 14
        with pytest.raises(UpdateRejected, match="nothing to add"):
            await run.update("add", -1, timeout=10)
        with pytest.raises(UpdateRejected, match="UnknownName"):
            await run.update("subtract", 1, timeout=10)
        with pytest.raises(UpdateFailed, match="too much"):
            await run.update("add", 1000, timeout=10)
        await run.signal("end")
        assert await run.result(10) == 2014
        with pytest.raises(AlreadyFinished):
            await run.update("add", 1, timeout=10)
    types = await types_of(run)
    assert [types.count(f"Update{what}") for what in ("Requested", "Completed", "Failed", "Rejected")] == [5, 2, 1, 2]


async def test_a_signal_to_what_no_worker_knows_says_that_it_may_be_a_workflow(app: App) -> None:
    run = await app.start("shop.unknown")
    with pytest.raises(WrongUse, match=r"is a task: only workflows .* send again once a worker"):
        await run.signal("paid", 1)


@pytest.mark.parametrize("place", ["handler", "validator"])
async def test_an_update_is_answered_whatever_its_code_raises(app: App, place: str) -> None:
    raised = [SystemExit(3), asyncio.CancelledError(), BaseException("lost"), ValueError("no")]

    def fail(where: str, which: int) -> None:
        if where == place:
            raise raised[which]

    @app.workflow
    async def ask() -> None:
        @workflow.update
        async def change(which: int) -> None:
            fail("handler", which)

        @change.validator
        def check(which: int) -> None:
            fail("validator", which)

        await workflow.signal("end")

    async with app.worker():
        run = await ask.start()
        for which in range(len(raised)):
            with pytest.raises(UpdateFailed if place == "handler" else UpdateRejected):
                await run.update("change", which, timeout=10)
        await run.signal("end")
        await run.result(10)


async def test_an_update_is_answered_by_whoever_takes_the_turn(app: App) -> None:
    @app.workflow
    async def counter() -> None:
        count = 0

        @workflow.update
        def add(n: int) -> int:
            nonlocal count
            count += n
            return count

        await workflow.signal("end")

    run = await counter.start()
    first = asyncio.create_task(run.update("add", 1, timeout=20))
    second: asyncio.Task[Any] | None = None
    async with app.worker():
        assert await first == 1
        await reaches(run, State.WAITING)
    second = asyncio.create_task(run.update("add", 2, timeout=20))
    async with app.worker():
        assert await second == 3
        assert await run.update("add", 3, timeout=20) == 6


async def test_the_end_of_a_workflow_is_the_answer_to_an_update_that_it_did_not_give(app: App) -> None:
    @app.workflow
    async def leave() -> None:
        @workflow.update
        async def never() -> None:
            await workflow.signal("never")

        await workflow.signal("end")

    async with app.worker():
        run = await leave.start()
        asking = asyncio.create_task(run.update("never", timeout=20))
        await has(run, "UpdateRequested")
        await run.signal("end")
        with pytest.raises(Exception, match="ended before it had answered"):
            await asking


async def test_blocking_code_signals_and_asks_too(app: App) -> None:
    @app.workflow
    async def counter() -> int:
        @workflow.update
        def look() -> str:
            return "here"

        workflow.publish("waiting")
        return await workflow.signal("n", int)

    async with app.worker():
        run = await counter.start()

        def block() -> tuple[Any, Any, list[str]]:
            told = run.sync.update("look", timeout=10), run.sync.state(str)
            run.sync.pause()
            run.sync.resume()
            run.sync.signal("n", 5)
            return *told, [event.type for event in run.sync.history()][:1]

        assert await asyncio.to_thread(block) == ("here", "waiting", ["WorkflowStarted"])
        assert await run.result(10) == 5
