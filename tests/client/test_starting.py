from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from stepwell import (
    AlreadyFinished,
    App,
    Call,
    DuplicateName,
    InvalidSetting,
    KeyConflict,
    NotDecodable,
    NotEncodable,
    NotFound,
    Retry,
    RunCancelled,
    RunExpired,
    State,
    WrongUse,
)
from stepwell.testing import Clock
from tests.waiting_for import until


@dataclass
class Order:
    id: uuid.UUID
    total: Decimal
    at: datetime


ORDER = Order(uuid.UUID(int=7), Decimal("12.50"), datetime(2026, 1, 2, 3, 4, tzinfo=UTC))


async def test_what_goes_in_and_comes_out_keeps_its_type(app: App) -> None:
    @app.task
    async def charge(order: Order, cents: int = 0) -> Order:
        assert isinstance(order, Order)
        return order

    async with app.worker():
        assert await (await charge.start(ORDER)).result(10) == ORDER


async def test_options_decide_how_the_run_is_stored(app: App) -> None:
    @app.task(queue="mail", priority=20, timeout="30s", retry=Retry(attempts=5))
    async def send(to: str) -> None: ...

    run = await send.options(priority=1, queue="vip", key="k-1", tags={"tenant": "acme"}, expires="1h").start("a@b.c")
    info = await run.info()
    assert (info.queue, info.priority, info.key, info.tags) == ("vip", 1, "k-1", {"tenant": "acme"})
    assert info.input == {"to": "a@b.c"}
    assert info.expires_at is not None
    assert info.expires_at - info.created_at == timedelta(hours=1)
    assert (await (await send.start("x")).info()).queue == "mail"


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": 0}, {"priority": 101}, {"priority": True}, {"queue": ""}, {"queue": "a\nb"}, {"queue": "q" * 101},
        {"key": ""}, {"key": "\x00"}, {"delay": -1}, {"delay": "soon"}, {"timeout": 0}, {"expires": 0},
        {"at": datetime.min.replace(tzinfo=UTC)}, {"at": datetime.max.replace(tzinfo=UTC)},
        {"at": datetime(2030, 1, 1)}, {"at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 1},
        {"retry": 3}, {"tags": {1: 2}},
    ],
)  # fmt: skip
async def test_a_wrong_option_is_refused_at_the_call(app: App, wrong: dict[str, object]) -> None:
    @app.task
    async def send(to: str) -> None: ...

    with pytest.raises(InvalidSetting):
        send.options(**wrong)  # type: ignore[arg-type]


async def test_what_cannot_be_stored_is_refused_with_the_parameters_name_and_nothing_is_written(app: App) -> None:
    @app.task
    async def send(to: object, note: str = "") -> None: ...

    circle: list[object] = []
    circle.append(circle)
    for value in (float("nan"), "\x00", open, circle):
        with pytest.raises(NotEncodable, match="'to'"):
            await send.start(value)
    with pytest.raises(NotEncodable, match="'to'"):
        await send.start_many([("fine",), (float("inf"),)])
    assert (await app.runs()).items == []


async def test_the_same_key_is_the_same_run_and_other_input_is_refused(app: App) -> None:
    @app.task
    async def pay(amount: int, note: dict[str, int]) -> None: ...

    first = await pay.options(key="order-7").start(1, {"a": 1, "b": 2})
    again = await pay.options(key="order-7").start(1, {"b": 2, "a": 1})
    assert first.id == again.id
    with pytest.raises(KeyConflict):
        await pay.options(key="order-7").start(2, {})
    assert await app.run("order-7").info() == await first.info()


async def test_start_many_is_all_or_nothing(app: App) -> None:
    @app.task
    async def pay(amount: int) -> None: ...

    await pay.options(key="taken").start(1)
    with pytest.raises(KeyConflict):
        await pay.start_many([Call((5,), options={"key": "free"}), Call((2,), options={"key": "taken"})])
    assert len((await app.runs()).items) == 1
    one, two, three = await pay.start_many(
        [Call((1,), options={"key": "new"}), Call(kwargs={"amount": 1}, options={"key": "new"}), (9,)]
    )
    assert one.id == two.id != three.id
    with pytest.raises(KeyConflict):
        await pay.start_many([Call((1,), options={"key": "x"}), Call((2,), options={"key": "x"})])


async def test_thousands_start_in_one_call(app: App) -> None:
    @app.task
    async def count(n: int) -> int:
        return n

    runs = await count.start_many((n,) for n in range(12_000))
    assert len({run.id for run in runs}) == 12_000
    assert await count.start_many([]) == []


async def test_a_run_is_started_by_name_without_its_code(app: App, dsn: str) -> None:
    elsewhere = App(dsn)

    @app.task(name="shop.charge")
    async def charge(amount: int, *, currency: str) -> str:
        return f"{amount} {currency}"

    async with elsewhere, app.worker():
        run = await elsewhere.start("shop.charge", 5, currency="NOK")
        assert await run.result(10) == "5 NOK"
        urgent = await elsewhere.definition("shop.charge").options(priority=1).start(6, currency="EUR")
        assert await urgent.result(10) == "6 EUR"


async def test_a_start_by_name_takes_plain_data_and_checks_it_where_the_code_is_known(app: App) -> None:
    @app.task(name="shop.charge")
    async def charge(order: Order) -> str:
        return type(order).__name__

    plain = {"id": str(ORDER.id), "total": "12.50", "at": "2026-01-02T03:04:00Z"}
    async with app.worker():
        assert await (await app.start("shop.charge", plain)).result(10) == "Order"
        assert await (await app.start("shop.charge", order=ORDER)).result(10) == "Order"
    with pytest.raises(NotDecodable, match="order"):
        await app.start("shop.charge", {"id": 3})


async def test_a_key_that_looks_like_an_id_is_found_as_a_key(app: App) -> None:
    @app.task
    async def work() -> None: ...

    key = str(uuid.uuid4())
    run = await work.options(key=key).start()
    assert (await app.run(key=key).info()).id == run.id


async def test_a_wrong_call_by_name_fails_its_run_with_the_reason(app: App, dsn: str) -> None:
    @app.task(name="shop.charge")
    async def charge(amount: int) -> None: ...

    async with App(dsn) as elsewhere:
        run = app.run((await elsewhere.start("shop.charge", "not a number")).id)
    async with app.worker():
        info = await until(lambda: finished(run))
    assert info.state is State.FAILED
    assert info.attempt == 3  # a worker of another version might have been able to read it
    assert "amount" in info.error.message


async def finished(run):  # type: ignore[no-untyped-def]
    info = await run.info()
    return info if info.state.finished else None


async def test_a_delayed_run_starts_when_it_is_due(app: App, dsn: str) -> None:
    @app.task
    async def remind() -> str:
        return "done"

    run = await remind.options(delay="3d").start()
    on_time = await remind.options(at=datetime.now(UTC) + timedelta(days=2)).start()
    async with app.worker():
        assert (await run.info()).state is State.SCHEDULED
        await Clock(dsn).skip("4d")
        assert [await each.result(10) for each in (run, on_time)] == ["done", "done"]


async def test_a_run_not_started_in_time_expires(app: App, dsn: str) -> None:
    @app.task
    async def offer() -> None: ...

    run = await offer.options(expires="1h", delay="2h").start()
    async with app.worker():
        await Clock(dsn).skip("90m")
        with pytest.raises(RunExpired):
            await run.result(10)


async def test_cancelling_is_at_once_and_twice_is_fine(app: App) -> None:
    @app.task
    async def work() -> None: ...

    run = await work.start()
    await run.cancel()
    await run.cancel()
    with pytest.raises(RunCancelled):
        await run.result(30)
    done = await work.start()
    async with app.worker():
        await done.result(10)
    with pytest.raises(AlreadyFinished):
        await done.cancel()


async def test_an_unknown_run_is_not_waited_for_for_ever(app: App) -> None:
    missing = app.run(uuid.uuid4())
    for verb in (missing.info, missing.cancel, missing.retry, missing.result):
        with pytest.raises(NotFound):
            await verb()
    with pytest.raises(NotFound):
        await app.run("no-such-key").info()


async def test_a_result_that_takes_too_long_is_a_timeout_and_the_run_goes_on(app: App) -> None:
    @app.task
    async def work() -> int:
        return 1

    run = await work.start()
    with pytest.raises(TimeoutError):
        await run.result(timeout=0.01)
    async with app.worker():
        assert await run.result("10s") == 1


async def test_a_finished_run_retried_is_a_new_run(app: App) -> None:
    calls = []

    @app.task(retry=Retry(attempts=1))
    async def work(n: int) -> int:
        calls.append(n)
        if len(calls) == 1:
            raise ValueError("first")
        return n

    async with app.worker():
        run = await work.start(5)
        await until(lambda: finished(run))
        again = await run.retry()
        assert await again.result(10) == 5
    assert (await again.info()).retry_of == run.id
    assert (await run.info()).state is State.FAILED


async def test_runs_are_listed_by_what_one_asks_for(app: App) -> None:
    @app.task(name="a")
    async def a() -> None: ...

    @app.task(name="b", queue="other")
    async def b() -> None: ...

    made = [await a.options(tags={"n": n, "tenant": "x"}).start() for n in range(5)]
    await b.start()
    assert {item.id for item in (await app.runs(name="a")).items} == {run.id for run in made}
    assert [item.name for item in (await app.runs(queue="other")).items] == ["b"]
    assert [item.tags["n"] for item in (await app.runs(tags={"n": 3})).items] == [3]
    await made[0].cancel()
    assert [item.id for item in (await app.runs(state="cancelled")).items] == [made[0].id]
    assert len((await app.runs(state=["pending", State.CANCELLED])).items) == 6
    first = await app.runs(limit=4)
    rest = await app.runs(limit=4, after=first.next)
    assert len(first.items) + len(rest.items) == 6
    assert rest.next is None
    with pytest.raises(InvalidSetting):
        await app.runs(state="done")
    with pytest.raises(InvalidSetting):
        await app.runs(after="the beginning")


async def test_ten_thousand_waiters_cost_one_listener(app: App) -> None:
    @app.task
    async def count(n: int) -> int:
        return n

    runs = await count.start_many((n,) for n in range(10_000))
    waiters = [asyncio.create_task(run.result(60)) for run in runs]
    async with app.worker():
        assert await asyncio.gather(*waiters) == list(range(10_000))
    listeners = [
        task for task in asyncio.all_tasks() if task.get_name() in ("stepwell.wire", "stepwell.client.result_waiter")
    ]
    assert len(listeners) == 2


def test_two_definitions_of_one_name_are_refused() -> None:
    app = App("postgresql://nowhere/x")

    @app.task(name="same")
    async def one() -> None: ...

    with pytest.raises(DuplicateName, match=__file__):

        @app.task(name="same")
        async def two() -> None: ...


def test_only_a_function_can_be_a_task() -> None:
    app = App("postgresql://nowhere/x")
    for wrong in (3, str, lambda: (yield)):
        with pytest.raises(WrongUse):
            app.task(wrong)  # type: ignore[call-overload]
    with pytest.raises(InvalidSetting, match="executor"):
        app.task(executor="gpu")(test_only_a_function_can_be_a_task)


async def test_a_task_called_runs_here_and_leaves_no_run(app: App) -> None:
    @app.task
    async def double(n: int) -> int:
        return n * 2

    @app.task
    def halve(n: int) -> float:
        return n / 2

    assert (await double(4), await halve(3), halve.fn(3), await double.fn(1)) == (8, 1.5, 1.5, 2)
    assert (await app.runs()).items == []


async def test_an_app_that_is_not_open_says_so(dsn: str) -> None:
    app = App(dsn)

    @app.task
    async def work() -> None: ...

    with pytest.raises(WrongUse, match="async with app"):
        await work.start()
