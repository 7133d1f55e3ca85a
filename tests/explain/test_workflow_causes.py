"""Why a workflow is where it is: one test for each answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from stepwell import App, Run, workflow
from stepwell.engine import workers
from stepwell.engine.workers import Identity
from stepwell.model.explanation import Cause, Why
from stepwell.model.ids import WorkerId, new_worker_id
from stepwell.store.pool import Database
from tests.factory import execute
from tests.waiting_for import until

Hire = Callable[..., Awaitable[WorkerId]]


@pytest.fixture
def hire(database: Database) -> Hire:
    """A worker that only says that it is there, and which versions it has."""

    async def hired(*names: str, name: str = "web1", **versions: str) -> WorkerId:
        who = Identity(new_worker_id(), name, "host", 1, "0", None, 10, list(names), {"shop.checkout": "0" * 12})
        await workers.renew(database, who, timedelta(seconds=60))
        return who.id

    return hired


async def causes(run: Run[Any]) -> dict[Why, Cause]:
    return {cause.code: cause for cause in (await run.explain()).causes}


async def until_cause(run: Run[Any], why: Why) -> Cause:
    found: Cause = await until(lambda: _cause(run, why), within=15)
    return found


async def _cause(run: Run[Any], why: Why) -> Cause | None:
    return (await causes(run)).get(why)


async def test_it_waits_for_a_signal_since_it_last_went_on(app: App) -> None:
    @app.workflow(name="shop.checkout")
    async def checkout() -> int:
        return await workflow.signal("paid", int)

    async with app.worker():
        run = await checkout.start()
        cause = await until_cause(run, Why.WAITS_FOR_SIGNAL)
    last = (await run.history())[-1]
    assert cause.facts == {"signal": "paid", "since": last.at}
    assert "the signal 'paid' since" in cause.text
    assert f"stepwell signal {run.id} paid" in cause.text


async def test_it_tells_which_signals_arrived_though_it_waits_for_another(app: App) -> None:
    @app.workflow(name="shop.checkout")
    async def checkout() -> str:
        return await workflow.signal("shipped", str)

    async with app.worker():
        run = await checkout.start()
        await until_cause(run, Why.WAITS_FOR_SIGNAL)
        for name in ("shiped", "shiped", "refund"):
            await run.signal(name)

        async def all_came() -> Cause | None:
            cause = (await causes(run)).get(Why.SIGNAL_NOT_TAKEN)
            return cause if cause is not None and len(cause.facts["untaken"]) == 2 else None

        cause = await until(all_came, within=15)
        assert cause.facts == {"untaken": {"shiped": 2, "refund": 1}, "signals": ["shipped"]}
        assert cause.text == "the signal 'shiped' arrived twice, and it waits for 'shipped': a typo?"
        await run.pause()
        assert (await causes(run))[Why.SIGNAL_NOT_TAKEN].facts == cause.facts
        await run.resume()
        await run.signal("shipped", "ok")
        assert await run.result(10) == "ok"


async def test_a_signal_that_came_early_is_told_without_talk_of_a_typo(app: App) -> None:
    @app.workflow(name="shop.checkout")
    async def checkout() -> int:
        await workflow.signal("approved")
        return await workflow.signal("paid", int)

    async with app.worker():
        run = await checkout.start()
        await run.signal("paid", 7)
        cause = await until_cause(run, Why.SIGNAL_NOT_TAKEN)
        assert cause.text == "signals arrived that its code has not taken: 'paid' once; it waits for 'approved'"
        await run.signal("approved")
        assert await run.result(10) == 7


async def test_it_waits_for_a_run_that_is_in_some_state(app: App) -> None:
    @app.task(name="shop.pack", queue="nobody-serves-it")
    async def pack() -> None: ...

    @app.workflow(name="shop.checkout")
    async def checkout() -> None:
        await pack()

    async with app.worker(queues=["default"]):
        run = await checkout.start()
        cause = await until_cause(run, Why.WAITS_FOR_RUN)
    (child,) = await run.children()
    assert cause.facts == {"runs": [{"id": child.id, "name": "shop.pack", "state": "pending"}], "of": 1}
    assert f"shop.pack {child.id}, which is pending" in cause.text


async def test_it_waits_for_a_run_that_is_gone(app: App, database: Database) -> None:
    @app.task(name="shop.pack", queue="nobody-serves-it")
    async def pack() -> None: ...

    @app.workflow(name="shop.checkout")
    async def checkout() -> None:
        await pack()

    async with app.worker(queues=["default"]):
        run = await checkout.start()
        await until_cause(run, Why.WAITS_FOR_RUN)
    (child,) = await run.children()
    async with database.transaction() as tx:
        await execute(tx, "delete from stepwell.runs where id = $1", child.id)
    (cause,) = (await run.explain()).causes
    assert (cause.code, cause.facts) == (Why.WAITS_FOR_RUN, {"untold": [child.id]})
    assert f"{child.id}, which ended or whose row is gone" in cause.text


async def test_it_waits_for_a_timer(app: App) -> None:
    @app.workflow(name="shop.checkout")
    async def checkout() -> None:
        await asyncio.sleep(3600)

    async with app.worker():
        run = await checkout.start()
        cause = await until_cause(run, Why.WAITS_FOR_TIME)
    assert cause.facts["due_at"] == (await run.info()).due_at
    assert "a timer until" in cause.text


async def test_it_waits_for_several_things_and_each_is_told(app: App) -> None:
    @app.task(name="shop.pack", queue="nobody-serves-it")
    async def pack() -> None: ...

    @app.workflow(name="shop.checkout")
    async def checkout() -> None:
        await asyncio.gather(pack(), workflow.signal("paid", int, timeout=3600), pack())

    async with app.worker(queues=["default"]):
        run = await checkout.start()
        await until_cause(run, Why.WAITS_FOR_RUN)
    found = await causes(run)
    assert list(found) == [Why.WAITS_FOR_RUN, Why.WAITS_FOR_SIGNAL, Why.WAITS_FOR_TIME]
    assert found[Why.WAITS_FOR_RUN].facts["of"] == 2


async def test_it_is_paused_by_someone_and_what_it_waits_for(app: App) -> None:
    @app.workflow(name="shop.checkout")
    async def checkout() -> int:
        return await workflow.signal("paid", int)

    async with app.worker():
        run = await checkout.start()
        await until_cause(run, Why.WAITS_FOR_SIGNAL)
        await run.pause(by="ann@desk")
        found = await causes(run)
        assert found[Why.RUN_PAUSED].facts["by"] == "ann@desk"
        assert "by ann@desk" in found[Why.RUN_PAUSED].text
        assert Why.WAITS_FOR_SIGNAL in found
        await run.resume()
        await run.signal("paid", 1)
        assert await run.result(timeout=20) == 1


async def test_it_is_paused_by_nobody_in_particular(app: App) -> None:
    @app.workflow(name="shop.checkout")
    async def checkout() -> None:
        pass

    run = await checkout.start()
    await run.pause()
    assert " ago: it goes on when it is resumed" in (await causes(run))[Why.RUN_PAUSED].text


async def test_its_code_waits_for_what_only_it_could_do(app: App) -> None:
    @app.workflow(name="shop.checkout")
    async def checkout() -> None:
        await asyncio.Event().wait()

    async with app.worker():
        run = await checkout.start()
        cause = await until_cause(run, Why.WAITING)
    assert "its code waits for itself" in cause.text


async def test_it_is_in_a_turn_on_a_worker_and_may_be_paused_after_it(app: App) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    @app.step
    async def slow() -> None:
        begun.set()
        await gate.wait()

    @app.workflow(name="shop.checkout")
    async def checkout() -> None:
        await slow()
        await workflow.signal("paid", int)

    async with app.worker(name="web7"):
        run = await checkout.start()
        await begun.wait()
        cause = (await causes(run))[Why.RUNNING]
        assert "it is in a turn on web7" in cause.text
        await run.pause()
        assert "to be paused after it" in (await causes(run))[Why.RUNNING].text
        await run.resume()
        assert "paused" not in (await causes(run))[Why.RUNNING].text
        assert (await run.info()).state == "running"
        gate.set()
        await until_cause(run, Why.WAITS_FOR_SIGNAL)


async def test_its_code_does_not_fit_its_history_and_it_goes_on_when_fitting_code_arrives(dsn: str) -> None:
    old, new, mended = App(dsn), App(dsn), App(dsn)

    @old.task(name="shop.pack")
    async def pack(what: str) -> None: ...

    @old.workflow(name="shop.checkout")
    async def checkout() -> int:
        await pack("a")
        return await workflow.signal("paid", int)

    @new.task(name="shop.wrap")
    async def wrap(what: str) -> None: ...

    @new.workflow(name="shop.checkout")
    async def changed() -> int:
        await wrap("a")
        return await workflow.signal("paid", int)

    @mended.task(name="shop.pack")
    async def pack_again(what: str) -> None: ...

    @mended.workflow(name="shop.checkout")
    async def mended_checkout() -> int:
        await pack_again("a")
        return 2 * await workflow.signal("paid", int)

    async with old:
        async with old.worker():
            run = await checkout.start()
            await until_cause(run, Why.WAITS_FOR_SIGNAL)
        async with new.worker():
            await run.signal("paid", 1)
            cause = await until_cause(run, Why.BLOCKED)
            assert cause.facts["recorded"] == "TaskScheduled shop.pack(what)"
            assert cause.facts["new"] == "TaskScheduled shop.wrap(what)"
            assert cause.facts["idx"] == 2
            assert cause.facts["version"] == changed.version
            line = changed.fn.__code__.co_firstlineno + 2
            assert f"{__file__}:{line} in changed" in cause.facts["line"]
            for part in ("shop.pack(what)", "shop.wrap(what)", f"{__file__}:{line}", "by itself"):
                assert part in cause.text
            assert (await run.info()).state == "waiting"
        async with mended.worker():
            assert await run.result(timeout=20) == 2


async def test_it_is_pinned_to_a_version_that_no_live_worker_has(app: App, hire: Hire) -> None:
    @app.workflow(name="shop.checkout")
    async def checkout() -> int:
        return 1

    run = await checkout.options(pinned=True).start()
    await hire("shop.checkout")
    cause = (await causes(run))[Why.PINNED]
    assert cause.facts == {"version": checkout.version, "workers": {"web1": "0" * 12}}
    assert f"pinned to version {checkout.version}, which no live worker has" in cause.text
    async with app.worker():
        assert await run.result(timeout=20) == 1
