"""The rest of a coroutine whose first step was taken by hand: nothing inside it sees a difference."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from stepwell.worker.first_steps import Rest

seen: ContextVar[str] = ContextVar("seen", default="nothing")


async def rest_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Take the first step by hand, and await the rest."""
    context = copy_context()
    awaited = context.run(coroutine.send, None)
    return await Rest(coroutine, context, awaited)


async def test_the_rest_gives_what_the_coroutine_waits_for_and_returns() -> None:
    async def body() -> list[int]:
        got = []
        for number in range(3):
            future = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(future.set_result, number)
            got.append(await future)
        return got

    assert await rest_of(body()) == [0, 1, 2]


async def test_an_error_of_what_is_awaited_is_thrown_in_and_may_be_caught() -> None:
    async def body(caught: bool) -> str:
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, KeyError("k"))
        try:
            await future
        except KeyError:
            if caught:
                await asyncio.sleep(0)
                return "caught"
            raise
        return "not reached"

    assert await rest_of(body(True)) == "caught"
    with pytest.raises(KeyError):
        await rest_of(body(False))


async def test_a_bare_turn_of_the_loop_is_one() -> None:
    turns = []

    async def body() -> int:
        for number in range(3):
            asyncio.get_running_loop().call_soon(turns.append, number)
            await asyncio.sleep(0)
            assert turns == list(range(number + 1))
        return len(turns)

    assert await rest_of(body()) == 3


async def test_a_cancellation_reaches_the_coroutine_and_it_may_clean_up() -> None:
    waits, cleaned = asyncio.Event(), []

    async def body() -> None:
        try:
            await asyncio.sleep(0)
            waits.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    task = asyncio.create_task(rest_of(body()))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned


async def test_a_rest_that_is_closed_closes_its_coroutine_in_its_own_context() -> None:
    closed = []

    async def body() -> None:
        seen.set("its own")
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(seen.get())

    coroutine, context = body(), copy_context()
    waiting = Rest(coroutine, context, context.run(coroutine.send, None)).__await__()
    next(waiting)
    waiting.close()
    assert closed == ["its own"]


async def test_every_step_sees_what_the_coroutine_set_and_nobody_else_does() -> None:
    async def body(name: str) -> list[str]:
        before = seen.get()
        seen.set(name)
        await asyncio.sleep(0)
        here = seen.get()
        seen.set(f"{name} later")
        await asyncio.sleep(0)
        return [before, here, seen.get()]

    assert await rest_of(body("a")) == ["nothing", "a", "a later"]
    assert seen.get() == "nothing"
