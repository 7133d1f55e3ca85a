"""Commands whose output nobody can read: closed before they began, a full disk, a reader that has left or is stuck."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from pathlib import Path

import pytest

from stepwell import App
from tests.waiting_for import until

HERE = Path(__file__).parent


async def begun(dsn: str, command: str, *, stdout: int = DEVNULL, stderr: int = DEVNULL) -> Process:
    """A command line for a shell, in which `stepwell` is ours."""
    ours = f"exec {shlex.quote(sys.executable)} -m stepwell"
    return await asyncio.create_subprocess_exec(
        *("sh", "-c", command.replace("stepwell", ours, 1)),
        cwd=HERE, env={**os.environ, "STEPWELL_DSN": dsn}, stdin=DEVNULL, stdout=stdout, stderr=stderr,
    )  # fmt: skip


async def ends(process: Process) -> int:
    """Its exit code, after as many signals as it needs: the kernel may merge two that come together."""
    try:
        for _ in range(8):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(3):
                    return await process.wait()
        raise AssertionError("it goes on")
    finally:
        with suppress(ProcessLookupError):
            process.kill()


async def is_running(client: App, name: str) -> None:
    run = await client.start(name)

    async def running() -> bool:
        return (await run.info()).state == "running"

    await until(running)


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&- <&-"])
async def test_a_third_signal_ends_a_worker_whose_streams_are_closed(dsn: str, client: App, closed: str) -> None:
    worker = await begun(dsn, f"stepwell worker shop:app {closed}")
    await is_running(client, "shop.block_the_loop")
    assert await ends(worker) == 1


async def test_a_third_signal_ends_a_worker_whose_log_nobody_reads(dsn: str, client: App) -> None:
    reader, writer = os.pipe()
    worker = await begun(dsn, "stepwell worker shop:app", stderr=writer)
    await is_running(client, "shop.block_the_loop")
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):  # until it is full
        while os.write(writer, b"x" * 65_536):
            pass
    os.set_blocking(writer, True)  # it is the same for the worker
    os.close(writer)
    assert await ends(worker) == 1
    os.close(reader)


async def test_a_third_signal_ends_a_worker_whose_reader_has_left(dsn: str, client: App) -> None:
    reader, writer = os.pipe()
    worker = await begun(dsn, "stepwell worker shop:app", stdout=writer, stderr=writer)
    os.close(writer)
    await is_running(client, "shop.block_the_loop")
    os.close(reader)
    assert await ends(worker) == 1


COMMANDS = {
    "runs": 0, "runs --json": 0, "queues": 0, "top --once": 0, "doctor": 0, "check shop:app": 0, "--version": 0,
    "show no-such": 3, "no-such": 2, "cancel --name x": 0,
}  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_command_whose_streams_are_closed_does_what_it_is_for(dsn: str, command: str) -> None:
    for closed in (">&-", "2>&-", ">&- 2>&- <&-"):
        process = await begun(dsn, f"stepwell {command} {closed}", stdout=PIPE, stderr=PIPE)
        out, err = await process.communicate()
        assert (process.returncode, "Traceback" in (out + err).decode()) == (COMMANDS[command], False)


@pytest.mark.parametrize("command", ["runs", "doctor", "--version"])
async def test_a_disk_that_is_full_is_told_in_a_sentence(dsn: str, command: str) -> None:
    process = await begun(dsn, f"stepwell {command} >/dev/full", stderr=PIPE)
    _, err = await process.communicate()
    assert process.returncode == 1
    assert "No space left" in err.decode()
    assert "Traceback" not in err.decode()
    assert "Exception ignored" not in err.decode()
