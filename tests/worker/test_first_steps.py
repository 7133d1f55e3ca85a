"""Bodies share a task for their first step. One that has to wait keeps it to itself, and another goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from stepwell.model.outcome import Released
from stepwell.worker import attempts
from tests.worker.desk import Desk

seen: ContextVar[str] = ContextVar("seen", default="nothing")


@asynccontextmanager
async def counting_tasks() -> AsyncIterator[list[Any]]:
    """The tasks that are made in the block."""
    made: list[Any] = []
    loop = asyncio.get_running_loop()

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        made.append(coroutine)
        return asyncio.Task(coroutine, loop=loop, **more)

    loop.set_task_factory(make)
    try:
        yield made
    finally:
        loop.set_task_factory(None)


async def test_bodies_that_never_wait_share_one_task_and_end_in_order() -> None:
    async def quick() -> int:
        return 1

    async def other() -> int:
        return 2

    desk = Desk(quick, other)
    async with counting_tasks() as made:
        assert await desk.do(*["quick", "other"] * 50) == ["1", "2"] * 50
    assert len(made) == 1
    assert desk.order == ["quick", "other"] * 50


async def test_only_bodies_that_wait_have_a_task_of_their_own() -> None:
    async def quick() -> int:
        return 1

    async def waits() -> int:
        await asyncio.sleep(0)
        return 2

    desk = Desk(quick, waits)
    async with counting_tasks() as made:
        assert await desk.do("quick", "waits", "quick", "waits", "quick") == ["1", "2", "1", "2", "1"]
    assert len(made) == 3, "the two that wait, and the one that took the last"


async def test_a_body_that_waits_holds_nobody_up() -> None:
    go_on = asyncio.Event()

    async def waits() -> int:
        await go_on.wait()
        return 1

    async def quick() -> int:
        go_on.set()
        return 2

    assert await Desk(waits, quick).do("waits", "waits", "quick") == ["1", "1", "2"]


async def test_what_a_body_sets_in_its_context_is_seen_by_no_other() -> None:
    async def quick() -> str:
        before = seen.get()
        seen.set("quick was here")
        return before

    async def waits() -> list[str]:
        before = seen.get()
        seen.set("waits was here")
        await asyncio.sleep(0)
        return [before, seen.get()]

    desk = Desk(quick, waits)
    done = await desk.do("quick", "quick", "waits", "quick", "waits", "quick")
    kept = '["nothing","waits was here"]'
    assert done == ['"nothing"', '"nothing"', kept, '"nothing"', kept, '"nothing"']
    assert seen.get() == "nothing"


async def test_an_error_in_the_first_step_is_its_bodys_alone() -> None:
    async def fails() -> None:
        raise KeyError("no")

    async def exits() -> None:
        raise SystemExit(3)

    async def ends() -> None:
        raise GeneratorExit

    async def quick() -> int:
        return 1

    done = await Desk(fails, exits, ends, quick).do("fails", "quick", "exits", "quick", "ends", "quick")
    assert done[1::2] == ["1", "1", "1"]
    assert "Completed" not in done
    assert done[0] == "KeyError"


async def cancels_itself_and_returns() -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return 1


async def cancels_itself_and_waits() -> int:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0.001)
    return 1


async def cancels_itself_later() -> int:
    await asyncio.sleep(0)
    return await cancels_itself_and_returns()


async def changes_its_mind() -> int:
    """Until Python 3.13 a task that is cancelled and not cancelled after all is cancelled at its next wait."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    task.uncancel()
    return 1


@pytest.mark.parametrize(
    "odd", [cancels_itself_and_returns, cancels_itself_and_waits, cancels_itself_later, changes_its_mind]
)
async def test_a_body_that_cancels_its_own_task_does_not_cancel_its_neighbours(odd: Any) -> None:
    async def quick() -> int:
        return 2

    async def waits() -> int:
        await asyncio.sleep(0.001)
        return 3

    name = odd.__name__
    done = await Desk(odd, quick, waits).do(name, "waits", name, "quick", "waits", name, name, "quick")
    assert [each for each in done if each in "23"] == ["3", "2", "3", "2"]
    expected = {"cancels_itself_and_waits": "stepwell.executors.base.BodyExited"}.get(name, "1")
    assert {done[0], done[2], done[5], done[6]} == {expected}


async def times_out_at_once() -> str:
    try:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()
    except TimeoutError:
        return "in time"
    return "never"


async def times_out_later() -> str:
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()
    except TimeoutError:
        return "in time"
    return "never"


async def needs_no_timeout() -> str:
    async with asyncio.timeout(0):
        await at_once()
    async with asyncio.timeout(10):
        return await at_once()


async def at_once() -> str:
    return "in time"


@pytest.mark.parametrize("body", [times_out_at_once, times_out_later, needs_no_timeout])
async def test_a_timeout_inside_a_body_is_that_bodys_alone(body: Any) -> None:
    async def waits() -> int:
        await asyncio.sleep(0.005)
        return 3

    done = await Desk(body, waits).do(*[body.__name__, "waits"] * 3)
    assert done == ['"in time"', "3"] * 3


async def test_a_group_of_tasks_inside_a_body_ends_with_it() -> None:
    async def adds() -> int:
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(asyncio.sleep(0, number)) for number in range(4)]
        return sum(part.result() for part in parts)

    async def adds_later() -> int:
        await asyncio.sleep(0)
        return await adds()

    async def needs_none() -> int:
        async with asyncio.TaskGroup():
            return 0

    async def breaks() -> int:
        async def part() -> None:
            raise KeyError("no")

        async with asyncio.TaskGroup() as group:
            group.create_task(part())
            await asyncio.Event().wait()
        return 1

    done = await Desk(adds, adds_later, needs_none, breaks).do("needs_none", "breaks", "adds", "adds_later", "breaks")
    assert done == ["0", "KeyError", "6", "6", "KeyError"]


async def test_a_body_finds_itself_in_the_same_task_in_its_first_step_and_after() -> None:
    tasks: dict[str, set[Any]] = {"a": set(), "b": set()}

    def body(name: str) -> Any:
        async def waits() -> None:
            for _ in range(3):
                tasks[name].add(asyncio.current_task())
                await asyncio.sleep(0)

        waits.__name__ = name
        return waits

    desk = Desk(body("a"), body("b"))
    await desk.do("a", "b")
    assert [len(tasks["a"]), len(tasks["b"]), len(tasks["a"] & tasks["b"])] == [1, 1, 0]
    assert None not in tasks["a"] | tasks["b"]


async def test_bodies_that_block_let_the_loop_have_a_turn_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With no patience at all there is a turn after each; with endless patience there would be none."""
    turns, at = 0, []

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns < 100:
            loop.call_soon(turn)

    async def blocks() -> None:
        at.append(turns)

    loop = asyncio.get_running_loop()
    for patience, different in ((-1.0, 10), (60.0, 1)):
        monkeypatch.setattr(attempts, "STRETCH", patience)
        turns, desk = 0, Desk(blocks)
        at.clear()
        loop.call_soon(turn)
        await desk.do(*["blocks"] * 10)
        assert len(set(at)) == different
        turns = 100


async def test_what_ended_before_a_turn_is_told_of_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "STRETCH", -1.0)

    async def blocks() -> None: ...

    desk = Desk(blocks)
    await desk.do(*["blocks"] * 10)
    assert desk.stirs >= 10


async def test_no_more_bodies_wait_than_there_are_slots() -> None:
    waiting, most = 0, 0

    async def waits() -> None:
        nonlocal waiting, most
        waiting += 1
        most = max(most, waiting)
        await asyncio.sleep(0.001)
        waiting -= 1

    desk = Desk(waits, slots=3)
    await desk.do(*["waits"] * 20)
    assert most == 3


async def test_a_line_that_is_left_during_a_turn_is_released_and_nothing_of_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "STRETCH", -1.0)
    ran = []

    async def blocks() -> None:
        ran.append(True)
        if len(ran) == 1:
            asyncio.get_running_loop().call_soon(desk.attempts.leave_line, Released())

    desk = Desk(blocks)
    assert await desk.do(*["blocks"] * 5) == ["null", *["Released"] * 4]
    assert len(ran) == 1


async def test_a_body_that_kept_its_task_and_cancels_it_later_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task goes on with others by then: they fail at the worst, and the line is served all the same."""
    monkeypatch.setattr(attempts, "STRETCH", -1.0)  # a pause after every body, where the cancellation arrives

    async def spiteful() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        return 1

    async def quick() -> int:
        return 2

    desk = Desk(spiteful, quick)
    assert await desk.do("spiteful", "quick", "quick") == ["1", "2", "2"]
    assert await desk.do("quick") == ["2"]


if hasattr(asyncio, "eager_task_factory"):  # since Python 3.12

    async def test_an_eager_task_factory_does_not_nest_the_first_steps() -> None:
        end = asyncio.Event()

        async def waits() -> int:
            await end.wait()
            return 1

        desk = Desk(waits, slots=1000)
        loop = asyncio.get_running_loop()
        loop.set_task_factory(asyncio.eager_task_factory)
        try:
            desk.begin(*["waits"] * 1000)
            for _ in range(3000):
                await asyncio.sleep(0)
            end.set()
            async with asyncio.timeout(10):
                await desk.attempts.idle()
        finally:
            loop.set_task_factory(None)
        assert len(desk.outcomes) == 1000
