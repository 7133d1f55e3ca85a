"""Lines are lent to one at a time, never more than there may be, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from stepwell.model.errors import Unavailable
from stepwell.store import lines as lines_module
from stepwell.store.lines import Line, Lines
from tests.waiting_for import until

pytestmark = pytest.mark.timeout(30)


class Exchange:
    """Connects to the real server, and counts; or does not, if told so."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.opened: list[Line] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def connect(self) -> Line:
        await self.gate.wait()
        if self.error:
            raise self.error
        line = await asyncpg.connect(self.dsn)
        self.opened.append(line)
        return line


def closed(lines: list[Line], count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return sum(line.is_closed() for line in lines) == count

    return look


@pytest.fixture
def exchange(dsn: str) -> Exchange:
    return Exchange(dsn)


@pytest.fixture
async def lines(exchange: Exchange) -> AsyncIterator[Lines]:
    lines = Lines(exchange.connect, size=2)
    await lines.open()
    yield lines
    await lines.close()
    assert all(line.is_closed() for line in exchange.opened)


async def test_one_after_another_use_the_same_line(lines: Lines, exchange: Exchange) -> None:
    for _ in range(5):
        line = await lines.take()
        assert await line.fetchval("select 1") == 1
        lines.give_back(line)
    assert len(exchange.opened) == 1


async def test_there_are_never_more_than_there_may_be_and_who_waits_is_served_in_turn(lines: Lines) -> None:
    one, two = await lines.take(), await lines.take()
    assert one is not two
    served: list[int] = []

    async def customer(number: int) -> None:
        line = await lines.take()
        served.append(number)
        lines.give_back(line)

    waiting = [asyncio.create_task(customer(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert served == []
    lines.give_back(one)
    await asyncio.gather(*waiting)
    assert served == [0, 1, 2]
    lines.give_back(two)


async def test_a_line_that_was_lost_is_replaced_for_the_one_who_waits(lines: Lines, exchange: Exchange) -> None:
    one, two = await lines.take(), await lines.take()
    waiting = asyncio.create_task(lines.take())
    await asyncio.sleep(0)
    one.terminate()
    lines.give_back(one)
    another = await waiting
    assert another not in (one, two)
    assert len(exchange.opened) == 3
    lines.give_back(another)
    lines.give_back(two)


async def test_a_line_that_died_while_it_lay_idle_is_not_lent(lines: Lines, dsn: str) -> None:
    line = await lines.take()
    lines.give_back(line)
    killer = await asyncpg.connect(dsn)
    await killer.fetchval("select pg_terminate_backend($1, 5000)", line.get_server_pid())
    await killer.close()
    await until(closed([line], 1))
    another = await lines.take()
    assert await another.fetchval("select 1") == 1
    lines.give_back(another)


async def test_a_transaction_left_open_goes_with_its_line(lines: Lines) -> None:
    line = await lines.take()
    await line.execute("begin")
    lines.give_back(line)
    assert line.is_closed()
    another = await lines.take()
    assert not another.is_in_transaction()
    lines.give_back(another)


async def test_who_gives_up_waiting_takes_nothing_along(lines: Lines) -> None:
    one, two = await lines.take(), await lines.take()
    impatient, patient = asyncio.create_task(lines.take()), asyncio.create_task(lines.take())
    await asyncio.sleep(0)
    lines.give_back(one)  # it is the impatient one's
    impatient.cancel()  # and that one will never know
    assert await patient is one
    lines.give_back(one)
    gone = asyncio.create_task(lines.take())
    assert await gone is one
    hopeless = asyncio.create_task(lines.take())
    await asyncio.sleep(0)
    hopeless.cancel()
    await asyncio.gather(hopeless, return_exceptions=True)
    lines.give_back(one)
    assert await lines.take() is one
    lines.give_back(one)
    lines.give_back(two)


async def test_a_server_that_is_away_leaves_room_for_the_next_to_try(lines: Lines, exchange: Exchange) -> None:
    one = await lines.take()
    exchange.gate.clear()
    exchange.error = ConnectionRefusedError()
    first, second = asyncio.create_task(lines.take()), asyncio.create_task(lines.take())
    await asyncio.sleep(0)
    exchange.gate.set()
    for trying in (first, second):
        with pytest.raises(ConnectionRefusedError):
            await trying
    exchange.error = None
    lines.give_back(await lines.take())
    lines.give_back(one)


async def test_what_is_not_needed_is_closed_but_for_one(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "REST", 0.05)
    lines = Lines(exchange.connect, size=3)
    taken = [await lines.take() for _ in range(3)]
    for line in taken:
        lines.give_back(line)
    await until(closed(taken, 2))
    await asyncio.sleep(0.1)
    assert sum(not line.is_closed() for line in taken) == 1
    await lines.close()


async def test_closing_waits_for_what_is_lent_and_refuses_who_waits(exchange: Exchange) -> None:
    lines = Lines(exchange.connect, size=1)
    line = await lines.take()
    waiting = asyncio.create_task(lines.take())
    await asyncio.sleep(0)
    closing = asyncio.create_task(lines.close())
    with pytest.raises(Unavailable):
        await waiting
    assert await line.fetchval("select 1") == 1
    assert not closing.done()
    lines.give_back(line)
    await closing
    assert line.is_closed()
    with pytest.raises(Unavailable):
        await lines.take()


async def test_closing_does_not_wait_for_ever(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "PARTING", 0.05)
    lines = Lines(exchange.connect, size=1)
    line = await lines.take()
    await lines.close()
    assert line.is_closed()
