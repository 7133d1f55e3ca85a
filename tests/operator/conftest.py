"""A workflow and a task, for verbs to act on; and a way to wait for what a workflow waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from stepwell import App, Retry, Run, Workflow, workflow
from tests.waiting_for import until

Waits = Callable[[Run[Any], str], Awaitable[None]]


@pytest.fixture
def checkout(app: App) -> Workflow[[int], int]:
    """Boils, publishes a state, takes an update, and waits for the signal `pay`."""

    @app.task(name="tests.boil", retry=Retry(attempts=1))
    async def boil(n: int) -> int:
        if n < 0:
            raise ValueError("no water")
        return n * 10

    @app.workflow(name="tests.checkout")
    async def checkout(n: int) -> int:
        @workflow.update
        def add(more: int) -> int:
            return n + more

        held = await boil(n)
        workflow.publish({"held": held})
        return held + await workflow.signal("pay", int)

    return checkout


@pytest.fixture
def until_it_waits() -> Waits:
    async def wait(run: Run[Any], signal: str) -> None:
        async def waits() -> bool:
            return any(each.facts.get("signal") == signal for each in (await run.explain()).causes)

        await until(waits, within=15)

    return wait
