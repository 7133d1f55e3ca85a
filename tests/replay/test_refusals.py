"""What a workflow cannot have: refused at the line that asked, with what to do instead, and nothing hangs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import signal as os_signal
import sys
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell.model.errors import Nondeterminism, NotDurable
from stepwell.model.events import EventType
from stepwell.replay import loop as loops
from stepwell.replay.loop import Loop
from tests.replay.driver import World, step, task
from tests.replay.more_asyncio_workflows import place


def loop() -> Any:
    return asyncio.get_running_loop()


async def nothing() -> None: ...


async def in_a_thread() -> None:
    await asyncio.to_thread(print)


async def in_an_executor() -> None:
    await loop().run_in_executor(None, print)


async def of_a_pool() -> None:
    with concurrent.futures.Executor() as pool:
        done: concurrent.futures.Future[int] = concurrent.futures.Future()
        await asyncio.wrap_future(done)
        assert pool is None


async def threadsafe() -> None:
    loop().call_soon_threadsafe(print)


async def a_connection() -> None:
    await asyncio.open_connection("localhost", 1)


async def a_server() -> None:
    await asyncio.start_server(lambda _reader, _writer: None, "localhost", 1)


async def a_datagram() -> None:
    await loop().create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=("localhost", 1))


async def a_reader() -> None:
    loop().add_reader(0, print)


async def an_address() -> None:
    await loop().getaddrinfo("localhost", 1)


async def a_process() -> None:
    await asyncio.create_subprocess_exec("true")


async def a_shell() -> None:
    await asyncio.create_subprocess_shell("true")


async def a_pipe() -> None:
    await loop().connect_read_pipe(asyncio.Protocol, sys.stdin)


async def a_signal() -> None:
    loop().add_signal_handler(os_signal.SIGUSR1, print)


async def a_loop_in_the_loop() -> None:
    loop().run_until_complete(nothing())


async def for_ever() -> None:
    loop().run_forever()


async def another_kind_of_task() -> None:
    loop().set_task_factory(print)


REFUSED = {
    "threads": [in_a_thread, in_an_executor, of_a_pool, threadsafe],
    "sockets": [a_connection, a_server, a_datagram, a_reader, an_address],
    "processes": [a_process, a_shell, a_pipe],
    "operating system signals": [a_signal],
    "a loop inside the loop": [a_loop_in_the_loop, for_ever],
    "a loop with other rules": [another_kind_of_task],
}
CASES = [(what, fn) for what, fns in REFUSED.items() for fn in fns]


@pytest.mark.parametrize(("what", "fn"), CASES, ids=lambda each: getattr(each, "__name__", ""))
def test_it_is_refused_at_its_line_with_the_remedy(what: str, fn: Callable[[], Awaitable[None]]) -> None:
    async def deep() -> None:
        await step("x")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(100))
            try:
                await fn()
            except NotDurable as error:
                caught.append(error)
                raise

    caught: list[NotDurable] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        told = World().run(deep)
    assert told.ended is not None
    assert told.ended.type == EventType.WORKFLOW_FAILED
    assert told.types[-2:] == ["TimerScheduled", "WorkflowFailed"] or told.types[-1] == "WorkflowFailed"
    first = caught[0]
    assert first.what == what
    line = fn.__code__.co_firstlineno  # type: ignore[attr-defined]
    assert first.line.startswith(f"{__file__}:")
    assert first.line.endswith(f" in {fn.__name__}")
    assert line < int(first.line.split(":")[1].split()[0]) <= line + 4
    assert "step or a task" in str(first)


def test_uncaught_it_is_the_error_of_the_workflow() -> None:
    told = World().run(in_a_thread)
    assert told.error.type == "NotDurable"
    assert "threads" in told.error.message
    assert "in in_a_thread" in told.error.message


def test_a_task_of_its_own_that_asks_is_named_by_the_line_that_made_it() -> None:
    async def makes_it() -> None:
        await asyncio.gather(asyncio.to_thread(print))

    assert "in makes_it" in World().run(makes_it).error.message


def test_a_run_inside_a_workflow_fails_it_and_leaves_no_coroutine() -> None:
    async def runs() -> None:
        coro = nothing()
        try:
            asyncio.run(coro)
        finally:
            coro.close()

    error = World().run(runs).error
    assert error.type == "RuntimeError"
    assert "running event loop" in error.message


def test_every_verb_of_a_loop_is_there_or_refused() -> None:
    verbs = {name for name in vars(asyncio.AbstractEventLoop) if not name.startswith("__")}
    assert {name for name in verbs if getattr(Loop, name) is getattr(asyncio.AbstractEventLoop, name)} == set()


def test_code_that_never_waits_is_stopped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def spins() -> None:
        for _ in itertools.count():
            await asyncio.sleep(0)

    monkeypatch.setattr(loops, "MANY", 1000)
    with pytest.raises(Nondeterminism, match="endless loop") as caught:
        World().run(spins)
    assert "in spins" in caught.value.line


def test_an_exit_ends_the_workflow_and_not_the_worker() -> None:
    async def leaves() -> None:
        await task("a")
        sys.exit(3)

    assert World().run(leaves).error.type == "SystemExit"


def test_nothing_of_the_worker_is_seen_in_a_workflow() -> None:
    async def looks() -> str:
        await task("a")
        return place.get()

    token = place.set("in the worker")
    try:
        assert World().run(looks).result == "nowhere"
    finally:
        place.reset(token)
