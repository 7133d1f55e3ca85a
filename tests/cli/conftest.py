from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_process import Stepwell

from stepwell import App, Run
from stepwell.cli.main import run as run_command_line

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Awaitable[Said]]
Process = Callable[..., Stepwell]


@pytest.fixture
def stepwell(dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command in this process, on the test's own database."""
    monkeypatch.setenv("STEPWELL_DSN", dsn)
    monkeypatch.chdir(HERE)
    sys.modules.pop("shop", None)  # another test's, with an app on that test's database

    async def run(*arguments: object) -> Said:
        capsys.readouterr()
        code = await asyncio.to_thread(run_command_line, [str(each) for each in arguments])
        said = capsys.readouterr()
        return Said(code, said.out, said.err)

    return run


@pytest.fixture
def process(dsn: str) -> Process:
    """A command in a process of its own, on the test's own database."""

    def make(*arguments: str, cwd: Path = HERE, **env: str) -> Stepwell:
        return Stepwell(*arguments, env={"STEPWELL_DSN": dsn, **env}, cwd=cwd)

    return make


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[App]:
    """An app that only starts and asks."""
    async with App(dsn) as app:
        yield app


@pytest.fixture
def until_running(client: App) -> Callable[[Run[Any]], Awaitable[None]]:
    async def wait(run: Run[Any]) -> None:
        async with asyncio.timeout(20):
            while (await run.info()).state != "running":  # noqa: ASYNC110  # it happens in another process
                await asyncio.sleep(0.02)

    return wait
