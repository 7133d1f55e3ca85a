from __future__ import annotations

import asyncio
import json

import executor_bodies as bodies
import pytest
from executor_bodies import defined

from stepwell.executors.base import BodyExited, traceback_text
from stepwell.executors.inline import InlineExecutor


async def test_a_body_is_given_its_input_and_its_result_comes_back() -> None:
    body = defined(bodies.add_async)
    assert json.loads(await InlineExecutor().run(body, body.input(2, 3))) == 5


async def test_what_the_body_raises_is_raised_and_the_traceback_begins_at_the_users_line() -> None:
    body = defined(bodies.decline_async)
    with pytest.raises(bodies.Declined, match="too poor") as raised:
        await InlineExecutor().run(body, body.input("too poor"))
    frames = traceback_text(raised.value.with_traceback(raised.value.__traceback__.tb_next)).splitlines()
    assert "executor_bodies.py" in frames[1]
    assert "# the user's line" in frames[2]


async def test_a_body_that_exits_does_not_take_the_loop_along() -> None:
    body = defined(bodies.leave_async)
    with pytest.raises(BodyExited, match="SystemExit: 3"):
        await InlineExecutor().run(body, body.input(3))


async def test_a_keyboard_interrupt_from_a_body_is_contained() -> None:
    body = defined(bodies.raise_by_name_async)
    with pytest.raises(BodyExited, match="KeyboardInterrupt"):
        await InlineExecutor().run(body, body.input("KeyboardInterrupt"))


async def test_a_body_that_awaits_something_cancelled_is_not_taken_for_cancelled() -> None:
    body = defined(bodies.await_something_cancelled)
    with pytest.raises(BodyExited, match="CancelledError"):
        await InlineExecutor().run(body, body.input())


async def test_cancelling_the_waiter_cancels_the_body() -> None:
    started, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    body = defined(hang)
    waiter = asyncio.create_task(InlineExecutor().run(body, body.input()))
    await started.wait()
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert ended.is_set()
