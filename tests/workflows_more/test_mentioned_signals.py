"""A signal that no code waits for is sent all the same, and told as a warning: never one that is wrong."""

from __future__ import annotations

import enum
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from stepwell import App, workflow
from stepwell.definitions.mentions import mentions
from tests.waiting_for import until

NAME = "by_constant"


class Names(enum.StrEnum):
    PAID = "by_enum"


class Waiter:
    name = "by_attribute"

    async def wait(self) -> Any:
        return await workflow.signal("in_a_method")


async def helper() -> Any:
    return await workflow.signal("in_a_helper")


wait_for = workflow.signal


async def plain() -> None:
    await workflow.signal("shipped", timeout=60)
    await workflow.signal(name="paid")


async def nested() -> None:
    async def inner() -> None:
        await workflow.signal("inside")

    await inner()


async def through_others() -> None:
    await helper()
    await Waiter().wait()
    await workflow.signal(NAME)
    await workflow.signal(Waiter.name)


async def by_enum() -> None:
    await workflow.signal(Names.PAID)


async def none_at_all() -> None: ...


@pytest.mark.parametrize(
    ("fn", "signals"),
    [
        (plain, {"shipped", "paid"}),
        (nested, {"inside"}),
        (through_others, {"in_a_helper", "in_a_method", "by_constant", "by_attribute"}),
        (by_enum, {"by_enum"}),
        (none_at_all, set()),
    ],
)
def test_the_names_of_signals_are_seen_in_the_code(fn: Callable[..., Any], signals: set[str]) -> None:
    found = mentions(fn)
    assert found is not None
    assert found.signals == signals
    assert all(found.doubt("shop.pay", signal) is None for signal in signals)
    assert found.doubt("shop.pay", "never") is not None


async def computed(name: str) -> None:
    await workflow.signal(name)


async def built() -> None:
    for number in range(3):
        await workflow.signal(f"part {number}")


async def by_another_name() -> None:
    await wait_for("x")


async def passed_on() -> None:
    waits: Callable[..., Awaitable[Any]] = workflow.signal
    await waits("x")


@pytest.mark.parametrize("fn", [computed, built, by_another_name, passed_on, len])
def test_nothing_is_said_of_names_that_are_computed_or_of_code_that_cannot_be_read(fn: Callable[..., Any]) -> None:
    assert mentions(fn) is None


@pytest.mark.parametrize("tx", [False, True])
async def test_a_signal_that_the_code_does_not_mention_is_sent_and_warned_of_once(
    app: App, caplog: pytest.LogCaptureFixture, *, tx: bool
) -> None:
    pay = app.workflow(name="shop.pay")(plain)
    run = await pay.start()

    async def send(name: str) -> None:
        if not tx:
            await run.signal(name)
            return
        connection = await asyncpg.connect(app.dsn)
        async with connection.transaction():
            await run.signal(name, tx=connection)
        await connection.close()

    async with app.worker():
        await until(lambda: _waits(run), within=15)
        with caplog.at_level(logging.WARNING, "stepwell"):
            for name in ("shiped", "shiped", "shipped", "paid"):
                await send(name)
        await run.result(10)
    warned = [record.getMessage() for record in caplog.records if "mention" in record.getMessage()]
    assert warned == [
        "the code of shop.pay, as it is here, does not mention the signal 'shiped': did you mean 'shipped'? "
        "The signal was sent anyway."
    ]
    came = [each.data["name"] for each in await run.history() if each.type == "SignalReceived"]
    assert came == ["shiped", "shiped", "shipped", "paid"]


async def test_signal_or_start_warns_of_a_name_that_the_code_does_not_mention(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    pay = app.workflow(name="shop.pay")(plain)
    with caplog.at_level(logging.WARNING, "stepwell"):
        await pay.options(key="k").signal_or_start("shiped")
    assert "does not mention the signal 'shiped'" in caplog.text


async def test_nothing_is_warned_of_where_the_code_is_not_known(
    app: App, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = await app.workflow(name="shop.pay")(plain).start()
    async with App(dsn) as other:
        with caplog.at_level(logging.WARNING, "stepwell"):
            await other.run(run.id).signal("shiped")
    assert "mention" not in caplog.text


async def _waits(run: Any) -> bool:
    return (await run.info()).state == "waiting"
