"""anyio in a workflow: cancelled, shielded and started in the same order in every process, by the oldest and the newest
of its version 4."""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from importlib.metadata import version
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.replay.anyio_workflows import CASES, elsewhere, world
from tests.replay.driver import new_replay, told_again

ROOT = Path(__file__).parents[2]
OLDEST = "4.0.0"


@pytest.fixture(scope="module")
def oldest() -> Path:
    """Where the oldest anyio is installed, for these tests alone. It is fetched once."""
    there = ROOT / ".tools" / f"anyio-{OLDEST}"
    if there.is_dir():
        return there
    there.parent.mkdir(exist_ok=True)
    fetched = tempfile.mkdtemp(dir=there.parent)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--target"]
    done = subprocess.run([*install, fetched, f"anyio=={OLDEST}"], capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(fetched)
        by_hand = " ".join(["python -m pip install --target", f".tools/{there.name}", f"anyio=={OLDEST}"])
        pytest.fail(f"anyio {OLDEST} could not be fetched; get it by `{by_hand}`\n{done.stderr}")
    try:
        Path(fetched).rename(there)
    except OSError:  # another process of these tests was quicker
        shutil.rmtree(fetched)
    return there


def told_in_a_process(script: str, **more: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=ROOT, env={**os.environ, **more},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", CASES)
def test_cancellation_by_anyio_is_the_same_wherever_its_scopes_are_in_memory(name: str) -> None:
    fn, result = CASES[name]
    told = world().run(fn, check=False)
    assert told.result == result
    told_again(told)
    elsewhere(told)


def test_the_oldest_anyio_works_as_the_newest_does(oldest: Path) -> None:
    script = f"from tests.replay.anyio_workflows import tell_all; tell_all({OLDEST!r})"
    told_in_a_process(script, PYTHONPATH=os.pathsep.join([str(oldest), os.environ.get("PYTHONPATH", "")]))


def test_anyio_may_be_loaded_before_us_or_by_the_workflow() -> None:
    before = "import anyio._backends._asyncio; from tests.replay.anyio_workflows import tell_all; "
    told_in_a_process(f"{before}tell_all({version('anyio')!r})")
    after = "import sys; from tests.replay import driver; assert 'anyio' not in sys.modules; "
    told_in_a_process(f"{after}from tests.replay.anyio_workflows import tell_all; tell_all({version('anyio')!r})")


@pytest.mark.parametrize("name", CASES)
def test_a_workflow_that_is_evicted_inside_a_group_of_anyio_is_freed(name: str) -> None:
    fn, _ = CASES[name]
    told = world().run(fn, check=False)
    for place in range(1, len(told.history)):
        replay = new_replay(fn)
        replay.recorded(told.history[:place], more=True)
        left: list[Any] = [weakref.ref(replay.loop), *(weakref.ref(task) for task in replay.loop.tasks)]
        replay.evict()
        del replay
        gc.collect()
        assert [each() for each in left if each() is not None] == []


async def test_anyio_elsewhere_in_the_process_is_as_it_was() -> None:
    """On another loop: scopes that were made there, and a cancellation that is tried again until it is heard."""
    refused = []

    async def deaf() -> None:
        for _ in range(300):
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                refused.append(1)

    with anyio.move_on_after(5) as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(deaf)
            await asyncio.sleep(0)
            group.cancel_scope.cancel()
    assert not scope.cancel_called
    assert len(refused) == 300
    assert len({anyio.CancelScope(), anyio.CancelScope()}) == 2
