"""Workflows of anyio, each with what must come of it. They are run with the anyio that is found first: the oldest of
version 4 by a process of its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import anyio
from anyio import CancelScope, create_task_group, move_on_after

from stepwell import App
from tests.replay.driver import NEVER, Takes, World, event_by_event, step, task, told_again, whole

ANSWERS = {"slow": Takes(3, "slow"), "b": Takes(1, "b"), "never": NEVER, "undo": Takes(2, "undone")}
CASES: dict[str, tuple[Callable[..., Awaitable[Any]], Any]] = {}


def case(result: Any) -> Callable[[Any], Any]:
    def add(fn: Any) -> Any:
        CASES[fn.__name__] = fn, result
        return fn

    return add


@case([True, ["fifth", "first", "fourth", "second", "third"]])
async def cancels_members_that_stand_in_scopes_of_their_own() -> Any:
    ended: list[str] = []

    async def one(name: str) -> None:
        with CancelScope():
            try:
                await task("never")
            finally:
                ended.append(name)
                with CancelScope(shield=True):
                    await task(f"undo {name}")

    with move_on_after(0.2) as scope:
        async with create_task_group() as group:
            for name in ("first", "second", "third", "fourth", "fifth"):
                group.start_soon(one, name)
    return [scope.cancel_called, sorted(ended)]


@case([True, ["a", "b", "c"]])
async def cancels_groups_in_a_group() -> Any:
    undone: list[str] = []

    async def one(name: str) -> None:
        async with create_task_group() as inner:
            inner.start_soon(waits, name)
            inner.start_soon(waits, name)

    async def waits(name: str) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            if name not in undone:
                undone.append(name)
                with CancelScope(shield=True):
                    await step(name)

    with move_on_after(0.2) as scope:
        async with create_task_group() as outer:
            for name in ("a", "b", "c"):
                outer.start_soon(one, name)
    return [scope.cancel_called, sorted(undone)]


@case([True, "undone"])
async def cleans_up_behind_a_shield() -> Any:
    found: list[Any] = []

    async def one() -> None:
        try:
            await task("never")
        finally:
            with CancelScope(shield=True):
                found.append(await task("undo"))
                await anyio.sleep(1)

    with move_on_after(0.2) as scope:
        async with create_task_group() as group:
            group.start_soon(one)
    return [scope.cancel_called, *found]


@case("undone")
async def waits_for_what_a_cancellation_does_not_reach() -> Any:
    inner = asyncio.ensure_future(_undoes())
    with CancelScope() as scope:
        scope.cancel()
        while not inner.done():
            try:
                await asyncio.shield(inner)
            except asyncio.CancelledError:
                continue
    return inner.result()


async def _undoes() -> Any:
    return await task("undo")


app = App()


@app.task(name="slow")
async def ours(number: int) -> str:
    return "slow" * number


@case(["b", "slow"])
async def starts_a_task_of_ours_in_a_group() -> Any:
    async with create_task_group() as group:
        group.start_soon(task, "b")
        group.start_soon(ours, 1)
        group.start_soon(ours, 2, name="named")
    return [await task("b"), await task("slow")]


@case([True, False])
async def cancels_tasks_of_ours_in_a_group() -> Any:
    with move_on_after(0.5) as scope:
        async with create_task_group() as group:
            group.start_soon(task, "never")
            group.start_soon(task, "slow")
    with move_on_after(5) as after:
        await task("b")
    return [scope.cancel_called, after.cancel_called]


@case("ready")
async def starts_one_that_says_it_has_started() -> Any:
    async def one(*, task_status: Any) -> None:
        await task("b")
        task_status.started("ready")
        await task("never")

    async with create_task_group() as group:
        ready = await group.start(one)
        group.cancel_scope.cancel()
    return ready


@case([2, "closed"])
async def passes_things_through_a_stream() -> Any:
    send, receive = anyio.create_memory_object_stream[Any](1)
    got: list[Any] = []

    async def sends() -> None:
        async with send:
            await send.send(await task("b"))
            await send.send(await task("slow"))

    async with create_task_group() as group:
        group.start_soon(sends)
        async with receive:
            async for each in receive:
                got.append(each)
    return [len(got), "closed"]


def world() -> World:
    return World(ANSWERS)


def elsewhere(told: Any, times: int = 8) -> None:
    """Tell it again with the memory in other disorder each time, as it is in another process."""
    for seed in range(times):
        held = _scattered(seed)
        whole(told)
        del held
        if seed % 4 == 0:
            held = _scattered(seed + 1000)
            event_by_event(told)
            del held


def _scattered(seed: int) -> list[Any]:
    """Take all memory of the sizes that scopes and tasks have, and give back places in no order."""
    chance = random.Random(seed)
    places = [[bytes(size) for _ in range(200)] for size in range(40, 500, 16)]
    for of_a_size in places:
        chance.shuffle(of_a_size)
        del of_a_size[:100]
    return places


def tell_all(expected: str) -> None:
    """In a process of its own, with this version of anyio."""
    assert version("anyio") == expected, anyio.__file__
    for fn, result in CASES.values():
        told = world().run(fn, check=False)
        assert told.result == result, (fn.__name__, told.result)
        told_again(told)
        elsewhere(told)
