"""A worker is killed right after, or right before, each of its writes in turn. Whatever the moment: the same result, no
recorded step or task is ever run again, and no effect is missing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import pytest
from crash_app import NAMES, Effects, expected, make, surely
from e2e_processes import HERE, eventually

from stepwell import App, Run, RunCancelled, RunFailed

Sql: TypeAlias = "asyncpg.Connection[Any]"

MOST = 60
"""Writes of one workflow, surely."""


class Mortals:
    """Workers that die at a chosen write, one after the other."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = 0

    async def begin(self, at: int, when: str, how: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"begin {at} {when} {how}\n".encode())
        await self._process.stdin.drain()
        self.pid = int((await self._line()).split()[1])

    async def _line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode()

    async def ends_or(self, done: asyncio.Task[Any]) -> bool:
        """Whether it died before that was done. In either case it is dead now."""
        line = asyncio.create_task(self._line())
        await asyncio.wait({line, done}, return_when=asyncio.FIRST_COMPLETED, timeout=40)
        died = line.done()
        if not died:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        assert (await line).strip() == "died"
        return died


@asynccontextmanager
async def mortals(dsn: str, place: Path) -> AsyncIterator[Mortals]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "crash_zygote.py", dsn, str(place)), cwd=HERE,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield Mortals(process)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def outcome(run: Run[Any]) -> Any:
    try:
        return await run.result(40)
    except (RunFailed, RunCancelled) as error:
        return type(error)


async def started(app: App, name: str, tag: str) -> Run[Any]:
    """One that needs something from outside gets it as soon as it may."""
    definition = app.definition(name)
    if name == "late":
        definition = definition.options(deadline=1.0)
    run = await definition.start(*((tag, []) if name == "anew" else (tag,)))
    if name in ("signals", "anew"):
        for n in range(3):
            await run.signal("n", str(n))
    return run


async def pressed(run: Run[Any], name: str) -> None:
    """What is asked of it while it lives, and dies."""

    async def begun() -> bool:
        return any(event.type == "TaskScheduled" for event in await run.history())

    if name in ("cancelled", "refusing"):
        await eventually(begun)
        await run.cancel()
    elif name == "updates":
        async with asyncio.TaskGroup() as asking:
            asking.create_task(run.update("add", "a", timeout=40))
            asking.create_task(run.update("add", "b", timeout=40))
            asking.create_task(refused(run))
        await run.signal("end")


async def refused(run: Run[Any]) -> None:
    with pytest.raises(Exception, match="too long"):
        await run.update("add", "long", timeout=40)


async def recorded(sql: Sql, tag: str) -> set[str]:
    """Labels of steps and tasks whose end is in the tables."""
    found = await sql.fetch(
        """select data -> 'value' as said from stepwell.events where type = 'StepCompleted'
           union all select data -> 'error' -> 'message' from stepwell.events where type = 'StepFailed'
           union all select result from stepwell.all_runs where state = 'completed' and kind = 'task'"""
    )
    values = {json.loads(row["said"]) for row in found if row["said"] is not None}
    return {value for value in values if isinstance(value, str) and value.startswith(f"{tag}/")}


async def expire_the_dead(sql: Sql) -> None:
    """As if time had passed: nobody renews their leases."""
    await sql.execute("update stepwell.workers set lease_until = stepwell.now() - interval '1 second'")
    await sql.execute("delete from stepwell.leaders")


async def whole(sql: Sql, run: Run[Any]) -> None:
    """Nothing is left of it, or of what it started, but what has finished; and no history has a gap."""

    async def ended() -> bool:
        return await sql.fetchval("select count(*) from stepwell.runs") == 0

    try:
        await eventually(ended, within=15)
    except TimeoutError:
        left = await sql.fetch(
            "select id, name, state, attempt, failures, parent_id, waits_for, claimed_by from stepwell.runs"
        )
        told = await sql.fetch(
            "select run_id, idx, type, data from stepwell.events where run_id >= $1 order by run_id, idx", run.id
        )
        raise AssertionError("\n".join(str(dict(row)) for row in [*left, *told])) from None
    gaps = await sql.fetchval(
        "select count(*) from (select run_id from stepwell.events group by run_id having max(idx) <> count(*)) e"
    )
    assert gaps == 0
    assert await sql.fetchval("select count(*) from stepwell.arrivals") == 0
    twice = "select count(*) from (select id from stepwell.finished_runs group by id having count(*) > 1) f"
    assert await sql.fetchval(twice) == 0
    ends = ("WorkflowCompleted", "WorkflowFailed", "WorkflowCancelled", "WorkflowTimedOut")
    assert [event.type in ends for event in await run.history()].count(True) == 1


async def dies_at(app: App, sql: Sql, dying: Mortals, name: str, at: int, when: str, place: Path) -> bool:
    """Whether there was such a write, and so a death."""
    tag, effects = f"{name}-{when}-{at}", Effects(place)
    await dying.begin(at, when, "parts" if name == "fan" else "whole")
    run = await started(app, name, tag)
    ending = asyncio.create_task(outcome(run))
    pressing = asyncio.create_task(pressed(run, name))
    died = await dying.ends_or(ending)
    at_death, before = await recorded(sql, tag), effects.all()
    await expire_the_dead(sql)
    async with app.worker(name="successor"):
        assert await ending == expected(name, tag)
        await pressing
        await whole(sql, run)
    after = effects.all()
    for label in at_death:
        assert after[label] == before[label], f"{label} was recorded, and done again"
    again = {label: count for label, count in after.items() if label.startswith(f"{tag}/") and count > 2}
    assert {label for label in again if not (name == "steps" and label.endswith("/3"))} == set()
    happened = await recorded(sql, tag)
    written = {row["label"] for row in await sql.fetch("select label from written")}
    for label in [*happened, *surely(name, tag)]:
        assert after[label] >= 1 or label in written, f"{label} never happened"
    return died


@pytest.fixture
async def table(sql: Sql) -> None:
    # Without a constraint: what was written twice would be seen.
    await sql.execute("create table written (label text not null)")


async def sweep(dsn: str, sql: Sql, place: Path, name: str, when: str, moments: range) -> int:
    app, deaths = make(dsn, place), 0
    async with app, mortals(dsn, place) as dying:
        for at in moments:
            if not await dies_at(app, sql, dying, name, at, when, place):
                break
            deaths += 1
    twice = await sql.fetch("select label from written group by label having count(*) > 1")
    assert not twice
    return deaths


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("when", ["after", "before"])
@pytest.mark.parametrize("name", NAMES)
async def test_a_death_at_each_write_in_turn_changes_nothing(
    dsn: str, sql: Sql, place: Path, table: None, name: str, when: str
) -> None:
    deaths = await sweep(dsn, sql, place, name, when, range(1, MOST))
    print(f"\n{name}: {deaths} deaths {when} a write")
    assert 2 <= deaths < MOST - 1


@pytest.mark.parametrize(("name", "when", "at"), [
    ("steps", "after", 2), ("tasks", "before", 3), ("own_tx", "after", 3), ("nested", "after", 3),
    ("nested", "before", 4), ("started", "after", 3), ("timers", "after", 5), ("signals", "after", 3),
    ("marks", "before", 2), ("updates", "after", 3), ("anew", "after", 4), ("anew", "before", 5),
    ("saga", "after", 4), ("cancelled", "after", 4), ("late", "after", 3), ("family", "before", 5),
    ("fan", "after", 2), ("fan", "before", 3), ("fan", "after", 4),
])  # fmt: skip
async def test_a_death_at_some_write_changes_nothing(
    dsn: str, sql: Sql, place: Path, table: None, name: str, when: str, at: int
) -> None:
    assert await sweep(dsn, sql, place, name, when, range(at, at + 1)) == 1


@pytest.mark.parametrize("workers", [1, 2])
async def test_workflows_told_again_in_every_turn_and_page_by_page_come_to_the_same(
    dsn: str, sql: Sql, place: Path, table: None, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """No death here, and so no excuse: every effect happens once."""
    monkeypatch.setattr("stepwell.worker.turns.turns.Turns.__init__.__kwdefaults__", {"keep": 0})
    monkeypatch.setattr("stepwell.engine.workflows.PAGE", 3)
    monkeypatch.setattr("stepwell.engine.ends.CHILDREN", 3)
    app = make(dsn, place)
    async with app, AsyncExitStack() as stack:
        for _ in range(workers):
            await stack.enter_async_context(app.worker())
        runs = {name: await started(app, name, name) for name in NAMES}
        async with asyncio.TaskGroup() as all_of_them:
            pressing = [all_of_them.create_task(pressed(run, name)) for name, run in runs.items()]
        assert len(pressing) == len(NAMES)
        assert {name: await outcome(run) for name, run in runs.items()} == {
            name: expected(name, name) for name in NAMES
        }
        for run in runs.values():
            await whole(sql, run)
    effects = Effects(place).all()
    assert {label: count for label, count in effects.items() if count > 1} == {"steps/3": 2}
    for name in NAMES:
        assert set(surely(name, name)) <= effects.keys()
