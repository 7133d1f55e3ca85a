"""Starting workflows and reaching them: keys, uniqueness, a transaction of one's own, signal_or_start."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import psycopg
import pytest

from stepwell import AlreadyFinished, App, KeyConflict, NotFound, State, Workflow, WrongUse, workflow
from stepwell.testing import Clock
from tests.workflows.telling import reaches, types_of


@pytest.fixture
def cart(app: App) -> Workflow[[str], list[str]]:
    """Collects items until it gets `end`."""

    @app.workflow(name="cart")
    async def cart(owner: str) -> list[str]:
        items = [owner]
        while (item := await workflow.signal("item", str)) != "end":
            items.append(item)
        return items

    return cart


Cart = Workflow[[str], list[str]]


async def test_the_same_key_leads_to_the_same_workflow(app: App, cart: Cart) -> None:
    one = await cart.options(key="c-1").start("ann")
    other = await cart.options(key="c-1").start("ann")
    assert one.id == other.id
    with pytest.raises(KeyConflict):
        await cart.options(key="c-1").start("bob")
    async with app.worker():
        await app.run(key="c-1").signal("item", "end")
        assert await one.result(10) == ["ann"]


async def test_a_workflow_is_unique_while_it_is_unfinished(app: App, cart: Cart) -> None:
    async with app.worker():
        one = await cart.options(unique="ann").start("ann")
        assert (await cart.options(unique="ann").start("ann")).id == one.id
        await one.signal("item", "end")
        await one.result(10)
        assert (await cart.options(unique="ann").start("ann")).id != one.id


async def test_a_start_in_a_users_transaction_is_there_when_it_commits(
    app: App, cart: Cart, sql: asyncpg.Connection[Any]
) -> None:
    async with app.worker():
        transaction = sql.transaction()
        await transaction.start()
        lost = await cart.options(tx=sql).start("ann")
        await transaction.rollback()
        with pytest.raises(NotFound):
            await lost.info()
        async with sql.transaction():
            run = await cart.options(tx=sql).start("ann")
            await run.signal("item", "a", tx=sql)
            await run.signal("item", "end", tx=sql)
        assert await run.result(10) == ["ann", "a"]


async def test_a_signal_in_a_users_transaction_arrives_when_it_commits(
    app: App, cart: Cart, sql: asyncpg.Connection[Any]
) -> None:
    async with app.worker():
        run = await cart.options(key="c").start("ann")
        await reaches(run, State.WAITING)
        transaction = sql.transaction()
        await transaction.start()
        await run.signal("item", "never", tx=sql)
        await transaction.rollback()
        async with sql.transaction():
            await app.run(key="c").signal("item", "a", tx=sql)
            await run.signal("item", "end", tx=sql)
            assert await types_of(run) == ["WorkflowStarted"]
        assert await run.result(10) == ["ann", "a"]
        async with sql.transaction():
            with pytest.raises(AlreadyFinished):
                await run.signal("item", "more", tx=sql)
    with pytest.raises(WrongUse):
        await run.signal("item", "outside of a transaction", tx=sql)


async def test_blocking_code_signals_in_its_transaction(app: App, cart: Cart, dsn: str) -> None:
    run = await cart.start("ann")

    def block() -> None:
        with psycopg.connect(dsn) as connection:
            run.sync.signal("item", "a", tx=connection)
            run.sync.signal("item", "end", tx=connection)
            cart.options(key="bob", tx=connection).sync.signal_or_start("item", "b", "bob")
        cart.options(key="bob").sync.signal_or_start("item", "end", "bob")

    await asyncio.to_thread(block)
    async with app.worker():
        assert await run.result(10) == ["ann", "a"]
        assert await app.run(key="bob").result(10) == ["bob", "b"]


@pytest.mark.parametrize("by", ["key", "unique"])
async def test_signal_or_start_starts_once_and_signals_always(app: App, cart: Cart, by: str) -> None:
    whom = cart.options(**{by: "ann's"})  # type: ignore[arg-type]  # either of them
    runs = await asyncio.gather(*(whom.signal_or_start("item", str(n), "ann") for n in range(20)))
    assert len({run.id for run in runs}) == 1
    async with app.worker():
        last = await whom.signal_or_start("item", "end", "whoever it is now")
        assert last.id == runs[0].id
        owner, *items = await last.result(10)
    assert owner == "ann"
    assert sorted(items, key=int) == [str(n) for n in range(20)]


async def test_signal_or_start_after_the_end_starts_anew_by_unique_and_not_by_key(app: App, cart: Cart) -> None:
    async with app.worker():
        for by in ("key", "unique"):
            whom = cart.options(**{by: "x"})  # type: ignore[arg-type]  # either of them
            first = await whom.signal_or_start("item", "end", "ann")
            assert await first.result(10) == ["ann"]
        with pytest.raises(AlreadyFinished):
            await cart.options(key="x").signal_or_start("item", "end", "ann")
        again = await cart.options(unique="x").signal_or_start("item", "end", "bob")
        assert await again.result(10) == ["bob"]


async def test_signal_or_start_in_a_users_transaction_is_both_or_neither(
    app: App, cart: Cart, sql: asyncpg.Connection[Any]
) -> None:
    transaction = sql.transaction()
    await transaction.start()
    await cart.options(key="k", tx=sql).signal_or_start("item", "never", "ann")
    await transaction.rollback()
    async with app.worker():
        async with sql.transaction():
            run = await cart.options(key="k", tx=sql).signal_or_start("item", "a", "ann")
            await cart.options(key="k", tx=sql).signal_or_start("item", "end", "ann")
        assert await run.result(10) == ["ann", "a"]


async def test_signal_or_start_must_know_whom(app: App, cart: Cart) -> None:
    @app.workflow(name="other")
    async def other() -> None:
        pass

    with pytest.raises(WrongUse, match="key"):
        await cart.signal_or_start("item", "a", "ann")
    await other.options(key="taken").start()
    with pytest.raises(KeyConflict):
        await cart.options(key="taken").signal_or_start("item", "a", "ann")


async def test_a_workflow_started_by_its_name_takes_signals_at_once(app: App, cart: Cart) -> None:
    run = await app.start("cart", "ann")
    await run.signal("item", "end")
    assert (await run.info()).kind == "workflow"
    async with app.worker():
        assert await run.result(10) == ["ann"]


async def test_a_client_without_the_code_starts_and_signals_where_a_worker_has_it(
    app: App, cart: Cart, dsn: str
) -> None:
    async with app.worker(queues=["another"]), App(dsn, migrate=False) as client:
        run = await client.start("cart", "ann")
        await run.signal("item", "end")
        async with app.worker():
            assert await run.result(10) == ["ann"]
        assert (await run.info()).kind == "workflow"


async def test_a_delayed_workflow_keeps_what_is_sent_to_it(app: App, cart: Cart) -> None:
    async with app.worker():
        run = await cart.options(delay="1h").start("ann")
        await run.signal("item", "a")
        await run.signal("item", "end")
        assert (await run.info()).state is State.SCHEDULED
        await Clock(app.dsn).skip("2h")
        assert await run.result(10) == ["ann", "a"]


async def test_many_workflows_are_started_at_once(app: App, cart: Cart) -> None:
    runs = await cart.start_many([(str(n),) for n in range(50)])
    for run in runs:
        await run.signal("item", "end")
    async with app.worker():
        assert [await run.result(10) for run in runs] == [[str(n)] for n in range(50)]


async def test_the_history_tells_what_happened_when(app: App, cart: Cart) -> None:
    async with app.worker():
        run = await cart.start("ann")
        await run.signal("item", "end")
        await run.result(10)
    history = await run.history()
    assert [event.idx for event in history] == [1, 2, 3]
    assert [event.at for event in history] == sorted(event.at for event in history)
    assert (history[1].data["name"], history[1].data["value"]) == ("item", "end")
    assert history[2].data["value"] == ["ann"]
