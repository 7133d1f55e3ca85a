"""Uses of the public API that must type-check, and with which types. Read by type checkers only, never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, assert_type
from uuid import UUID

from stepwell import (
    App,
    Attempt,
    Call,
    Error,
    Explanation,
    Filter,
    LogLine,
    Operator,
    Page,
    Progress,
    QueueInfo,
    Reason,
    Retry,
    Run,
    RunEvent,
    RunFailed,
    RunInfo,
    Snooze,
    State,
    SyncRun,
    Task,
    Usage,
    WorkerEvent,
    WorkerInfo,
    Workflow,
    current,
    workflow,
)


@dataclass
class Order:
    id: int


@dataclass
class Receipt:
    text: str


Starts = Callable[[Order], Coroutine[Any, Any, Run[Receipt]]]

app = App()
elsewhere = App("postgresql://localhost/shop", home="/tmp", schema="other", lease="30s", migrate=False)


@app.task
async def charge(order: Order, amount: float = 1.0) -> Receipt:
    return Receipt(f"{order.id}: {amount}")


@app.task
def add(one: int, two: int) -> int:
    return one + two


@app.task(
    name="shop.ship",
    queue="ships",
    priority=10,
    retry=Retry(attempts=5, backoff=[1, "10s", timedelta(minutes=1)], on=(OSError, "CODE"), never=ValueError),
    timeout=30,
    expires="1h",
    tags={"team": "ships"},
)
async def ship(order: Order, *, express: bool) -> list[Receipt]:
    return [Receipt(f"{order.id} {express}")]


@app.task(executor="process")
def crunch(numbers: list[int]) -> dict[str, int]:
    return {"sum": sum(numbers)}


@app.task()
async def nothing() -> None:
    assert_type(current.run_id, UUID)
    assert_type(current.attempt, int)
    assert_type(current.key, str | None)
    assert_type(current.cancelled, bool)
    current.progress("rows", done=1, total=2.5, detail={"file": "a.csv"})
    current.progress("rows", 1, 2.5, detail={"file": "a.csv"})
    current.heartbeat()
    raise Snooze("1m")


assert_type(nothing, Task[[], None])


async def starts(order: Order) -> None:
    run = await charge.start(order)
    assert_type(run, Run[Receipt])
    assert_type(await run.result(), Receipt)
    assert_type(await run.result(timeout=60), Receipt)
    assert_type(await run.result("5m"), Receipt)
    assert_type((await run.result(timedelta(seconds=5))).text, str)
    assert_type(await charge.start(order, amount=2.5), Run[Receipt])
    assert_type(await charge.start(order=order), Run[Receipt])
    assert_type(await add.start(1, two=2), Run[int])
    assert_type(await (await add.start(1, 2)).result(), int)
    assert_type(await ship.start(order, express=True), Run[list[Receipt]])
    assert_type(await crunch.start([1, 2]), Run[dict[str, int]])
    assert_type(await nothing.start(), Run[None])


async def options(order: Order) -> None:
    changed = charge.options(
        key="order-7", priority=1, delay="5m", queue="pay", retry=Retry(attempts=1), timeout=timedelta(minutes=1),
        expires=3600, tags={"tenant": "acme"},
    )  # fmt: skip
    assert_type(await changed.start(order), Run[Receipt])
    assert_type(await charge.options(at=datetime.now(UTC)).options(key="k").start(order, 2.0), Run[Receipt])
    assert_type(await changed(order), Receipt)
    assert_type(changed.sync.start(order).result(), Receipt)


async def in_a_transaction(order: Order, conn: object) -> None:
    run = await charge.options(tx=conn, key="k").start(order)
    assert_type(run, Run[Receipt])
    assert_type(await run.cancel(tx=conn), None)
    assert_type(await charge.options(tx=conn).start_many([(order,)]), list[Run[Receipt]])
    run.sync.cancel(tx=conn)
    async with current.tx() as connection:
        await connection.execute("select 1")


async def many(order: Order) -> None:
    assert_type(await charge.start_many([(order,), (order, 2.0)]), list[Run[Receipt]])
    assert_type(await add.start_many((n, n) for n in range(10)), list[Run[int]])
    assert_type(await ship.start_many([Call((order,), {"express": True}, {"key": "k"})]), list[Run[list[Receipt]]])


async def calls(order: Order) -> None:
    assert_type(await charge(order), Receipt)
    assert_type(await add(1, 2), int)
    assert_type(await ship(order, express=False), list[Receipt])
    receipt: Receipt = await charge.fn(order)
    total: int = add.fn(1, 2) + crunch.fn([len(receipt.text)])["sum"]
    assert total


def blocking(order: Order) -> None:
    run = charge.sync.start(order, amount=1.0)
    assert_type(run, SyncRun[Receipt])
    assert_type(run.result(timeout="1m"), Receipt)
    assert_type(run.id, UUID)
    assert_type(run.info(), RunInfo)
    assert_type(run.retry(), SyncRun[Receipt])
    assert_type(run.attempts(), list[Attempt])
    assert_type(run.progress(), list[Progress])
    assert_type(run.logs(attempt=1), list[LogLine])
    assert_type(run.explain(), Explanation)
    assert_type(add.sync.start_many([(1, 2)]), list[SyncRun[int]])
    run.cancel()


async def inside() -> None:
    assert_type(await current.checkpoint.save(Order(1), schema=2), int)
    assert_type(await current.checkpoint.load(Order), Order | None)
    assert_type(await current.checkpoint.load(Order, default=Order(1)), Order)
    assert_type(await current.checkpoint.load(list[int], []), list[int])


def inside_a_thread() -> None:
    assert_type(current.checkpoint.sync.save([Order(1)], list[Order]), int)
    assert_type(current.checkpoint.sync.load(Order), Order | None)
    assert_type(current.checkpoint.sync.load(Order, Order(1)), Order)


async def handles(run: Run[Receipt]) -> None:
    assert_type(run.id, UUID)
    assert_type(run.key, str | None)
    assert_type(await run.retry(), Run[Receipt])
    assert_type(await run.attempts(), list[Attempt])
    assert_type((await run.attempts())[0].usage, Usage | None)
    assert_type(await run.progress(), list[Progress])
    assert_type(await run.logs(), list[LogLine])
    assert_type(await run.explain(), Explanation)
    assert_type(run.sync.result(), Receipt)
    await run.cancel()
    try:
        await run.result()
    except RunFailed as failed:
        assert_type(failed.code, str | None)
        assert_type(failed.message, str)


async def reads() -> None:
    assert_type(app.run("order-7"), Run[Any])
    assert_type(app.run(UUID(int=1)), Run[Any])
    assert_type(await app.start("shop.ship", Order(1), express=True), Run[Any])
    assert_type(await app.definition("shop.ship").options(key="k").start(1), Run[Any])
    page = await app.runs(
        state=[State.FAILED, "expired"], name="shop.ship", queue="ships", kind="task", tags={"team": "ships"},
        error="ValueError", since=datetime.now(UTC), limit=10,
    )  # fmt: skip
    assert_type(page, Page)
    assert_type(page.items, list[RunInfo])
    assert_type(await app.runs(state="failed", after=page.next, within="5s"), Page)
    assert_type(await app.runs(blocked=True), Page)
    assert_type(await app.workers(), list[WorkerInfo])
    assert_type(app.dsn, str)


def fields(info: RunInfo) -> None:
    assert_type(info.id, UUID)
    assert_type(info.kind, Literal["task", "workflow", "graph"])
    assert_type(info.state, State)
    assert_type(info.input, dict[str, Any])
    assert_type(info.attempt, int)
    assert_type(info.due_at, datetime | None)
    assert_type(info.created_at, datetime)
    assert_type(info.worker, UUID | None)
    assert_type(info.tags, dict[str, Any])
    assert_type(info.error, Error | None)
    if info.error is not None:
        assert_type(info.error.reason, Reason)
        assert_type(info.error.code, str | None)


async def running() -> None:
    async with app, app.worker(queues=["ships"], slots=10, grace="30s") as worker:
        await worker.stop(5.0)


def passed_on(task: Task[[Order], Receipt], tags: Mapping[str, str]) -> Starts:
    return task.options(tags=tags).start


@app.step(retry=Retry(attempts=3), timeout="1m")
async def reserve(order: Order) -> int:
    return order.id


@app.step
def weigh(order: Order) -> float:
    return float(order.id)


@app.workflow
async def checkout(order: Order) -> Receipt:
    assert_type(await reserve(order), int)
    assert_type(await weigh(order), float)
    assert_type(await charge(order, amount=2.0), Receipt)
    started = await charge.start(order)
    assert_type(await started.result(), Receipt)
    assert_type(await workflow.signal("paid", Order, timeout="2d"), Order)
    assert_type(workflow.now(), datetime)
    assert_type(workflow.uuid(), UUID)
    assert_type(workflow.patched("new-tax"), bool)
    workflow.on_rollback(charge, order, amount=1.0)
    workflow.publish({"at": 1})
    workflow.continue_as_new(order)


async def workflows() -> None:
    same: Workflow[[Order], Receipt] = checkout
    assert_type(await same.start(Order(1)), Run[Receipt])
    run = await checkout.options(key="k", timeout="3d").start(Order(1))
    assert_type(run, Run[Receipt])
    assert_type(await checkout(Order(1)), Receipt)
    assert_type(await checkout.options(unique="u").signal_or_start("paid", 1, Order(1)), Run[Receipt])
    assert_type(checkout.options(unique="u").sync.signal_or_start("paid", 1, Order(1)), SyncRun[Receipt])
    assert_type(await run.state(Order), Order | None)
    assert_type([event.type for event in await run.history()], list[str])
    assert_type(await run.children(), list[Run[Any]])
    await run.signal("paid", Order(1), tx=object())
    await run.pause()
    await run.resume()
    await run.cancel(force=True)


async def operating(operator: Operator) -> None:
    assert_type(app.operator, Operator)
    assert_type(await operator.runs.list(state="failed", tags={"tenant": 1}), Page)
    assert_type(await operator.runs.find("0190aaaa"), UUID)
    detail = await operator.runs.detail("order-7")
    assert_type(detail.why, Explanation)
    assert_type(detail.attempts, list[Attempt])
    assert_type(detail.workers, dict[UUID, WorkerInfo])
    assert_type((await operator.runs.cancel(detail.info.id, force=True)).asked, bool)
    assert_type((await operator.runs.start("shop.charge", [1], queue="mail")).id, UUID)
    assert_type(await operator.runs.logs("order-7", 1), list[LogLine])
    counted = await operator.bulk.count(Filter(queue="mail"), "retry", most=10)
    assert_type(counted.sample, list[RunInfo])
    async for progress in operator.bulk.retry(Filter(queue="mail"), upto=counted.upto):
        assert_type(progress.done, int)
    assert_type(await operator.queues.set("mail", concurrency=3, rate=None), QueueInfo)
    assert_type(await operator.workers.list(live=True), list[WorkerInfo])
    assert_type(await operator.statistics.counts(), dict[State, int])
    assert_type((await operator.preflight(app.definitions, limit=10)).unknown, dict[str, int])
    assert_type((await operator.doctor())[0].verdict, Literal["good", "look", "bad"])
    assert_type((await operator.database()).size, int)


@app.on("run.failed", "run.retrying")
async def failed(event: RunEvent) -> None:
    assert_type(event.run_id, UUID)
    assert_type(event.error, Error | None)
    assert_type(event.next_at, datetime | None)
    assert_type(event.worker, UUID | None)
    assert_type(event.tags, dict[str, Any])


@app.on("worker.lost", timeout="30s")
def gone(event: WorkerEvent) -> None:
    assert_type(event.name, str)


@app.on("run.completed", "worker.stopped")
def any_of_them(event: RunEvent | WorkerEvent) -> int:
    assert_type(event.at, datetime)
    return 1


event_function: Callable[[RunEvent | WorkerEvent], int] = any_of_them
quiet = App(log_failures=False)
