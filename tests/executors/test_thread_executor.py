from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import executor_bodies as bodies
import pytest
from executor_bodies import defined

from stepwell.executors.base import BodyExited, traceback_text
from stepwell.executors.thread import ThreadExecutor


class Gate:
    """A body that says it has begun and waits to be let through."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.open = threading.Event()
        self.running = self.most = self.runs = 0
        self._lock = threading.Lock()
        self.body = defined(self.wait)

    def wait(self) -> int:
        with self._lock:
            self.runs += 1
            self.running += 1
            self.most = max(self.most, self.running)
        self.begun.release()
        assert self.open.wait(10)
        with self._lock:
            self.running -= 1
        return 1

    def call(self, threads: ThreadExecutor) -> asyncio.Task[bytes]:
        return asyncio.create_task(threads.run(self.body, self.body.input()))

    async def has_begun(self, times: int = 1) -> None:
        # Not to_thread: its pool may be smaller than what we wait for.
        with ThreadPoolExecutor(1) as pool:
            for _ in range(times):
                assert await asyncio.get_running_loop().run_in_executor(pool, self.begun.acquire, True, 10)


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.open.set()


async def cancelled(task: asyncio.Task[bytes]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_body_is_given_its_input_and_its_result_comes_back(threads) -> None:
    body = defined(bodies.add)
    assert json.loads(await threads.run(body, body.input(2, 3))) == 5


async def test_what_the_body_raises_is_raised_and_the_traceback_begins_at_the_users_line(threads) -> None:
    body = defined(bodies.decline)
    with pytest.raises(bodies.Declined, match="too poor") as raised:
        await threads.run(body, body.input("too poor"))
    frames = traceback_text(raised.value.with_traceback(raised.value.__traceback__.tb_next)).splitlines()
    assert "executor_bodies.py" in frames[1]
    assert "# the user's line" in frames[2]


async def test_a_raised_error_leaves_no_cycle_to_the_collector() -> None:
    threads = ThreadExecutor(1)
    decline, add = defined(bodies.decline), defined(bodies.add)
    gc.disable()
    try:
        try:
            await threads.run(decline, decline.input("no"))
        except bodies.Declined as error:
            alive = weakref.ref(error)
        # The one thread has let go of its last call when it answers the next.
        await threads.run(add, add.input(1, 1))
        assert alive() is None
    finally:
        gc.enable()
    await threads.close()


async def test_a_body_sees_the_context_of_its_caller_and_cannot_change_it(threads) -> None:
    def write_whose() -> str:
        before = bodies.whose.get()
        bodies.whose.set("the thread's")
        return before

    bodies.whose.set("the caller's")
    body = defined(write_whose)
    assert json.loads(await threads.run(body, body.input())) == "the caller's"
    assert bodies.whose.get() == "the caller's"


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "CancelledError"])
async def test_what_would_end_the_loop_comes_wrapped(threads, name) -> None:
    body = defined(bodies.raise_by_name)
    with pytest.raises(BodyExited, match=name):
        await threads.run(body, body.input(name))


@pytest.mark.parametrize(
    ("name", "as_type"),
    [
        ("GeneratorExit", GeneratorExit),
        ("StopIteration", RuntimeError),
        ("MemoryError", MemoryError),
        ("RecursionError", RecursionError),
    ],
)
async def test_other_errors_of_the_language_are_delivered(threads, name, as_type) -> None:
    body = defined(bodies.raise_by_name)
    with pytest.raises(as_type):
        await threads.run(body, body.input(name))


async def test_a_thread_survives_a_body_that_exits() -> None:
    threads = ThreadExecutor(1)
    leave, add = defined(bodies.leave), defined(bodies.add)
    with pytest.raises(BodyExited, match="SystemExit: 3"):
        await threads.run(leave, leave.input(3))
    assert await threads.run(add, add.input(1, 1)) == b"2"
    await threads.close()


async def test_threads_are_made_on_demand_and_reused() -> None:
    threads = ThreadExecutor(8)
    idents: set[int] = set()
    body = defined(lambda: idents.add(threading.get_ident()))
    for _ in range(20):
        await threads.run(body, body.input())
    assert len(idents) == 1
    await threads.close()


async def test_no_more_calls_run_than_there_are_threads(threads, gate) -> None:
    calls = [gate.call(threads) for _ in range(6)]
    await gate.has_begun(2)
    gate.open.set()
    assert await asyncio.gather(*calls) == [b"1"] * 6
    assert gate.most == 2


async def test_cancelling_a_queued_call_drops_it(threads, gate) -> None:
    running = [gate.call(threads) for _ in range(2)]
    await gate.has_begun(2)
    queued = gate.call(threads)
    await asyncio.sleep(0)
    await cancelled(queued)
    assert threads.stuck == 0
    gate.open.set()
    await asyncio.gather(*running)
    await threads.close(grace=10)
    assert gate.runs == 2


async def test_cancelling_a_running_call_frees_the_waiter_but_not_the_thread(threads, gate) -> None:
    call = gate.call(threads)
    await gate.has_begun()
    await cancelled(call)
    assert threads.stuck == 1
    gate.open.set()
    await threads.close(grace=10)
    assert threads.stuck == 0


async def test_a_stuck_call_keeps_its_thread_from_others(gate) -> None:
    threads = ThreadExecutor(1)
    stuck = gate.call(threads)
    await gate.has_begun()
    await cancelled(stuck)
    add = defined(bodies.add)
    after = asyncio.create_task(threads.run(add, add.input(1, 1)))
    await asyncio.sleep(0)
    assert not after.done()
    gate.open.set()
    assert await after == b"2"
    assert threads.stuck == 0
    await threads.close()


async def test_a_timeout_frees_the_waiter(threads, gate) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await threads.run(gate.body, gate.body.input())


async def test_closing_waits_for_running_calls_within_its_grace(threads, gate) -> None:
    call = gate.call(threads)
    await gate.has_begun()
    closing = asyncio.create_task(threads.close(grace=10))
    await asyncio.sleep(0)
    gate.open.set()
    await closing
    assert await call == b"1"


async def test_closing_gives_up_what_outlasts_its_grace(threads, gate) -> None:
    running, also, queued = (gate.call(threads) for _ in range(3))
    await gate.has_begun(2)
    await threads.close()
    results = await asyncio.gather(running, also, queued, return_exceptions=True)
    assert [type(result) for result in results] == [asyncio.CancelledError] * 3
    with pytest.raises(RuntimeError, match="closed"):
        await threads.run(gate.body, gate.body.input())


def test_an_executor_outlives_the_loop_that_waited_for_a_stuck_call() -> None:
    threads, gate = ThreadExecutor(2), Gate()

    async def abandon() -> None:
        call = gate.call(threads)
        await gate.has_begun()
        await cancelled(call)

    async def call_again() -> bytes:
        add = defined(bodies.add)
        return await threads.run(add, add.input(1, 1))

    asyncio.run(abandon())
    assert threads.stuck == 1
    assert asyncio.run(call_again()) == b"2"
    gate.open.set()
    asyncio.run(threads.close(grace=10))


def test_a_stuck_body_does_not_keep_the_interpreter_alive() -> None:
    script = (
        "import asyncio, threading; from executor_bodies import defined\n"
        "from stepwell.executors.thread import ThreadExecutor\n"
        "begun = threading.Event()\n"
        "def hang(): begun.set(); threading.Event().wait()\n"
        "async def main():\n"
        "    call = asyncio.create_task(ThreadExecutor(1).run(defined(hang), defined(hang).input()))\n"
        "    await asyncio.sleep(0)\n"
        "    begun.wait()\n"
        "    call.cancel()\n"
        "asyncio.run(main()); print('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parent, capture_output=True, timeout=20)
    assert (done.returncode, done.stdout) == (0, b"done\n"), done.stderr


async def test_a_thousand_calls_all_come_back(threads) -> None:
    body = defined(bodies.add)
    results = await asyncio.gather(*(threads.run(body, body.input(n, 1)) for n in range(1000)))
    assert [json.loads(result) for result in results] == list(range(1, 1001))
