"""The same promises on the servers that this machine has installed, whatever their version; on the wheel's where
there is none."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import asyncpg
import pytest

from stepwell import App, KeyConflict, Retry, RunCancelled, RunFailed, current
from stepwell.store import binaries
from stepwell.store.embedded import ensure
from stepwell.store.keeper import EmbeddedServer, living_postmaster
from tests.store.schema_dump import SCHEMA, schema_dump


def installed() -> list[Path]:
    """The bin directories of system servers; each once, however it is found."""
    found = {path.resolve() for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "postgres").exists()}
    if initdb := shutil.which("initdb"):
        found.add(Path(initdb).resolve().parent)
    return sorted(found) or list(islice(binaries.candidates(), 1))


@pytest.fixture(scope="module", params=installed(), ids=str)
def system(request: pytest.FixtureRequest) -> Iterator[str]:
    """The DSN of a new cluster of one installed server."""
    ground = Path(tempfile.mkdtemp(prefix="stepwell-system-")).resolve()
    ground.chmod(0o711)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPWELL_STATE", str(ground / "state"))
        patch.setenv("STEPWELL_POSTGRES_BIN", str(request.param))
        hold = ensure(ground / "home", linger=0)
    yield hold.dsn
    hold.release()
    deadline = time.monotonic() + 20
    while living_postmaster(EmbeddedServer.read(ground / "home").data):
        assert time.monotonic() < deadline, "the server outlives its last user"
    shutil.rmtree(ground)


async def test_a_task_lives_its_whole_life_there(system: str) -> None:
    app = App(system, lease=5)

    @app.task(retry=Retry(attempts=3, backoff="fixed", delay=0))
    async def flaky(n: int) -> int:
        if current.attempt < 3:
            raise ValueError(f"attempt {current.attempt}")
        return n * current.attempt

    @app.task(retry=Retry(attempts=2, backoff="fixed", delay="50ms"))
    def hopeless() -> None:
        raise ValueError("never")

    async with app:
        waiting = await flaky.options(delay="1h").start(1)
        await waiting.cancel()
        with pytest.raises(RunCancelled):
            await waiting.result(timeout=20)
        async with app.worker(slots=4):
            first = await flaky.options(key="order-7").start(14)
            assert (await flaky.options(key="order-7").start(14)).id == first.id
            with pytest.raises(KeyConflict):
                await flaky.options(key="order-7").start(15)
            assert await first.result(timeout=20) == 42
            assert [each.outcome for each in await first.attempts()] == ["failed", "failed", "completed"]
            with pytest.raises(RunFailed, match="at attempt 2"):
                await (await hopeless.start()).result(timeout=20)
            many = await flaky.start_many([(n,) for n in range(5)])
            assert [await run.result(timeout=20) for run in many] == [0, 3, 6, 9, 12]
            assert await (await first.retry()).result(timeout=20) == 42
        assert {each.state.value for each in (await app.runs()).items} == {"completed", "failed", "cancelled"}


async def test_the_schema_is_the_same_there(system: str) -> None:
    async with App(system):
        connection = await asyncpg.connect(system)
        try:
            assert await schema_dump(connection) == SCHEMA.read_text(encoding="utf-8")
        finally:
            await connection.close()
