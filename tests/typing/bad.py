"""Calls that are wrong, each to be refused on a line marked E, by every type checker; no other."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from stepwell import App, Call, Filter, Operator, Retry, Run, RunEvent, RunInfo, Task, WorkerEvent, current


@dataclass
class Order:
    id: int


@dataclass
class Receipt:
    text: str


app = App()


@app.task
async def charge(order: Order, amount: float = 1.0) -> Receipt:
    return Receipt(f"{order.id}: {amount}")


@app.task(queue="sums")
def add(one: int, two: int) -> int:
    return one + two


@app.task
async def ship(order: Order, *, express: bool) -> None:
    print(order, express)


@app.task(queues="mail")  # E: no such setting
async def misspelt() -> None: ...


@app.task(priority="high")  # E: a priority is a number
async def hurried() -> None: ...


@app.task(retry=3)  # E: a policy is a Retry
async def stubborn() -> None: ...


@app.task(executor=3)  # E: an executor is named by a text
def fast() -> None: ...


async def starts(order: Order) -> None:
    await charge.start("order-7")  # E: wrong type of argument
    await charge.start()  # E: missing argument
    await charge.start(order, 1.0, 2.0)  # E: surplus argument
    await charge.start(order, price=2.0)  # E: wrong keyword
    await charge.start(order, amount="2")  # E: wrong type of keyword
    await add.start(1)  # E: missing second argument
    await add.start(1, "2")  # E: wrong second argument
    await ship.start(order)  # E: missing keyword
    await ship.start(order, True)  # E: keyword given by position


async def options(order: Order) -> None:
    await charge.options(keys="k").start(order)  # E: no such option
    await charge.options(key=7).start(order)  # E: a key is text
    await charge.options(priority="1").start(order)  # E: a priority is a number
    await charge.options(delay=[5]).start(order)  # E: no duration
    await charge.options(at="tomorrow").start(order)  # E: a moment is a datetime
    await charge.options(tags=["a"]).start(order)  # E: tags are a mapping
    await charge.options("k").start(order)  # E: options have names
    await charge.options(key="k").start("order-7")  # E: the same arguments as without options


async def many(order: Order) -> None:
    await charge.start_many([order])  # E: a call is a tuple or a Call
    await charge.start_many((order,))  # E: one call instead of many
    await charge.start_many([Call(order)])  # E: a Call's arguments are a tuple


async def results(order: Order) -> None:
    run = await charge.start(order)
    text: str = await run.result()  # E: a Receipt is no str
    print(text, (await run.result()).total)  # E: a Receipt has no total
    number: int = await charge(order)  # E: a Receipt is no int
    other: Run[int] = run  # E: a run of another result
    print(number, other, run.result().text)  # E: not awaited
    print((await run.retry().result()).text)  # E: not awaited
    await run.result(timeout=b"1m")  # E: no duration
    print(await add("1", 2))  # E: wrong type of argument
    print(add(1, 2) + 1)  # E: not awaited
    print(add.fn(1, "2"))  # E: wrong type of argument


def blocking(order: Order) -> None:
    text: str = charge.sync.start(order).result()  # E: a Receipt is no str
    charge.sync.start("order-7")  # E: wrong type of argument
    charge.sync.start(order, price=1.0)  # E: wrong keyword
    charge.sync.options(key="k")  # E: options come before sync
    print(text)


async def awaiting_what_blocks(order: Order) -> None:
    await charge.sync.start(order)  # E: sync is not awaited
    await charge.sync.start(order).result()  # E: neither is its result


async def reads(info: RunInfo) -> None:
    app.run(7)  # E: neither id nor key
    await app.runs(status="failed")  # E: a run has a state
    await app.runs(limit="10")  # E: a limit is a number
    await app.runs(blocked="yes")  # E: yes or no
    await app.runs(kind="job")  # E: no such kind
    await app.start(charge)  # E: a name is text
    print(info.due_at.year)  # E: it may be None
    print(info.error.message)  # E: it may be None
    info.attempt = 3  # E: a fact is not changed
    identity: int = info.id  # E: an id is a UUID
    print(identity, current.run_id + 1)  # E: an id is a UUID


def settings() -> None:
    App(lease=None, timeout=5)  # E: no such setting
    App(7)  # E: a DSN is text
    Retry(attempts="3")  # E: a number
    Retry(tries=3)  # E: no such setting
    Retry(backoff=5)  # E: neither a name nor delays
    Retry(on=[1])  # E: neither type nor code


def passed_on() -> None:
    task: Task[[UUID], int] = add  # E: other parameters
    print(task)


@app.on("worker.lost")  # E: the function takes another kind of event
def lost(event: RunEvent) -> None:
    print(event)


@app.on("run.failed")  # E: the function takes another kind of event
def failed(event: WorkerEvent) -> None:
    print(event)


app.on("run.faild")  # E: no such event


async def operating(operator: Operator) -> None:
    await operator.bulk.count(Filter(), "drop")  # E: no such action
    await operator.queues.set("mail", concurrency="3")  # E: no number
    await operator.runs.detail(7)  # E: neither an id nor a key
