"""Workflows of plain asyncio, each with the world it lives in and what must come of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from stepwell.model.errors import RunFailed
from tests.replay.driver import NEVER, Fails, Takes, World, child, step, task

SLOW = {"a": Takes(3, "a"), "b": Takes(1, "b"), "c": Takes(2, "c"), "bad": Takes(1.5, Fails()), "never": NEVER}


@dataclass
class Case:
    fn: Callable[..., Awaitable[Any]]
    result: Any
    world: World = field(default_factory=lambda: World(SLOW))


CASES: dict[str, Case] = {}


def case(result: Any, world: World | None = None) -> Callable[[Any], Any]:
    def add(fn: Any) -> Any:
        CASES[fn.__name__] = Case(fn, result, world or World(SLOW))
        return fn

    return add


# -- gather, create_task, TaskGroup


@case(["a", "b", "c"])
async def gathers_in_order() -> Any:
    return await asyncio.gather(task("a"), step("b"), child("c"))


@case(["RunFailed", "a", "no"])
async def gathers_errors() -> Any:
    async def raises() -> None:
        await asyncio.sleep(1)
        raise KeyError("no")

    found = await asyncio.gather(task("bad"), task("a"), raises(), return_exceptions=True)
    return [type(found[0]).__name__, found[1], found[2].args[0]]


@case(["a", "b"])
async def the_others_of_a_failed_gather_go_on() -> Any:
    done = []

    async def one(name: str) -> None:
        done.append(await task(name))

    left = [asyncio.create_task(one("a")), asyncio.create_task(one("b"))]
    try:
        await asyncio.gather(task("bad"), *left)
    except RunFailed:
        assert done == ["b"]
    await asyncio.gather(*left)
    return sorted(done)


@case([])
async def gathers_nothing() -> Any:
    return await asyncio.gather()


@case(["b", "c", "a"])
async def tasks_end_in_their_own_time() -> Any:
    ended = []

    async def one(name: str) -> None:
        ended.append(await task(name))

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(one(name), name=f"task {name}")
    return ended


@case([["RunFailed"], ["b", "cancelled a", "finally a"]])
async def a_failing_member_cancels_its_group() -> Any:
    said = []

    async def one(name: str) -> None:
        try:
            said.append(await task(name))
        except asyncio.CancelledError:
            said.append(f"cancelled {name}")
            raise
        finally:
            if name == "a":
                await step("undo")
                said.append("finally a")

    try:
        async with asyncio.TaskGroup() as group:
            for name in ("a", "b", "bad"):
                group.create_task(one(name))
    except* RunFailed as failed:
        kinds = [type(each).__name__ for each in failed.exceptions]
    return [kinds, said]


@case(["ValueError", "KeyError"])
async def two_errors_make_a_group() -> Any:
    async def raises(error: Exception) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            raise error

    caught = []
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(raises(ValueError()))
            group.create_task(raises(KeyError()))
            await step("x")
            raise ArithmeticError
    except* ArithmeticError:
        pass
    except* (ValueError, KeyError) as found:
        caught = [type(each).__name__ for each in found.exceptions]
    return caught


@case("b")
async def the_first_of_a_group_ends_it() -> Any:
    class Enough(Exception):
        pass

    found = []

    async def one(name: str) -> None:
        found.append(await task(name))
        raise Enough

    with contextlib.suppress(BaseExceptionGroup):
        async with asyncio.TaskGroup() as group:
            for name in "abc":
                group.create_task(one(name))
    return found[0]


@case([["a", "b"], ["c", ["a", "b", "c"]]])
async def groups_in_groups_in_groups() -> Any:
    async def pair(*names: str) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            made = [group.create_task(task(name)) for name in names]
        return [each.result() for each in made]

    async def deep() -> Any:
        return [await task("c"), await asyncio.gather(*(pair(name) for name in "abc"))]

    async with asyncio.TaskGroup() as group:
        one, two = group.create_task(pair("a", "b")), group.create_task(deep())
    last = two.result()
    return [one.result(), [last[0], [each[0] for each in last[1]]]]


# -- wait, as_completed


async def named(name: str) -> Any:
    return await task(name)


@case([["b"], ["b", "c"], ["a", "b", "c"]])
async def waits_for_the_first_and_the_next() -> Any:
    rest = {asyncio.create_task(named(name)) for name in "abc"}
    got, all = [], []
    while rest:
        done, rest = await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED)
        all += [each.result() for each in done]
        got.append(sorted(all))
    return got


@case([["b", "bad"], ["a", "c"]])
async def waits_for_the_first_error() -> Any:
    made = {name: asyncio.create_task(named(name)) for name in ("a", "b", "bad", "c")}
    done, _ = await asyncio.wait(made.values(), return_when=asyncio.FIRST_EXCEPTION)
    for each in made.values():
        each.cancel()
    return [sorted(n for n, t in made.items() if t in done), sorted(n for n, t in made.items() if t not in done)]


@case(["a", "b", "c"])
async def waits_for_all_of_them() -> Any:
    done, pending = await asyncio.wait([asyncio.create_task(named(name)) for name in "abc"])
    assert not pending
    return sorted(each.result() for each in done)


@case([1, 2])
async def waits_only_so_long() -> Any:
    made = [asyncio.create_task(named(name)) for name in "abc"]
    done, pending = await asyncio.wait(made, timeout=1.5)
    return [len(done), len(pending)]


@case(["u"] * 30)
async def what_wait_returns_is_walked_in_one_order() -> Any:
    """Steps in the order of a set, which are commands in that order."""
    done, _ = await asyncio.wait([asyncio.create_task(named(f"t{i}")) for i in range(30)])
    return [await step("u", each.result()) for each in done]


@case([[0], [1], [2], [3], [4]])
async def gathers_are_walked_in_one_order_too() -> Any:
    async def one(i: int) -> int:
        await asyncio.sleep(1)
        return i

    done, _ = await asyncio.wait([asyncio.gather(one(i)) for i in range(5)])
    for each in done:
        await step(f"t{each.result()[0]}")
    return sorted(each.result() for each in done)


@case(["b", "c", "a"])
async def coroutines_as_they_complete() -> Any:
    return [await each for each in asyncio.as_completed([task(name) for name in "abc"])]


@case(["b", "c", "a"])
async def tasks_as_they_complete() -> Any:
    made = [asyncio.create_task(named(name)) for name in "abc"]
    return [await each for each in asyncio.as_completed(made)]


@case(["b", "late", "late"])
async def as_they_complete_for_so_long() -> Any:
    found = []
    for each in asyncio.as_completed([named(name) for name in "abc"], timeout=1.5):
        try:
            found.append(await each)
        except TimeoutError:
            found.append("late")
    return found


@case(["b", "RunFailed", "a"])
async def an_error_as_it_completes() -> Any:
    found = []
    for each in asyncio.as_completed([named("bad"), named("a"), named("b")]):
        try:
            found.append(await each)
        except RunFailed as error:
            found.append(type(error).__name__)
    return found


# -- time


@case(["late", "b"])
async def times_out() -> Any:
    try:
        async with asyncio.timeout(2):
            await task("a")
    except TimeoutError:
        found = "late"
    async with asyncio.timeout(2):
        return [found, await task("b")]


@case(["late", 2.0])
async def times_out_at() -> Any:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout_at(loop.time() + 2):
            await asyncio.Event().wait()
    except TimeoutError:
        return ["late", loop.time()]


@case(["inner", "outer"])
async def times_out_inside_of_what_times_out() -> Any:
    found = []
    try:
        async with asyncio.timeout(5):
            try:
                async with asyncio.timeout(1):
                    await asyncio.sleep(100)
            except TimeoutError:
                found.append("inner")
            await asyncio.sleep(100)
    except TimeoutError:
        found.append("outer")
    return found


@case("b")
async def a_timeout_is_put_off() -> Any:
    async with asyncio.timeout(0.5) as until:
        until.reschedule(asyncio.get_running_loop().time() + 10)
        return await task("b")


@case(["late", "b"])
async def waits_for_it_only_so_long() -> Any:
    try:
        await asyncio.wait_for(task("a"), 2)
    except TimeoutError:
        return ["late", await asyncio.wait_for(task("b"), 2)]


@case([6.0, "x"])
async def sleeps() -> Any:
    loop = asyncio.get_running_loop()
    await asyncio.sleep(0)
    await asyncio.sleep(-1)
    await asyncio.gather(asyncio.sleep(1), asyncio.sleep(2))
    value = await asyncio.sleep(4, "x")
    return [loop.time(), value]


@case("b")
async def sleeps_for_ever_beside() -> Any:
    forever = asyncio.create_task(asyncio.sleep(float("inf")))
    found = await task("b")
    forever.cancel()
    return found
