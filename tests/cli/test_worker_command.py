from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress

import pytest

from stepwell import State
from tests.waiting_for import until


async def outcomes(run) -> list[str]:
    return [attempt.outcome for attempt in await run.attempts()]


async def test_it_says_when_it_is_ready_and_stops_on_sigterm(process):
    async with process("worker", "shop:app", "--queues", "a,b", "--slots", "3", "--name", "ann") as worker:
        ready = await worker.line(r"ready: worker ann, queues a,b, slots 3, pid (\d+)")
        assert int(ready[1]) == worker.process.pid
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0


async def test_stopping_lets_attempts_end_and_gives_the_rest_back(process, client, until_running, tmp_path):
    ending = await client.start("shop.until_file", str(tmp_path / "end"))
    hanging = await client.start("shop.hang")
    async with process("worker", "shop.py", "--grace", "3s") as worker:
        await until_running(ending)
        await until_running(hanging)
        worker.signal(signal.SIGTERM)
        await worker.line("stopping on SIGTERM")
        (tmp_path / "end").touch()
        assert await worker.exit_code() == 0
    assert await ending.result(timeout=10) == "the file is there"
    info = await hanging.info()
    assert (info.state, info.failures, await outcomes(hanging)) == (State.PENDING, 0, ["released"])


@pytest.mark.parametrize("body", ["hang", "hang_in_thread"])
async def test_a_second_signal_gives_everything_back_now(process, client, until_running, body):
    run = await client.start(f"shop.{body}")
    async with process("worker", "shop:app", "--grace", "10m") as worker:
        await until_running(run)
        worker.signal(signal.SIGINT)
        await worker.line("stopping on SIGINT")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert ((await run.info()).failures, await outcomes(run)) == (0, ["released"])


async def test_a_third_signal_ends_it_though_a_body_blocks_the_event_loop(process, client, until_running):
    run = await client.start("shop.block_the_loop")
    async with process("worker", "shop:app") as worker:
        await until_running(run)
        worker.signal(signal.SIGTERM)
        await worker.line("stopping on SIGTERM")
        await signal_until(worker, "stopping now")
        await signal_until_it_ends(worker)
        assert await worker.exit_code() == 1


async def signal_until_it_ends(worker):
    for _ in range(5):
        with suppress(ProcessLookupError):
            worker.signal(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(4):
                return await worker.process.wait()
    raise AssertionError("it goes on")


async def signal_until(worker, pattern):
    """The kernel may give a signal to a thread while the main one still has the last to handle: then again."""
    for _ in range(5):
        worker.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(2):
                return await worker.line(pattern)
        except TimeoutError:
            continue
    raise AssertionError(f"{pattern!r} never came")


DYING = """
from stepwell import App
from stepwell.{module} import {owner}

async def broken(*_):
    raise RuntimeError("this part broke")

{owner}.{part} = broken
app = App()
"""


@pytest.mark.parametrize(
    ("module", "owner", "part"),
    [
        ("worker.claiming.watch", "Watch", "run"),
        ("worker.ledger", "Ledger", "run"),
        ("worker.lease", "Lease", "_keep"),
        ("services.leader", "Leadership", "run"),
    ],
)
async def test_no_part_of_it_dies_unseen(process, tmp_path, module, owner, part):
    (tmp_path / "dying.py").write_text(DYING.format(module=module, owner=owner, part=part))
    async with process("worker", "dying:app", cwd=tmp_path) as worker:
        assert await worker.exit_code() == 1
    assert "RuntimeError: this part broke" in worker.output


async def test_a_database_that_is_away_is_waited_for_and_named_without_its_password(process):
    async with process("worker", "shop:app", STEPWELL_DSN="postgresql://ann:hunter2@127.0.0.1:1/tea") as worker:
        await worker.line(r"waiting for the database at 127.0.0.1:1/tea")
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert "hunter2" not in worker.output


async def test_its_log_can_be_json(process):
    async with process("worker", "shop:app", "--json") as worker:
        ready = json.loads((await worker.line('.*"ready.*'))[0])
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert ready["message"].startswith("ready: worker")
    assert ready["level"] == "info"


async def test_what_bodies_log_is_kept_however_little_is_shown(process, client):
    async with process("worker", "shop:app", "--log-level", "warning") as worker:
        run = await client.start("shop.say", "a word")
        await run.result(20)

        async def kept():
            return [line.message for line in await run.logs()] == ["a word"]

        await until(kept)
        worker.signal(signal.SIGTERM)
        assert await worker.exit_code() == 0
    assert "a word" not in worker.output


async def test_a_supervisor_restarts_a_worker_that_died(process):
    async with process("worker", "shop:app", "--processes", "2", "--name", "w") as supervisor:
        pids = [int((await supervisor.line(r"ready: .* pid (\d+)"))[1]) for _ in range(2)]
        os.kill(pids[0], signal.SIGKILL)
        await supervisor.line(rf"pid {pids[0]}, ended unexpectedly: SIGKILL; again in 0.0 s")
        await supervisor.line("ready: worker w-")
        supervisor.signal(signal.SIGTERM)
        assert await supervisor.exit_code() == 0


async def test_workers_end_when_their_supervisor_is_killed(process):
    async with process("worker", "shop:app", "--processes", "2") as supervisor:
        for _ in range(2):
            await supervisor.line("ready: ")
        supervisor.signal(signal.SIGKILL)
        for _ in range(2):
            await supervisor.line("stopped: worker")


async def test_a_supervisor_does_not_repeat_what_cannot_work(process):
    async with process("worker", "no_such_module:app", "--processes", "2") as supervisor:
        assert await supervisor.exit_code() == 2
