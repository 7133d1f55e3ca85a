"""What the steps of a workflow log is kept with its run."""

from __future__ import annotations

import asyncio
import logging

import pytest

from stepwell import App, Retry, Run
from tests.waiting_for import until

log = logging.getLogger("tests.steps")


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tests.steps")


async def lines_of(run: Run[int], count: int) -> list[str]:
    async def there() -> list[str] | None:
        lines = [line.message for line in await run.logs()]
        return lines if len(lines) >= count else None

    found: list[str] = await until(there)
    return found


@pytest.mark.parametrize("how", ["together", "one by one"])
async def test_every_step_of_a_turn_keeps_its_lines_and_those_of_others(app: App, how: str) -> None:
    @app.step
    async def say(n: int) -> int:
        log.info("step %d", n)
        return n

    @app.workflow
    async def talk() -> int:
        if how == "together":
            return sum(await asyncio.gather(*(say(n) for n in range(5))))
        return sum([await say(n) for n in range(5)])

    async with app.worker():
        run = await talk.start()
        assert await run.result(10) == 10
        assert sorted(await lines_of(run, 5)) == [f"step {n}" for n in range(5)]


async def test_every_try_of_a_step_keeps_its_lines(app: App) -> None:
    tries: list[int] = []

    @app.step(retry=Retry(attempts=3, delay=0.01))
    async def say() -> int:
        tries.append(1)
        log.info("try %d", len(tries))
        if len(tries) < 3:
            raise ValueError("not yet")
        return len(tries)

    @app.workflow
    async def talk() -> int:
        return await say()

    async with app.worker():
        run = await talk.start()
        assert await run.result(10) == 3
        assert await lines_of(run, 3) == ["try 1", "try 2", "try 3"]
