"""`stepwell …` as a process of its own, its output read line by line."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Self

PATIENCE = 20.0


class Stepwell:
    """A running command. Both its streams are one here, in the order in which they were written."""

    def __init__(self, *arguments: str, env: dict[str, str], cwd: Path) -> None:
        self._arguments = arguments
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("STEPWELL_DSN")} | env
        self._cwd = cwd
        self.lines: list[str] = []

    async def __aenter__(self) -> Self:
        self.process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "stepwell", *self._arguments),
            cwd=self._cwd, env=self._env, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
        # To the end of the output, and not only of the process: its own workers hold the pipe, too.
        await self.exit_code()

    async def line(self, pattern: str) -> re.Match[str]:
        """The next line with this in it."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(PATIENCE):
                while raw := await self.process.stdout.readline():
                    self.lines.append(raw.decode().rstrip())
                    if match := re.search(pattern, self.lines[-1]):
                        return match
        except TimeoutError:
            pass
        raise AssertionError(f"{pattern!r} never came:\n" + "\n".join(self.lines))

    async def exit_code(self) -> int:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            self.lines += (await self.process.stdout.read()).decode().splitlines()
            return await self.process.wait()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    @property
    def output(self) -> str:
        return "\n".join(self.lines)
