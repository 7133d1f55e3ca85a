"""Children before parents: who ends a workflow and who ends a child of it never wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from stepwell import App, Run, State
from stepwell.dispatch.postgres import PostgresWakes
from stepwell.engine import ends
from stepwell.services.due import Due
from stepwell.store.pool import Database, Transaction
from stepwell.testing import Clock
from tests.factory import execute
from tests.waiting_for import until
from tests.workflows.telling import reaches

LOCK = "select from stepwell.runs where id = $1 for update"


@pytest.fixture
async def parent(app: App) -> Run[None]:
    """A workflow that waits for a task of a queue that nobody serves."""

    @app.task(name="remote", queue="nobody")
    async def remote() -> None: ...

    @app.workflow(name="parent", timeout="1h")
    async def parent() -> None:
        await remote()

    async with app.worker(queues=["default"]):
        run = await parent.start()
        await reaches(run, State.WAITING)
    return run


async def while_a_child_ends(database: Database, parent: Run[None], end: Callable[[], Awaitable[object]]) -> None:
    """The other transaction has the child, and wants the parent when `end` wants the child."""
    (child,) = await parent.children()
    async with database.transaction() as tx:
        await execute(tx, LOCK, child.id)
        ending = asyncio.ensure_future(end())
        await until(lambda: _waits(tx))
        await execute(tx, LOCK, parent.id)
    await ending


async def _waits(tx: Transaction) -> bool:
    return bool(await tx.connection.fetch("select from pg_locks where not granted"))  # type: ignore[attr-defined]


async def test_a_workflow_is_cancelled_by_force_after_its_children(database: Database, parent: Run[None]) -> None:
    async def cancel() -> None:
        async with database.transaction() as tx:
            await ends.cancel(tx, [parent.id], force=True)

    await while_a_child_ends(database, parent, cancel)
    assert (await parent.info()).state is State.CANCELLED


async def test_a_workflow_times_out_after_its_children(database: Database, dsn: str, parent: Run[None]) -> None:
    wakes = PostgresWakes(database)
    await Clock(dsn).skip("2h")
    await while_a_child_ends(database, parent, Due(database, wakes).run_once)
    await wakes.close()
    assert (await parent.info()).state is State.FAILED
