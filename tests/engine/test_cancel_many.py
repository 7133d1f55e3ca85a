"""Workflows that are asked to end together: in a statement for each batch, and none of them is told less for it."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

from stepwell.engine import arrivals, ends
from stepwell.engine.ends import CHILDREN as PAGE
from stepwell.model.events import Event, EventType
from stepwell.model.ids import RunId, new_run_id
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.replay.replay import LONG_AGO
from stepwell.store.pool import Database, Row, Transaction, Tx
from tests.factory import execute, state_of
from tests.waiting_for import until

CHILDREN = PAGE + PAGE // 2
TASKS = 100

WORKFLOW = """
insert into stepwell.runs (id, kind, name, queue, priority, state, input, retry, attempt, recorded, arrived)
select unnest($1::uuid[]), 'workflow', 'flow', 'flows', 50, 'waiting', '{}', '{}', 1, 1, $2
"""
TASK = """
insert into stepwell.runs (id, name, queue, priority, state, input, retry, parent_id, root_id, node)
select unnest($1::uuid[]), 'task', 'flows', 50, 'pending', '{}', '{}', $2, $2, '1'
"""
STARTED = """
insert into stepwell.events (run_id, idx, type, at, data)
select $1, n, 'ChildStarted', stepwell.now(), jsonb_build_object('command', n, 'run', id)
  from unnest($2::uuid[]) with ordinality as child (id, n)
"""


class Counted:
    """Speaks, and remembers what."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.spoken: list[str] = []

    async def rows(self, name: str, /, **values: Any) -> list[Row]:
        self.spoken.append(name)
        return await self._tx.rows(name, **values)


def ids(count: int) -> list[RunId]:
    return sorted(new_run_id() for _ in range(count))


async def a_parent(tx: Transaction, children: list[RunId], tasks: list[RunId]) -> RunId:
    parent = new_run_id()
    await execute(tx, WORKFLOW, [parent], 0)
    await execute(tx, WORKFLOW, children, 3)
    await execute(tx, TASK, tasks, parent)
    await execute(tx, "update stepwell.runs set parent_id = $1, node = '1' where id = any($2)", parent, children)
    await execute(tx, STARTED, parent, [*children, *tasks])
    return parent


async def fetched(tx: Transaction, query: str) -> list[Row]:
    return await tx.connection.fetch(query)


async def asked(tx: Transaction) -> dict[UUID, int]:
    """Where the request to end stands, for each that has one."""
    query = "select run_id, place from stepwell.arrivals where type = 'CancelRequested'"
    found = await fetched(tx, query)
    places = {row["run_id"]: row["place"] for row in found}
    assert len(places) == len(found)
    return places


async def test_thousands_of_children_are_asked_to_end_in_a_few_statements(tx: Transaction) -> None:
    children, tasks = ids(CHILDREN), ids(TASKS)
    parent = await a_parent(tx, children, tasks)
    counted = Counted(tx)
    moved, after = await ends.cancel(counted, [parent], force=True)
    assert list(moved) == [parent]
    assert len(counted.spoken) <= 10
    assert await asked(tx) == dict.fromkeys(children, 4)
    assert sorted(after.cancelled) == tasks
    assert after.wakes == {"flows"}
    found = await execute(tx, "select from stepwell.runs where state = 'pending' and arrived = 4")
    assert found == f"SELECT {CHILDREN}"


async def test_many_workflows_are_cancelled_in_a_few_statements(tx: Transaction) -> None:
    begun, tasks = ids(CHILDREN), ids(TASKS)
    await a_parent(tx, begun, tasks)
    counted = Counted(tx)
    moved, after = await ends.cancel(counted, [*tasks, *begun])
    assert len(counted.spoken) <= 6
    assert sorted(moved) == tasks
    assert sorted(after.asked) == begun
    assert (await asked(tx)).keys() == set(begun)


async def test_whoever_is_asked_stays_where_only_its_own_code_can_move_it(tx: Transaction) -> None:
    blocked, paused, gone = ids(3)
    await execute(tx, WORKFLOW, [blocked, paused], 0)
    await execute(tx, """update stepwell.runs set blocked = '{"version": "old"}' where id = $1""", blocked)
    await execute(tx, "update stepwell.runs set state = 'paused' where id = $1", paused)
    moved, after = await ends.cancel(tx, [blocked, gone, paused])
    assert (moved, sorted(after.asked), after.wakes) == ({}, [blocked, paused], set())
    assert await asked(tx) == {blocked: 1, paused: 1}
    assert [await state_of(tx, each) for each in (blocked, paused)] == [State.WAITING, State.PAUSED]


async def test_a_request_to_end_is_counted_behind_a_signal_that_came_in_between(database: Database) -> None:
    """Had the statement gone by what it saw when it began, both would have taken the first place."""
    first, second = ids(2)
    signal = Event(0, EventType.SIGNAL_RECEIVED, LONG_AGO, name="more", id=new_run_id())
    async with database.transaction() as tx:
        await execute(tx, WORKFLOW, [first, second], 0)

    async def cancel() -> None:
        async with database.transaction() as tx:
            await ends.cancel(tx, [first, second])

    async with database.transaction() as tx:
        await arrivals.arrive(tx, second, signal, Consequences())
        cancelling = asyncio.create_task(cancel())

        async def waits() -> bool:
            return bool(await fetched(tx, "select from pg_locks where not granted"))

        await until(waits)
    await cancelling
    async with database.transaction() as tx:
        assert await asked(tx) == {first: 1, second: 2}
        counts = await fetched(tx, "select arrived from stepwell.runs order by id")
        assert [row["arrived"] for row in counts] == [1, 2]
