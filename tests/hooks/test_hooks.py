"""Hooks: which events there are, when they are told, and that no hook can hurt the work."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from stepwell import (
    App,
    InvalidSetting,
    NotInARun,
    Retry,
    RunCancelled,
    RunEvent,
    RunExpired,
    RunFailed,
    Snooze,
    WorkerEvent,
    WrongUse,
    current,
    workflow,
)
from stepwell.engine import ends, runs
from stepwell.hooks import pump as pumping
from stepwell.hooks import registry
from stepwell.model.ids import new_claim_id
from stepwell.model.run import Wanted
from stepwell.services.reaper import Reaper
from stepwell.testing import Clock
from tests.factory import a_worker, execute
from tests.hooks import bodies
from tests.waiting_for import until

ONCE = Retry(attempts=1)


class Heard(list[Any]):
    """What a hook was told."""

    async def count(self, count: int) -> Heard:
        async def there() -> bool:
            return len(self) >= count

        await until(there)
        return self

    @property
    def types(self) -> list[str]:
        return [event.type for event in self]


def hearing(app: App, *names: Any) -> Heard:
    heard = Heard()

    @app.on(*names)
    async def hear(event: Any) -> None:
        heard.append(event)

    return heard


@asynccontextmanager
async def ended(run: Any) -> AsyncIterator[None]:
    """Whatever its end was, once the block is left."""
    yield
    with suppress(RunFailed, RunCancelled, RunExpired):
        await run.result(timeout=30)


# -- the events


@pytest.mark.parametrize("where", ["inline", "thread", "process"])
async def test_the_end_of_a_run_is_told_from_every_executor(app: App, where: str) -> None:
    async def on_loop() -> None:
        raise ValueError("in a process of its own")

    def in_thread() -> None:
        raise ValueError("in a process of its own")

    kinds: dict[str, Any] = {"inline": on_loop, "thread": in_thread, "process": bodies.refused}
    task = app.task(name="shop.charge", queue="cards", retry=ONCE, tags={"order": 7}, executor=where)(kinds[where])
    heard = hearing(app, "run.failed", "run.completed")
    async with app.worker():
        run = await task.start()
        (event,) = await heard.count(1)
    info = await run.info()
    assert isinstance(event, RunEvent)
    assert (event.type, event.run_id, event.name, event.kind, event.queue) == (
        "run.failed", run.id, "shop.charge", "task", "cards",
    )  # fmt: skip
    assert (event.attempt, event.failures, event.max_attempts, event.tags) == (1, 1, 1, {"order": 7})
    assert (event.error.type, event.error.message) == ("ValueError", "in a process of its own")
    assert "ValueError" in event.error.traceback
    assert event.worker == info.worker
    assert event.next_at is None
    assert 0 < event.duration < 30
    assert event.at.tzinfo is not None
    with pytest.raises(FrozenInstanceError):
        event.name = "other"


async def test_a_retried_and_a_snoozed_attempt_are_told_with_when_the_next_is_due(app: App) -> None:
    @app.task(retry=Retry(attempts=3, delay=0.05, jitter=0))
    async def flaky() -> str:
        if current.attempt == 1:
            raise Snooze(0.2)
        if current.attempt == 2:
            raise ConnectionError("not yet")
        return "done"

    heard = hearing(app, "run.retrying", "run.snoozed", "run.completed", "run.failed")
    async with app.worker():
        run = await flaky.options(key="one").start()
        assert await run.result(timeout=30) == "done"
        await heard.count(3)
    snoozed, retrying, completed = heard
    assert heard.types == ["run.snoozed", "run.retrying", "run.completed"]
    assert snoozed.next_at - snoozed.at == timedelta(seconds=0.2)
    assert retrying.next_at - retrying.at == timedelta(seconds=0.05)
    assert [each.failures for each in heard] == [0, 1, 1]
    assert [each.attempt for each in heard] == [1, 2, 3]
    assert retrying.error.type == "ConnectionError"
    assert completed.error is None
    assert {each.key for each in heard} == {"one"}


async def test_a_hook_hears_only_the_events_it_named(app: App) -> None:
    @app.task(retry=Retry(attempts=2, delay=0))
    async def refused() -> None:
        raise ValueError("no")

    both, failed = hearing(app, "run.retrying", "run.failed"), hearing(app, "run.failed")
    async with app.worker():
        run = await refused.start()
        async with ended(run):
            pass
        await both.count(2)
    assert both.types == ["run.retrying", "run.failed"]
    assert failed.types == ["run.failed"]


async def test_a_cancelled_run_is_told_in_the_process_that_cancels_it(app: App) -> None:
    @app.task(name="shop.charge", tags={"order": 7})
    async def charge() -> None: ...

    heard = hearing(app, "run.cancelled")
    one, two = await charge.start(), await charge.options(delay="1h").start()
    await one.cancel()
    await app._opening.client.many.cancel([two.id])
    await heard.count(2)
    assert [(event.run_id, event.name, event.tags) for event in heard] == [
        (one.id, "shop.charge", {"order": 7}), (two.id, "shop.charge", {"order": 7}),
    ]  # fmt: skip
    await one.cancel()  # again: nothing happens, and nothing is told
    await app.hooks.drain()
    assert len(heard) == 2


async def test_a_run_that_expired_and_one_past_its_deadline_are_told(app: App) -> None:
    @app.task(name="shop.stale", expires="1h")
    async def stale() -> None: ...

    @app.task(name="shop.late", deadline="1h")
    async def late() -> None: ...

    heard = hearing(app, "run.expired", "run.failed")
    await stale.options(delay="5h").start()
    await late.options(delay="5h").start()
    async with app.worker():
        await Clock(app.dsn).skip("2h")
        await heard.count(2)
    assert {(event.type, event.name, event.attempt) for event in heard} == {
        ("run.expired", "shop.stale", 0), ("run.failed", "shop.late", 0),
    }  # fmt: skip
    (failed,) = [event for event in heard if event.type == "run.failed"]
    assert (failed.error.type, failed.error.reason) == ("DeadlineExceeded", "timed_out")


async def test_a_lost_worker_and_its_runs_are_told_by_whoever_settles_them(app: App) -> None:
    @app.task(name="shop.lost", retry=ONCE)
    async def lost() -> None: ...

    heard = hearing(app, "worker.lost", "run.failed")
    one, two = await lost.start(), await lost.start()
    database, wakes = app._opening.database, app._opening.wakes
    async with database.transaction() as tx:
        worker = await a_worker(tx)
        await runs.claim(tx, Wanted(worker, None, ["shop.lost"], 2, alone=True), new_claim_id())
    async with database.transaction() as tx:
        await execute(tx, "update stepwell.workers set lease_until = stepwell.now() - interval '1s'")
    await Reaper(database, wakes, app.telemetry, calm=timedelta(0)).run_once()
    await heard.count(3)
    assert Counter(heard.types) == {"run.failed": 2, "worker.lost": 1}
    failed = [event for event in heard if event.type == "run.failed"]
    (gone,) = [event for event in heard if event.type == "worker.lost"]
    assert {event.run_id for event in failed} == {one.id, two.id}
    assert {event.worker for event in failed} == {worker}
    assert {event.error.reason for event in failed} == {"worker_lost"}
    assert isinstance(gone, WorkerEvent)
    assert (gone.worker, gone.name, gone.host) == (worker, "tests", "host")


async def test_a_worker_tells_that_it_is_ready_stopping_and_stopped(app: App) -> None:
    heard = hearing(app, "worker.ready", "worker.stopping", "worker.stopped")
    async with app.worker(name="here", queues=["mail"], slots=3) as worker:
        await heard.count(1)
        await worker.stop()
    assert heard.types == ["worker.ready", "worker.stopping", "worker.stopped"]
    assert {(event.name, event.queues, event.slots) for event in heard} == {("here", ("mail",), 3)}
    (info,) = await app.workers([heard[0].worker])
    assert (info.name, info.pid) == ("here", heard[0].pid)


async def test_workflows_are_told_as_tasks_are(app: App) -> None:
    @app.task(name="shop.part")
    async def part(n: int) -> int:
        if n < 0:
            raise ValueError("negative")
        return n

    @app.workflow(name="shop.order")
    async def order(n: int) -> int:
        return await part.options(retry=ONCE)(n)

    @app.workflow(name="shop.waits")
    async def waits() -> None:
        await workflow.signal("never")

    heard = hearing(app, "run.completed", "run.failed", "run.cancelled")
    async with app.worker():
        for n in (1, -1):
            run = await order.start(n)
            async with ended(run):
                pass
        run = await waits.start()

        async def has_begun() -> bool:
            return bool(await run.history())

        await until(has_begun)
        await run.cancel()
        await heard.count(5)
    told = Counter((event.type, event.name, event.kind) for event in heard)
    assert told == {
        ("run.completed", "shop.part", "task"): 1,
        ("run.completed", "shop.order", "workflow"): 1,
        ("run.failed", "shop.part", "task"): 1,
        ("run.failed", "shop.order", "workflow"): 1,
        ("run.cancelled", "shop.waits", "workflow"): 1,
    }
    (failed,) = [event for event in heard if (event.type, event.name) == ("run.failed", "shop.order")]
    assert "ValueError: negative" in failed.error.message


async def test_what_a_workflow_gives_up_is_told_as_cancelled(app: App) -> None:
    @app.task(name="shop.slow", queue="nobody")
    async def slow() -> None: ...

    @app.workflow
    async def order() -> None:
        try:
            async with asyncio.timeout(0.01):
                await slow()
        except TimeoutError:
            pass

    heard = hearing(app, "run.cancelled")
    async with app.worker(queues=["default"]):
        run = await order.start()
        await run.result(timeout=30)
        (event,) = await heard.count(1)
    assert event.name == "shop.slow"


async def test_a_blocked_workflow_is_told(app: App, dsn: str) -> None:
    before, changed = App(dsn), App(dsn)

    @before.workflow(name="shop.order")
    async def sleeps() -> None:
        await asyncio.sleep(0.01)
        await workflow.signal("paid")

    @changed.workflow(name="shop.order")
    async def waits() -> None:
        await workflow.signal("packed")
        await workflow.signal("paid")

    heard = hearing(changed, "workflow.blocked")
    async with before, before.worker():
        run = await sleeps.start()

        async def has_slept() -> bool:
            return any(event.type == "TimerFired" for event in await run.history())

        await until(has_slept)
    async with changed, changed.worker():
        await changed.run(run.id).signal("paid")
        (event,) = await heard.count(1)
    assert (event.run_id, event.name, event.kind) == (run.id, "shop.order", "workflow")
    assert "does not fit the history" in event.error.message


# -- what is promised


async def test_a_lost_claim_is_told_to_no_hook(app: App) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def late() -> None:
        began.set()
        await go_on.wait()

    heard = hearing(app, "run.completed", "run.failed", "run.retrying")
    lost: list[Any] = []
    app.telemetry.listen(lambda name, facts: lost.extend(facts["lost"]) if name == "worker.settled" else None)
    async with app.worker():
        run = await late.start()
        await began.wait()
        await ends.cancel(app._opening.database, [run.id])
        go_on.set()

        async def is_lost() -> bool:
            return bool(lost)

        await until(is_lost)
    assert heard == []


async def test_each_event_is_told_once(app: App) -> None:
    @app.task
    async def add(n: int) -> int:
        return n

    heard = hearing(app, "run.completed")
    async with app.worker():
        started = await add.start_many([(n,) for n in range(2_000)])
        await heard.count(2_000)
    assert Counter(event.run_id for event in heard) == {run.id: 1 for run in started}


async def test_a_hook_is_told_after_the_commit(app: App) -> None:
    states: list[str] = []

    @app.task
    async def add() -> None: ...

    @app.on("run.completed")
    async def look(event: RunEvent) -> None:
        states.append((await app.run(event.run_id).info()).state)

    async with app.worker():
        await (await add.start()).result(timeout=30)
    assert states == ["completed"]


async def test_an_async_hook_runs_on_the_loop_and_a_plain_one_in_a_thread(app: App) -> None:
    threads: dict[str, threading.Thread] = {}

    @app.task
    async def add() -> None: ...

    @app.on("run.completed")
    async def on_loop(event: RunEvent) -> None:
        threads["async"] = threading.current_thread()

    @app.on("run.completed")
    def in_thread(event: RunEvent) -> None:
        threads["sync"] = threading.current_thread()

    async with app.worker():
        await (await add.start()).result(timeout=30)
    assert threads["async"] is threading.current_thread()
    assert threads["sync"].name == "stepwell-hooks"


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_hook_sees_nothing_of_the_body_in_which_its_event_was_told(app: App, kind: str) -> None:
    seen: list[object] = []

    @app.task(queue="nobody")
    async def other() -> None: ...

    @app.task
    async def cancels() -> None:
        await (await other.start()).cancel()

    def look(event: RunEvent) -> None:
        try:
            seen.append(current.run_id)
        except NotInARun:
            seen.append(None)

    async def look_on_loop(event: RunEvent) -> None:
        look(event)

    hook: Any = look_on_loop if kind == "async" else look
    app.on("run.cancelled")(hook)
    async with app.worker(queues=["default"]):
        await (await cancels.start()).result(timeout=30)
    assert seen == [None]


async def test_a_failing_hook_hurts_neither_the_work_nor_other_hooks(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def add(n: int) -> int:
        return n

    @app.on("run.completed")
    async def breaks(event: RunEvent) -> None:
        raise SystemExit("no")

    @app.on("run.completed")
    def breaks_in_thread(event: RunEvent) -> None:
        raise LookupError("here neither")

    heard = hearing(app, "run.completed")
    async with app.worker():
        for n in range(3):
            assert await (await add.start(n)).result(timeout=30) == n
    assert len(heard) == 3
    records = [each for each in caplog.records if each.name == "stepwell.hooks"]
    assert Counter(each.getMessage().split(" failed on ")[0].rpartition(".")[2] for each in records) == {
        "breaks": 3, "breaks_in_thread": 3,
    }  # fmt: skip
    assert sum(each.exc_info is not None for each in records) == 2, "a traceback for each kind of error, once"
    assert "LookupError: here neither" in caplog.text


def dropped(caplog: pytest.LogCaptureFixture) -> int:
    """How many events the warnings say were dropped."""
    return sum(map(int, re.findall(r"(\d+) events were dropped", caplog.text)))


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_hook_that_hangs_is_given_up_and_holds_nothing_up(
    app: App, caplog: pytest.LogCaptureFixture, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pumping, "CLEANUP", 0.05)
    let_go = threading.Event()
    calls: list[object] = []

    async def waits(event: RunEvent) -> None:
        calls.append(event)
        while not let_go.is_set():
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    def blocks(event: RunEvent) -> None:
        calls.append(event)
        let_go.wait(60)

    @app.task
    async def add(n: int) -> int:
        return n

    hook: Any = waits if kind == "async" else blocks
    app.on("run.completed", timeout=0.05)(hook)
    heard = hearing(app, "run.completed")
    try:
        async with app.worker():
            for n in range(3):
                assert await (await add.start(n)).result(timeout=10) == n
            await heard.count(3)
    finally:
        let_go.set()
    assert len(calls) == 1, "it is not called again while it hangs"
    assert "timed out after 0.05 s on run.completed, and is given up" in caplog.text
    assert dropped(caplog) == 2


async def test_a_full_queue_drops_the_newest_and_says_how_many(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pumping, "MOST", 3)
    first, go_on = asyncio.Event(), asyncio.Event()
    heard: list[int] = []

    @app.task
    async def add(n: int) -> int:
        return n

    @app.on("run.completed")
    async def slow(event: RunEvent) -> None:
        heard.append(event.tags["n"])
        first.set()
        await go_on.wait()

    async with app.worker():
        for n in range(10):
            await (await add.options(tags={"n": n}).start(n)).result(timeout=30)
            if n == 0:
                await first.wait()
        go_on.set()
    assert heard == [0, 1, 2, 3]
    assert dropped(caplog) == 6


async def test_a_worker_that_stops_lets_the_hooks_hear_what_waits(app: App) -> None:
    heard: list[object] = []

    @app.task
    async def add(n: int) -> int:
        return n

    @app.on("run.completed", "worker.stopped")
    async def slow(event: RunEvent | WorkerEvent) -> None:
        await app.workers()  # it takes a while
        heard.append(event.type)

    async with app.worker():
        started = await add.start_many([(n,) for n in range(100)])
        for run in started:
            await run.result(timeout=30)
    assert heard == ["run.completed"] * 100 + ["worker.stopped"]


async def test_an_app_that_closes_does_not_wait_for_ever_for_its_hooks(
    dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "DRAIN", 0.05)
    app, ends = App(dsn), asyncio.Event()

    @app.task
    async def add() -> None: ...

    @app.on("run.cancelled")
    async def waits(event: RunEvent) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.set()

    async with app:
        for _ in range(3):
            await (await add.start()).cancel()
    assert "2 events were dropped at shutdown" in caplog.text
    assert ends.is_set()


async def test_a_hook_may_start_a_run(app: App) -> None:
    told: list[str] = []

    @app.task(retry=ONCE)
    async def refused() -> None:
        raise ValueError("no")

    @app.task
    async def mourn(name: str) -> None:
        told.append(name)

    @app.on("run.failed")
    async def follow(event: RunEvent) -> None:
        await mourn.start(event.name)

    async with app.worker():
        await refused.start()

        async def is_told() -> bool:
            return bool(told)

        await until(is_told)
    assert told[0].endswith("refused")


async def test_without_hooks_no_event_is_made(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a clock looked at; and of completed runs none is made for the log either."""
    made: list[object] = []
    monkeypatch.setattr("stepwell.hooks.events.RunEvent", lambda **fields: made.append(fields))

    @app.task
    async def add(n: int) -> int:
        return n

    began: list[float] = []

    def listen(name: str, facts: dict[str, Any]) -> None:
        if name == "worker.settled":
            began.extend(claim.begun_at for claim, _ in facts["settlements"])

    app.telemetry.listen(listen)
    async with app.worker():
        for run in await add.start_many([(n,) for n in range(50)]):
            await run.result(timeout=30)
    assert made == []
    assert set(began) == {0.0}


# -- how they are registered


def test_an_unknown_event_is_refused_with_the_near_one() -> None:
    app: Any = App("postgresql://localhost/x")
    with pytest.raises(InvalidSetting, match=r"Did you mean 'run\.failed'\?"):
        app.on("run.fail")
    with pytest.raises(InvalidSetting, match=r"Did you mean 'worker\.stopping'\?"):
        app.on("run.completed", "worker.stoping")
    with pytest.raises(InvalidSetting, match=r"The events are run\.completed, "):
        app.on("xyz")
    with pytest.raises(InvalidSetting):
        app.on(7)


def test_what_is_no_hook_is_refused_where_it_is_registered() -> None:
    app: Any = App("postgresql://localhost/x")

    def nothing() -> None: ...

    def yields(event: object) -> Any:
        yield event

    with pytest.raises(WrongUse, match="names of events"):
        app.on()
    with pytest.raises(WrongUse, match=r'@app\.on\("run\.failed"\)'):
        app.on(nothing)
    with pytest.raises(WrongUse, match="one event"):
        app.on("run.failed")(nothing)
    with pytest.raises(WrongUse, match="generator"):
        app.on("run.failed")(yields)
    with pytest.raises(WrongUse, match="a function"):
        app.on("run.failed")("print")
    with pytest.raises(InvalidSetting, match="timeout"):
        app.on("run.failed", timeout=0)(print)
    with pytest.raises(WrongUse, match="no option 'queue'"):
        app.on("run.failed", queue="x")


def test_a_hook_stays_the_function_it_was() -> None:
    app = App("postgresql://localhost/x")

    @app.on("run.failed")
    def hook(event: RunEvent) -> str:
        return event.name

    assert hook.__name__ == "hook"
    assert logging.getLogger("stepwell.hooks")
