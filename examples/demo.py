"""A tea shop. Orders are paid, packed and remembered, whatever breaks on the way.

    python examples/demo.py           orders keep coming: watch the runs move, Ctrl-C to stop
    python examples/demo.py --exit    one morning at the shop, then what became of it

No database to set up: an embedded Postgres starts in `.stepwell/`, and stops after us.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell import App, Retry, Run, RunError, RunFailed, RunInfo, State, current, workflow

app = App()
console = Console(highlight=False, soft_wrap=True)
COLOURS = {"completed": "green", "failed": "red", "cancelled": "yellow", "running": "cyan", "scheduled": "blue"}


@dataclass
class Order:
    number: int
    tea: str
    cups: int
    card: str = "4242"


class BankIsBusy(Exception):
    """The bank hangs up on us now and then."""


@app.task(queue="payments", retry=Retry(attempts=4, delay=0.3, never="CARD_STOLEN"), timeout=10)
async def charge(order: Order) -> str:
    """`async def`: on the worker's event loop. Two orders in three find the line busy the first time."""
    await asyncio.sleep(0.1)
    if order.card == "0000":
        raise RunError("the bank says this card was stolen", code="CARD_STOLEN")
    if current.attempt <= order.number % 3:
        raise BankIsBusy(f"no answer for order {order.number}, attempt {current.attempt}")
    return f"receipt {order.number}: {order.cups * 3} €"


@app.task
def print_label(order: Order) -> str:
    """`def`: in a thread, because printers block."""
    time.sleep(0.2)
    return f"[{order.number:04}] {order.tea}"


@app.task(executor="process")
def blend(seed: int) -> int:
    """CPU work, in a process of its own: the other tasks do not feel it."""
    taste = seed
    for _ in range(400_000):
        taste = (taste * 1_103_515_245 + 12_345) % 2_147_483_648
    return taste


@app.task
async def remind(order: Order) -> str:
    return f"How is the {order.tea}?"


@app.step
async def reserve(guest: int) -> str:
    """A step: part of a workflow, run where that is, and recorded. Told again, the workflow does not repeat it."""
    return f"table {guest % 7}"


@app.workflow
async def tasting(order: Order) -> str:
    """A workflow: plain asyncio that goes on where it was, whatever dies. Others wait for days."""
    table = await reserve(order.number)
    await asyncio.sleep(0.5)
    guests = await workflow.signal("coming", int, timeout="30s")
    _receipt, label = await asyncio.gather(charge(order), print_label(order))
    return f"{guests} at {table}: {label}"


ORDERS = [
    Order(1001, "sencha", 2),
    Order(1002, "assam", 4),
    Order(1003, "oolong", 1),
    Order(1004, "earl grey", 3, card="0000"),
]


async def sell(order: Order, day: str) -> list[Run[Any]]:
    """All that one order sets in motion."""
    tags = {"day": day}
    paid = charge.options(key=f"{day}-order-{order.number}", tags=tags)
    payment = await paid.start(order)
    # The customer clicks twice. The key is the same, so it is the same run: nobody pays twice.
    assert await paid.start(order) == payment
    label = await print_label.options(tags=tags).start(order)
    reminder = await remind.options(delay="2s", tags=tags).start(order)
    return [payment, label, reminder]


async def morning(day: str) -> None:
    """Four orders, a blend, a tasting, and a gift that is called off."""
    tags = {"day": day}
    gift = await remind.options(delay="1h", tags=tags).start(ORDERS[0])
    runs = [run for order in ORDERS for run in await sell(order, day)]
    runs.append(await blend.options(tags=tags).start(7))
    party = await tasting.options(tags=tags).start(ORDERS[2])
    await party.signal("coming", 3)
    runs.append(party)
    await gift.cancel()
    for run in runs:
        try:
            await run.result(timeout=30)
        except RunFailed as error:
            console.print(f"         (what `await run.result()` raised: {error})", style="dim")


async def follow(day: str) -> None:
    """Print each run of the day whenever it is in a new state."""
    seen: dict[uuid.UUID, tuple[State, int]] = {}
    while True:
        page = await app.runs(tags={"day": day}, limit=200)
        for info in reversed(page.items):
            if seen.get(info.id) != (info.state, info.attempt):
                seen[info.id] = info.state, info.attempt
                console.print(line(info))
        await asyncio.sleep(0.1)


def line(info: RunInfo) -> Text:
    what = f" {info.name.rpartition('.')[2]:<12}"
    again = f" attempt {info.attempt}" if info.attempt > 1 else ""
    state = (f" {info.state:<10}", COLOURS.get(info.state, ""))
    return Text.assemble((f"{time.strftime('%H:%M:%S')} ", "dim"), state, what, (f"{info.id}", "dim"), again)


@asynccontextmanager
async def following(day: str) -> AsyncIterator[None]:
    task = asyncio.create_task(follow(day))
    try:
        yield
    finally:
        await asyncio.sleep(0.2)  # for the last moves to be seen
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def summary(day: str) -> bool:
    """What became of it all; whether that is what had to."""
    infos = (await app.runs(tags={"day": day}, limit=200)).items
    ends = (State.COMPLETED, State.FAILED, State.CANCELLED)
    table = Table("task", "runs", "attempts", *ends)
    for name in sorted({info.name for info in infos}):
        mine = [info for info in infos if info.name == name]
        states = Counter(info.state for info in mine)
        counts = [str(states[state] or "·") for state in ends]
        table.add_row(name.rpartition(".")[2], str(len(mine)), str(sum(info.attempt for info in mine)), *counts)
    console.print(table)
    for info in infos:
        if (error := info.error) is not None:
            console.print(f"failed: order {info.input['order']['number']}: {error.message} ({error.code})")
    states = Counter(info.state for info in infos)
    attempts = {info.input["order"]["number"]: info.attempt for info in reversed(infos) if "charge" in info.name}
    console.print(f"paid once each, though clicked twice; attempts by order: {attempts}")
    expected = {State.COMPLETED: 13, State.FAILED: 1, State.CANCELLED: 1}
    return states == expected and attempts == {order.number: tries(order) for order in ORDERS}


def tries(order: Order) -> int:
    return 1 if order.card == "0000" else order.number % 3 + 1


async def one_morning() -> bool:
    day = f"day-{uuid.uuid4().hex[:6]}"
    async with app, app.worker(slots=10):
        async with following(day):
            await morning(day)
        return await summary(day)


async def for_ever() -> None:
    day = f"day-{uuid.uuid4().hex[:6]}"
    async with app, app.worker(slots=10), following(day):
        console.print("the shop is open: Ctrl-C closes it", style="dim")
        number = 1000
        while True:
            number += 1
            template = ORDERS[number % len(ORDERS)]
            await sell(Order(number, template.tea, template.cups, template.card), day)
            await asyncio.sleep(1)


def main() -> int:
    if "--exit" in sys.argv[1:]:
        as_expected = asyncio.run(one_morning())
        console.print("all as it should be" if as_expected else "something is not as it should be")
        return 0 if as_expected else 1
    try:
        asyncio.run(for_ever())
    except KeyboardInterrupt:
        console.print("\nclosed; what was open goes on next time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
