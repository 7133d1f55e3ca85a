"""Timers of one moment fire together, as in asyncio: the code runs when all of them have fired."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from stepwell.context.workflow import workflow
from stepwell.model.events import Event, EventType
from stepwell.model.forks import cut
from tests.replay.driver import BEGAN, World, new_replay, step, told_again


async def nested_timeouts() -> list[Any]:
    found: list[Any] = []
    loop = asyncio.get_running_loop()
    when = loop.time() + 0.05
    try:
        async with asyncio.timeout_at(when) as outer:
            try:
                async with asyncio.timeout_at(when) as inner:
                    await asyncio.Event().wait()
            except TimeoutError:
                found.append("inner")
            else:
                found.append("nothing")
            finally:
                found.append(inner.expired())
    except TimeoutError:
        found.append("outer")
    found.append(outer.expired())
    return found


async def waits_inside_of_waits() -> list[Any]:
    found: list[Any] = []

    async def sleeps(name: str, seconds: float) -> None:
        try:
            await asyncio.sleep(seconds)
            found.append(name)
            for _ in range(3):
                await asyncio.sleep(0)
            found.append(f"{name} later")
        except asyncio.CancelledError:
            found.append(f"{name} cancelled")
            raise

    made = [asyncio.create_task(sleeps(name, 0.05)) for name in ("a", "b", "c")]
    await made[0]
    made[1].cancel()
    await asyncio.gather(*made, return_exceptions=True)
    return found


@pytest.mark.parametrize("fn", [nested_timeouts, waits_inside_of_waits])
def test_timers_of_one_moment_behave_as_in_asyncio(fn: Callable[[], Awaitable[Any]]) -> None:
    async def on_a_clock_that_stands() -> Any:
        loop = asyncio.get_running_loop()
        began = loop.time()
        loop.time = lambda: began  # type: ignore[method-assign]
        loop.call_soon(lambda: delattr(loop, "time"))
        return await fn()

    async def elsewhere() -> Any:
        return await on_a_clock_that_stands()

    told = World().run(fn)
    assert told.result == asyncio.run(elsewhere())
    told_again(told)


async def asks_upon_each() -> list[str]:
    async def one(name: str) -> str:
        await asyncio.sleep(5)
        return str(await step(name))

    async def waits() -> str:
        try:
            await workflow.signal("never", timeout=timedelta(seconds=5))
        except TimeoutError:
            return str(await step("timed out"))
        return "signalled"

    return list(await asyncio.gather(one("a"), waits(), one("b")))


def test_a_signal_that_times_out_at_that_moment_is_among_them() -> None:
    told = World().run(asks_upon_each)
    assert told.result == ["a", "timed out", "b"]
    fired = [event for event in told.history if event.type in (EventType.TIMER_FIRED, EventType.SIGNAL_TIMED_OUT)]
    assert [event.idx for event in fired] == [5, 6, 7]
    assert [event.together for event in fired] == [True, True, None]


def test_a_history_is_not_cut_between_timers_that_fired_together() -> None:
    history = World().run(asks_upon_each).history
    assert [cut(history, at).last for at in (4, 5, 6, 7)] == [4, 4, 4, 7]
    assert [event.command for event in cut(history, 6).timers] == [1, 2, 3]


def test_histories_in_which_they_fired_one_by_one_are_told_as_they_were() -> None:
    """Each was an arrival of its own: the code ran, and asked for more, before the next had fired."""
    kinds: list[tuple[EventType, int, str | None]] = [
        (EventType.WORKFLOW_STARTED, 0, None),
        (EventType.TIMER_SCHEDULED, 1, None),
        (EventType.TIMER_SCHEDULED, 2, None),
        (EventType.TIMER_FIRED, 1, None),
        (EventType.VERSION_MARKED, 3, "one"),
        (EventType.TIMER_FIRED, 2, None),
        (EventType.VERSION_MARKED, 4, "two"),
    ]
    later = BEGAN + timedelta(seconds=5)
    history = [
        Event(
            idx, type, BEGAN if idx < 4 else later, command or None, name,
            when=later if type is EventType.TIMER_SCHEDULED else None,
        )
        for idx, (type, command, name) in enumerate(kinds, 1)
    ]  # fmt: skip

    async def marks() -> None:
        async def one(name: str) -> None:
            await asyncio.sleep(5)
            workflow.patched(name)

        await asyncio.gather(one("one"), one("two"))

    replay = new_replay(marks)
    replay.recorded(history)
    assert replay.take() == []
    assert replay.ended is not None
    replay.evict()


def test_timers_of_other_moments_fire_alone() -> None:
    async def sleeps() -> int:
        return len(await asyncio.gather(*(asyncio.sleep(second) for second in range(1, 301))))

    told = World().run(sleeps, check=False)
    assert told.result == 300
    assert all(event.together is None for event in told.history)
