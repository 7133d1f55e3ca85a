"""Libraries that give up after some time do so by the workflow's time: the same when it is told again."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stepwell.replay import guard
from tests.workflows.telling import has

ROOT = Path(__file__).parents[2]
MODULE = "tests.workflows.giving_up"


@pytest.fixture
async def giving_up(dsn: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """The module, with an app that is open on the test's own database."""
    monkeypatch.setenv("STEPWELL_DSN", dsn)
    sys.modules.pop(MODULE, None)
    module = import_module(MODULE)
    async with module.app:
        yield module
    sys.modules.pop(MODULE, None)


@pytest.fixture(params=[False, True], ids=["as in production", "strict"])
def strict(request: pytest.FixtureRequest) -> Any:
    before = guard.is_strict()
    guard.strict(request.param)
    yield request.param
    guard.strict(before)


@pytest.mark.parametrize("library", ["tenacity", "stamina", "backoff"])
async def test_a_library_that_gives_up_after_a_time_does_so_in_every_replay(
    giving_up: Any, strict: bool, library: str, dsn: str
) -> None:
    async with giving_up.app.worker():
        run = await giving_up.LIBRARIES[library].start()
        await has(run, "StatePublished")
    tried = giving_up.tried
    assert tried >= 2
    said = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "stepwell", "replay", str(run.id), f"{MODULE}:app"],
        cwd=ROOT, env={**os.environ, "STEPWELL_DSN": dsn}, capture_output=True, text=True,
    )  # fmt: skip
    assert said.returncode == 0, said.stderr + said.stdout
    async with giving_up.app.worker():  # which tells it again, and goes on
        await run.signal("end")
        assert await run.result(10) == "gave up"
    assert giving_up.tried == tried
