from __future__ import annotations

import asyncio

import pytest

from stepwell import App, RunFailed, current
from stepwell.sync import InEventLoop


def test_blocking_code_has_the_same_verbs(server: str, template: str) -> None:
    """No event loop here: the portal's own thread runs everything."""
    from tests.shelf import on_server, sibling

    asyncio.run(on_server(server, f"create database sync_test template {template}"))
    dsn = sibling(server, "sync_test")
    app = App(dsn)

    @app.task
    def double(n: int) -> int:
        return n * 2

    @app.task
    async def bad() -> None:
        raise ValueError("no")

    worker = App(dsn)
    worker.definitions = app.definitions
    stop = asyncio.Event()

    async def work() -> None:
        async with worker.worker():
            await stop.wait()

    import threading

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(work()))
    thread.start()
    try:
        run = double.sync.start(4)
        assert run.result(timeout=10) == 8
        assert run.info().id == run.id
        assert [each.result(10) for each in double.sync.start_many([(1,), (2,)])] == [2, 4]
        failed = bad.options(key="b").sync.start()
        app.run(failed.id).sync.cancel()
        assert [attempt.outcome for attempt in run.attempts()] == ["completed"]
        with pytest.raises(TimeoutError):
            double.options(delay="1h").sync.start(1).result(timeout=0.01)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        app.portal.close()
        asyncio.run(on_server(server, "drop database sync_test with (force)"))


async def test_blocking_inside_an_event_loop_is_refused(app: App) -> None:
    @app.task
    async def work() -> None: ...

    with pytest.raises(InEventLoop, match="Await"):
        work.sync.start()


async def test_a_blocking_task_may_start_another_which_is_its_child(app: App) -> None:
    @app.task
    def child() -> int:
        return 7

    @app.task
    def parent() -> str:
        return str(child.sync.start().id)

    async with app.worker():
        run = await parent.start()
        child_id = await run.result(20)
        info = await app.run(child_id).info()
    await asyncio.to_thread(app.portal.close)
    assert (info.parent_id, info.root_id) == (run.id, run.id)


async def test_current_is_refused_outside_of_a_run() -> None:
    from stepwell import NotInARun

    with pytest.raises(NotInARun):
        _ = current.run_id


async def test_the_error_of_a_failed_run_reaches_who_waits(app: App) -> None:
    from stepwell import Retry

    @app.task(retry=Retry(attempts=1))
    async def bad() -> None:
        raise ValueError("no such card")

    async with app.worker():
        with pytest.raises(RunFailed) as raised:
            await (await bad.start()).result(10)
    assert (raised.value.type, raised.value.message, raised.value.reason) == ("ValueError", "no such card", "raised")
    assert "no such card" in str(raised.value)
    assert raised.value.traceback is not None
    assert "raise ValueError" in raised.value.traceback
