"""Plain asyncio in a workflow: it comes out as it would anywhere, and the same whenever it is told again."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.model.events import EventType
from tests.replay.asyncio_workflows import SLOW
from tests.replay.driver import Driving, World, task, told_again
from tests.replay.more_asyncio_workflows import CASES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", CASES)
def test_asyncio_just_works_and_the_same_whenever_it_is_told_again(name: str) -> None:
    case = CASES[name]
    assert case.world.run(case.fn).result == case.result


@pytest.mark.parametrize("name", CASES)
async def test_it_works_inside_of_another_loop_that_runs(name: str) -> None:
    me = asyncio.current_task()
    case = CASES[name]
    assert case.world.run(case.fn).result == case.result
    assert asyncio.current_task() is me
    assert await asyncio.sleep(0, "still here") == "still here"


def test_the_commands_are_the_same_under_every_hash_seed() -> None:
    script = "from tests.replay.test_asyncio import print_commands; print_commands()"
    said = [
        subprocess.run(
            [sys.executable, "-W", "error", "-c", script], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in ("0", "1", "2", "4711", "99999")
    ]  # fmt: skip
    assert len(json.loads(said[0])) == len(CASES)
    assert len(set(said)) == 1


def print_commands() -> None:
    scatter = [object() for _ in range(os.getpid() % 1000)]  # other addresses in every process
    told = {}
    for name, case in CASES.items():
        history = case.world.run(case.fn, check=False).history
        told[name] = [[event.type, event.command, event.name, str(event.run_id)] for event in history]
    assert scatter is not None
    print(json.dumps(told))


@pytest.mark.skipif(sys.version_info < (3, 13), reason="as_completed is an async iterator from Python 3.13 on")
def test_as_completed_gives_tasks_where_it_can() -> None:
    async def walks() -> Any:
        made = [asyncio.create_task(task(name)) for name in "abc"]
        return [made.index(each) async for each in asyncio.as_completed(made)]  # type: ignore[attr-defined]

    assert World(SLOW).run(walks).result == [1, 2, 0]


def test_what_is_left_behind_may_clean_up_with_tasks_of_its_own() -> None:
    case = CASES["what_is_left_behind_ends_with_it"]
    told = case.world.run(case.fn)
    assert told.types[-2:] == ["StatePublished", "WorkflowCompleted"]
    assert told.types.count("TaskCancelled") == 1
    assert told.types.count("StepCompleted") == 2


def test_a_generator_that_was_kept_is_closed_before_the_end() -> None:
    case = CASES["a_generator_left_behind_is_closed"]
    assert case.world.run(case.fn).commands(EventType.TASK_SCHEDULED) == ["t0", "undo"]


async def lets_go_of_a_circle() -> str:
    async def broken_off() -> None:
        async def each() -> AsyncIterator[Any]:
            try:
                yield await task("t0")
                yield me
            finally:
                await task("undo")

        me = [each()]
        async for _ in me[0]:
            break

    await broken_off()
    return str(await task("b") + await task("c"))


@pytest.mark.parametrize("collected_after", [None, 1, 2, 3])
def test_a_generator_in_a_circle_ends_with_the_workflow_whenever_it_is_collected(collected_after: int | None) -> None:
    driving = Driving(World(), lets_go_of_a_circle)
    driving.begin(None)
    happened = 0
    while driving.replay.ended is None and driving.once():
        happened += 1
        if happened == collected_after:
            gc.collect()
    told = driving.to_the_end()
    assert told.commands(EventType.TASK_SCHEDULED) == ["t0", "b", "c", "undo"]
    told_again(told)


def test_a_generator_that_is_collected_as_the_code_stops_running_ends_with_the_workflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The moments between: the loop is still the one that runs, and garbage is collected again."""
    hooks = sys.set_asyncgen_hooks

    def set_hooks(*those: Any) -> None:
        if gc.isenabled():
            gc.collect()
        hooks(*those)

    monkeypatch.setattr(sys, "set_asyncgen_hooks", set_hooks)
    told = World().run(lets_go_of_a_circle)
    assert told.commands(EventType.TASK_SCHEDULED) == ["t0", "b", "c", "undo"]


def test_time_passes_only_from_event_to_event() -> None:
    case = CASES["sleeps"]
    told = case.world.run(case.fn)
    assert [event.when.second for event in told.history if event.when] == [1, 2, 6]


def test_what_is_cancelled_at_once_leaves_no_trace() -> None:
    case = CASES["what_is_cancelled_at_once_was_never_asked"]
    assert case.world.run(case.fn).types == [
        "WorkflowStarted", "TaskScheduled", "TaskCompleted", "WorkflowCompleted",
    ]  # fmt: skip
