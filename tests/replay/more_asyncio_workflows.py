"""More workflows of plain asyncio: queues and locks, cancellation, generators, contexts, and what is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import AsyncIterator
from typing import Any

from stepwell.context.workflow import workflow
from stepwell.model.errors import RunFailed
from tests.replay.asyncio_workflows import CASES, case, named
from tests.replay.driver import CANCEL, NEVER, Takes, World, signal, step, task

__all__ = ["CASES"]

# -- queues and locks


@case(["b", "c", "a"])
async def queue_between_tasks() -> Any:
    queue: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)

    async def put(name: str) -> None:
        await queue.put(await task(name))

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(put(name))
        found = []
        for _ in range(3):
            found.append(await queue.get())
            await asyncio.sleep(5)
    return found


@case([["t0", "t1", "t2", "t3", "t4", "t5"], 0])
async def workers_join_their_queue() -> Any:
    queue: asyncio.Queue[str] = asyncio.Queue()
    done = []

    async def work() -> None:
        while True:
            name = await queue.get()
            done.append(await task(name))
            queue.task_done()

    workers = [asyncio.create_task(work()) for _ in range(3)]
    for i in range(6):
        queue.put_nowait(f"t{i}")
    await queue.join()
    for each in workers:
        each.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    return [sorted(done), queue.qsize()]


@case([1, 2, 3])
async def the_least_comes_first() -> Any:
    queue: asyncio.PriorityQueue[int] = asyncio.PriorityQueue()
    for number in (3, 1, 2):
        await queue.put(number)
        await step("x")
    return [await queue.get() for _ in range(3)]


@case(["b", "go"])
async def an_event_between_tasks() -> Any:
    event, said = asyncio.Event(), []

    async def waits() -> None:
        await event.wait()
        said.append("go")

    waiting = asyncio.create_task(waits())
    said.append(await task("b"))
    event.set()
    await waiting
    return said


@case(["a1", "a2", "b1", "b2", "c1", "c2"])
async def one_at_a_time() -> Any:
    lock, said = asyncio.Lock(), []

    async def one(name: str) -> None:
        async with lock:
            said.append(f"{name}1")
            await task(name)
            said.append(f"{name}2")

    await asyncio.gather(*(one(name) for name in "abc"))
    return said


@case([2, "ValueError"])
async def so_many_at_a_time() -> Any:
    few, most, now = asyncio.BoundedSemaphore(2), 0, 0

    async def one(i: int) -> None:
        nonlocal most, now
        async with few:
            now += 1
            most = max(most, now)
            await task(f"t{i}")
            now -= 1

    await asyncio.gather(*(one(i) for i in range(7)))
    async with asyncio.Semaphore(1):
        pass
    try:
        few.release()
    except ValueError as error:
        return [most, type(error).__name__]


@case([3, 3])
async def a_condition_and_a_barrier() -> Any:
    condition, barrier, there = asyncio.Condition(), asyncio.Barrier(3), []

    async def one(name: str) -> None:
        await task(name)
        await barrier.wait()
        async with condition:
            there.append(name)
            condition.notify_all()

    made = [asyncio.create_task(one(name)) for name in "abc"]
    async with condition:
        await condition.wait_for(lambda: len(there) == 3)
    await asyncio.gather(*made)
    return [len(there), barrier.parties]


# -- shields, cancellation, finally


@case(["late", "a"])
async def a_shield_holds() -> Any:
    inner = asyncio.create_task(named("a"))
    try:
        await asyncio.wait_for(asyncio.shield(inner), 1)
    except TimeoutError:
        return ["late", await inner]


@case(["cancelled", "undo", "finally"])
async def a_cancelled_task_cleans_up() -> Any:
    said = []

    async def one() -> None:
        try:
            await task("never")
        except asyncio.CancelledError:
            said.append("cancelled")
            said.append(await step("undo"))
            raise
        finally:
            await asyncio.sleep(1)
            said.append("finally")

    made = asyncio.create_task(one())
    await step("x")
    made.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await made
    return said


@case(["nothing was asked", "b"])
async def what_is_cancelled_at_once_was_never_asked() -> Any:
    made = [asyncio.create_task(named("never")), asyncio.create_task(asyncio.sleep(5))]
    await asyncio.sleep(0)
    for each in made:
        each.cancel()
    found = await asyncio.gather(*made, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in found)
    return ["nothing was asked", await task("b")]


@case([3, 2, 1, "RunFailed"])
async def an_error_passes_every_finally() -> Any:
    said: list[Any] = []

    async def deep(n: int) -> Any:
        try:
            return await (deep(n + 1) if n < 3 else task("bad"))
        finally:
            await step("undo", n)
            said.append(n)

    try:
        await deep(1)
    except RunFailed as error:
        said.append(type(error).__name__)
    return said


# -- generators, contexts


@case(["t0", "t1", "t2"])
async def an_async_generator() -> Any:
    async def each() -> AsyncIterator[Any]:
        for i in range(3):
            yield await task(f"t{i}")

    return [name async for name in each()]


@case(["t0", "broken off", "undone", "b"])
async def a_generator_that_is_broken_off() -> Any:
    said = []

    async def each() -> AsyncIterator[Any]:
        try:
            for i in range(3):
                yield await task(f"t{i}")
        finally:
            await step("undo")
            said.append("undone")

    async for name in each():
        said.append(name)
        break
    said.append("broken off")
    said.append(await task("b"))
    return said


@case(["t0", "undone", "after"])
async def a_generator_that_is_closed() -> Any:
    said = []

    async def each() -> AsyncIterator[Any]:
        try:
            yield await task("t0")
        finally:
            await task("undo")
            said.append("undone")

    async with contextlib.aclosing(each()) as names:
        async for name in names:
            said.append(name)
            break
    return [*said, "after"]


@case({"t0": ["t0", 0], "t2": ["t2", 4]})
async def comprehensions() -> Any:
    async def numbers() -> AsyncIterator[int]:
        for i in range(4):
            await asyncio.sleep(1)
            yield i

    return {name: pair async for name, pair in _pairs(numbers()) if pair[1] % 4 == 0}


async def _pairs(numbers: AsyncIterator[int]) -> AsyncIterator[Any]:
    for i in [i async for i in numbers if i % 2 == 0]:
        name = await task(f"t{i}")
        yield name, [name, i * 2]


@case(["in 1", "in 2", "body", "out 2", "out 1", "RunFailed"])
async def context_managers() -> Any:
    said = []

    @contextlib.asynccontextmanager
    async def around(n: int) -> AsyncIterator[None]:
        said.append(f"in {n}")
        await task("open", n)
        try:
            yield
        finally:
            await step("close", n)
            said.append(f"out {n}")

    try:
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(around(1))
            await stack.enter_async_context(around(2))
            said.append("body")
            await task("bad")
    except RunFailed:
        said.append("RunFailed")
    return said


place: contextvars.ContextVar[str] = contextvars.ContextVar("place", default="nowhere")


@case([["a", "b", "c"], "main"])
async def every_task_has_its_own_context() -> Any:
    async def one(name: str) -> str:
        token = place.set(name)
        try:
            await task(name)
            return place.get()
        finally:
            place.reset(token)

    assert place.get() == "nowhere"
    place.set("main")
    return [await asyncio.gather(*(one(name) for name in "abc")), place.get()]


# -- the end


@case("done", World({"never": NEVER, "undo": Takes(2, "undo")}))
async def what_is_left_behind_ends_with_it() -> Any:
    async def left() -> None:
        try:
            await task("never")
        finally:
            await asyncio.gather(step("undo", 1), task("undo", 2))
            workflow.publish("undone")

    behind = [asyncio.create_task(left()), asyncio.create_task(asyncio.sleep(1000))]
    await step("x")
    assert not behind[0].done()
    return "done"


@case("done")
async def a_generator_left_behind_is_closed() -> Any:
    async def each() -> AsyncIterator[Any]:
        try:
            yield await task("t0")
        finally:
            await task("undo")

    async for _ in kept(each()):
        return "done"


_KEPT: list[Any] = []


def kept(generator: Any) -> Any:
    _KEPT[:] = [generator]
    return generator


@case(["cancelled", ["go", 1]], World({"never": NEVER}, [(1, CANCEL), (2, signal("go", ["go", 1]))]))
async def a_cancel_that_is_refused() -> Any:
    said: list[Any] = []
    try:
        await task("never")
    except asyncio.CancelledError:
        said.append("cancelled")
    return [*said, await workflow.signal("go", list[Any])]
