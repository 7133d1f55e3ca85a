"""Starts of every kind that are sent twice, in whatever order they arrive: there is one run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from counting_shop import Shop, Sql, finished_once, no_statement_runs
from e2e_processes import eventually
from proxy import Proxy

from stepwell import App, Call

Start = Callable[[App], Coroutine[Any, Any, Any]]


def one(**options: Any) -> Start:
    return lambda app: app.definition("add").options(**options).start(1)


def many(count: int, **options: Callable[[int], Any]) -> Start:
    calls = [Call((n,), options={name: of(n) for name, of in options.items()}) for n in range(count)]
    return lambda app: app.definition("add").start_many(calls)


ROWS: dict[str, Start] = {
    "unique": one(unique="u"),
    "key": one(key="k"),
    "keep": one(keep="forever"),
    "expires": one(expires=60),
    "deadline": one(deadline=60),
    "limited": one(limit_by=lambda n: "k"),
    "many": many(5, unique=lambda n: f"u{n}"),
}
COMMITS: dict[str, tuple[str, Start]] = {
    "copy": ("copy", many(600)),
    "debounce": ("debounce_run", one(unique="u", debounce=0.01)),
}


async def all_finished(sql: Sql) -> bool:
    asked = "select count(*) > 0 and not exists (select from stepwell.runs) from stepwell.finished_runs"
    return bool(await sql.fetchval(asked))


@pytest.mark.parametrize("kind", [*ROWS, *COMMITS])
async def test_a_start_that_is_repeated_after_its_run_has_finished_starts_nothing(
    proxy: Proxy, shop: Shop, dsn: str, sql: Sql, kind: str
) -> None:
    statement, start = COMMITS.get(kind) or ("start_runs", ROWS[kind])
    near = Shop(dsn)
    async with shop.app, near.app, near.app.worker():
        lost = proxy.swallow(statement, at_commit=kind in COMMITS)
        starting = asyncio.create_task(start(shop.app))
        async with asyncio.timeout(10):
            await lost.done.wait()
        proxy.refusing = True
        await eventually(lambda: all_finished(sql))
        proxy.heal()
        found = await starting
        runs = found if isinstance(found, list) else [found]
        for run in runs:
            await run.result(timeout=10)
    await finished_once(sql, *runs)
    assert len(near.ran) == len(runs)


@pytest.mark.parametrize("kind", ROWS)
async def test_a_start_that_arrives_after_the_run_of_its_repetition_has_finished_starts_nothing(
    proxy: Proxy, shop: Shop, dsn: str, sql: Sql, kind: str
) -> None:
    near = Shop(dsn)
    async with shop.app, near.app, near.app.worker():
        late = proxy.detain("start_runs")
        found = await ROWS[kind](shop.app)
        runs = found if isinstance(found, list) else [found]
        for run in runs:
            await run.result(timeout=10)
        late.deliver()
        # What comes after it has been carried out finds all that it did.
        after = await near.app.definition("add").start(1)
        await after.result(timeout=10)
        await eventually(lambda: no_statement_runs(sql))
        last = await near.app.definition("add").start(1)
        await last.result(timeout=10)
    await finished_once(sql, *runs, after, last)
    assert len(near.ran) == len(runs) + 2


@pytest.mark.parametrize("together", [False, True])
async def test_a_retry_that_is_repeated_after_its_run_has_finished_starts_nothing(
    proxy: Proxy, shop: Shop, dsn: str, sql: Sql, together: bool
) -> None:
    near = Shop(dsn)
    async with shop.app, near.app, near.app.worker():
        first = await shop.app.definition("add").start(1)
        await first.result(timeout=10)
        lost = proxy.swallow("start_runs_again", at_commit=True)
        again: Any = shop.app._opening.client.many.retry([first.id]) if together else first.retry()
        starting = asyncio.create_task(again)
        async with asyncio.timeout(10):
            await lost.done.wait()
        proxy.refusing = True
        await eventually(lambda: all_finished(sql))
        proxy.heal()
        found = await starting
        second = shop.app.run(found[first.id]) if together else found
        await second.result(timeout=10)
    await finished_once(sql, first, second)
    assert len(near.ran) == 2
