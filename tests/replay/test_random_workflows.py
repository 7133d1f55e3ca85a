"""Random workflows in random worlds: live, told again whole, event by event, and evicted after every turn, they issue
the same commands."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from itertools import cycle
from typing import Any
from unittest.mock import patch
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell.context.workflow import workflow
from stepwell.replay import loop, replay
from tests.replay.driver import (
    CANCEL,
    NEVER,
    Driving,
    Fails,
    Takes,
    World,
    child,
    event_by_event,
    from_every_part,
    same,
    signal,
    step,
    task,
    told_again,
    update,
    whole,
)

NAMES = ("a", "b", "c", "d")
seconds = st.sampled_from([0.0, 0.5, 1.0, 1.0, 2.0, 3.0, 7.0])
names = st.sampled_from(NAMES)
plain = st.one_of(
    st.tuples(st.sampled_from(["task", "step", "child", "signal", "rollback", "patched"]), names),
    st.tuples(st.just("sleep"), seconds),
    st.tuples(st.just("signal in time"), names, seconds),
    st.tuples(st.sampled_from(["publish", "random", "raise", "cancel me"])),
)
nested = st.recursive(
    plain,
    lambda each: st.one_of(
        st.tuples(
            st.sampled_from(["one by one", "gather", "gather all", "group", "as completed", "generator"]),
            st.lists(each, min_size=1, max_size=4),
        ),
        st.tuples(
            st.just("wait"),
            st.lists(each, min_size=1, max_size=4),
            st.sampled_from(["FIRST_COMPLETED", "FIRST_EXCEPTION", "ALL_COMPLETED"]),
        ),
        st.tuples(st.sampled_from(["timeout", "wait for", "cancel after", "leave behind"]), each, seconds),
        st.tuples(st.sampled_from(["finally", "shield", "except"]), each, each),
    ),
    max_leaves=14,
)
bare = st.tuples(
    st.sampled_from(["gather", "gather all", "group", "as completed", "wait", "shield", "wait for", "cancel after"]),
    st.lists(st.tuples(st.sampled_from(["task", "child"]), names), min_size=1, max_size=5),
    seconds,
).map(lambda each: ("bare", *each))
"""Calls, and nothing around them."""


class Wrong(Exception):
    pass


async def do(what: tuple[Any, ...], said: list[str]) -> None:  # noqa: C901  # a grammar is a list
    """Carry out one part of a random workflow, and say what came of it."""
    kind, *rest = what
    match kind:
        case "task" | "step" | "child":
            said.append(str(await {"task": task, "step": step, "child": child}[kind](rest[0])))
        case "signal":
            said.append(str(await workflow.signal(rest[0])))
        case "signal in time":
            said.append(str(await workflow.signal(rest[0], timeout=rest[1])))
        case "sleep":
            await asyncio.sleep(rest[0])
        case "publish":
            workflow.publish(said)
        case "random":
            said.append(str(workflow.uuid()))
            await asyncio.sleep(workflow.random.choice([0, 1, 2]))
        case "raise":
            raise Wrong
        case "cancel me":
            me = asyncio.current_task()
            assert me is not None
            me.cancel()
        case "patched":
            said.append(str(workflow.patched(rest[0])))
        case "rollback":
            workflow.on_rollback(task, rest[0])
        case "bare":
            await calls(rest[0], rest[1], rest[2], said)
        case "finally" | "shield" | "except" | "timeout" | "wait for" | "cancel after" | "leave behind":
            await around(kind, rest[0], rest[1], said)
        case _:
            await together(kind, rest, said)


async def around(kind: str, inner: tuple[Any, ...], more: Any, said: list[str]) -> None:
    match kind:
        case "finally":
            try:
                await do(inner, said)
            finally:
                await do(more, said)
        case "except":
            try:
                await do(inner, said)
            except (Exception, asyncio.CancelledError) as error:
                said.append(type(error).__name__)
                await do(more, said)
        case "shield":
            try:
                await asyncio.gather(asyncio.shield(asyncio.create_task(do(inner, said))), do(more, said))
            except ExceptionGroup:
                said.append("group")
        case "timeout":
            async with asyncio.timeout(more):
                await do(inner, said)
        case "wait for":
            await asyncio.wait_for(do(inner, said), more)
        case "cancel after" | "leave behind":
            made = asyncio.create_task(do(inner, said))
            await asyncio.sleep(more)
            if kind == "cancel after":
                made.cancel()


async def together(kind: str, rest: list[Any], said: list[str]) -> None:  # noqa: C901  # a grammar is a list
    parts = rest[0]
    match kind:
        case "one by one":
            for each in parts:
                await do(each, said)
        case "gather":
            await asyncio.gather(*(do(each, said) for each in parts))
        case "gather all":
            found = await asyncio.gather(*(do(each, said) for each in parts), return_exceptions=True)
            said.extend(type(each).__name__ for each in found)
        case "group":
            async with asyncio.TaskGroup() as group:
                for each in parts:
                    group.create_task(do(each, said))
        case "as completed":
            for ended in asyncio.as_completed([do(each, said) for each in parts], timeout=5):
                await ended
        case "wait":
            made = [asyncio.create_task(do(each, said)) for each in parts]
            done, pending = await asyncio.wait(made, return_when=rest[1], timeout=6)
            for ended in done:
                said.append(f"{made.index(ended)} {ended.cancelled() or ended.exception() is None}")
                await step("seen")
            for left in pending:
                left.cancel()
        case "generator":
            async for number in one_after_another(parts, said):
                if number == 2:
                    break


async def calls(kind: str, asked: list[tuple[str, str]], more: float, said: list[str]) -> None:  # noqa: C901  # a grammar is a list
    made = [{"task": task, "child": child}[of](name) for of, name in asked]
    match kind:
        case "gather":
            said.append(str(await asyncio.gather(*made)))
        case "gather all":
            said.append(str(await asyncio.gather(*made, return_exceptions=True)))
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each) for each in made]
            said.extend(str(each.result()) for each in tasks)
        case "as completed":
            for ended in asyncio.as_completed(made, timeout=more):
                said.append(str(await ended))
        case "wait":
            waited = [asyncio.create_task(each) for each in made]
            done, pending = await asyncio.wait(waited, return_when="FIRST_COMPLETED", timeout=more)
            said.append(str(sorted(waited.index(each) for each in done)))
            for each in pending:
                said.append(str(each.cancel()))
            said.append(str(await asyncio.gather(*pending, return_exceptions=True)))
        case "shield":
            said.append(str(await asyncio.wait_for(asyncio.shield(asyncio.gather(*made)), more)))
        case "wait for":
            said.append(str(await asyncio.wait_for(asyncio.gather(*made), more)))
        case "cancel after":
            begun = [asyncio.create_task(each) for each in made]
            await asyncio.sleep(more)
            for each in begun[1:]:
                each.cancel()
                each.cancel()
            await step("asked them to end")
            said.append(str([each.cancelling() for each in begun]))
            said.append(str(await asyncio.gather(*begun, return_exceptions=True)))


async def one_after_another(parts: list[Any], said: list[str]) -> AsyncIterator[int]:
    try:
        for number, each in enumerate(parts):
            await do(each, said)
            yield number
    finally:
        await step("closed")


outcomes = st.one_of(
    st.builds(Takes, seconds, st.sampled_from([1, 2, 3])),
    st.builds(Takes, seconds, st.builds(Fails)),
    st.builds(Takes, seconds, st.just(Fails(state="cancelled"))),
    st.just(NEVER),
)
comes = st.one_of(
    st.builds(signal, names, st.integers(0, 9)),
    st.builds(signal, names, st.integers(0, 9)),
    st.just(CANCEL),
    st.integers(1, 99).map(lambda number: update("ask", number)),
)
worlds = st.builds(
    World,
    st.fixed_dictionaries({name: st.lists(outcomes, min_size=1, max_size=4) for name in NAMES}),
    st.lists(st.tuples(seconds.map(lambda each: each + 0.25), comes), max_size=6),
    st.integers(0, 2**128 - 1).map(lambda number: UUID(int=number)),
)


def workflow_of(parts: list[tuple[Any, ...]]) -> Any:
    async def random_workflow() -> list[str]:
        said: list[str] = []

        @workflow.update
        async def ask() -> int:
            await step("asked")
            return len(said)

        for each in parts[:-1]:
            try:
                await do(each, said)
            except (Exception, BaseExceptionGroup) as error:
                said.append(type(error).__name__)
        await do(parts[-1], said)
        return said

    return random_workflow


anything = st.lists(st.one_of(nested, bare), min_size=1, max_size=4)
stretches = st.sampled_from([1, 2, 3, 7, 100])


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(anything, worlds, stretches)
def test_however_it_is_told_it_issues_the_same_commands(
    parts: list[tuple[Any, ...]], world: World, stretch: int
) -> None:
    with patch.object(replay, "STRETCH", stretch):
        told = world.run(workflow_of(parts), check=False)
        told_again(told)
    told.replay.evict()


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(anything, worlds, st.sampled_from([1, 2, 3]), st.lists(st.booleans(), min_size=1, max_size=8))
def test_what_was_written_in_part_goes_on_wherever_its_worker_was_lost(
    parts: list[tuple[Any, ...]], world: World, stretch: int, lost: list[bool]
) -> None:
    with patch.object(replay, "STRETCH", stretch):
        driving = Driving(world, workflow_of(parts), lost=cycle(lost))
        driving.begin(None)
        told = driving.to_the_end()
        # Not from every prefix: what was taken back before anyone had heard of it is another matter for each of them.
        whole(told)
        event_by_event(told)
        from_every_part(told)
    told.replay.evict()


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.one_of(bare, bare, nested), min_size=1, max_size=4), worlds)
def test_a_task_that_only_calls_is_as_one_of_asyncio(parts: list[tuple[Any, ...]], world: World) -> None:
    light = world.run(workflow_of(parts), check=False)
    with patch.object(loop, "MakesItsTask", ()):
        heavy = world.run(workflow_of(parts), check=False)
    assert [same(each) for each in light.history] == [same(each) for each in heavy.history]
    assert light.ended == heavy.ended
    for each in (light, heavy):
        each.replay.evict()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(nested, min_size=1, max_size=4), worlds, st.lists(st.booleans(), min_size=1, max_size=8))
def test_it_may_be_evicted_and_garbage_be_collected_at_any_time(
    parts: list[tuple[Any, ...]], world: World, evicts: list[bool]
) -> None:
    fn = workflow_of(parts)
    undisturbed = world.run(fn, check=False)
    driving = Driving(world, fn)
    driving.begin(None)
    turn = 0
    while driving.replay.ended is None and driving.once():
        turn += 1
        if evicts[turn % len(evicts)]:
            gc.collect(0)
            driving.begin_again()
    told = driving.to_the_end()
    assert told.ended == undisturbed.ended
    assert told.types == undisturbed.types
    for each in (told, undisturbed):
        each.replay.evict()
