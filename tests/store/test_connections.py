"""Connections are lent to one at a time, never more than there may be, and never lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import asyncpg
import pytest

from stepwell.model.errors import Unavailable
from stepwell.store import connections as module
from stepwell.store.connections import Connection, Connections, Share
from stepwell.store.pool import Database
from tests.waiting_for import until

pytestmark = pytest.mark.timeout(30)


class Remote:
    """Connects to the real server, and counts; or does not, if told so."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.opened: list[Connection] = []
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def connect(self) -> Connection:
        await self.gate.wait()
        if self.error:
            raise self.error
        connection = await asyncpg.connect(self.dsn)
        self.opened.append(connection)
        return connection


def closed(connections: list[Connection], count: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return sum(connection.is_closed() for connection in connections) == count

    return look


@pytest.fixture
def remote(dsn: str) -> Remote:
    return Remote(dsn)


@pytest.fixture
async def connections(remote: Remote) -> AsyncIterator[Connections]:
    connections = Connections(remote.connect, size=2)
    await connections.open()
    yield connections
    await connections.close()
    assert all(connection.is_closed() for connection in remote.opened)


async def test_one_after_another_use_the_same_connection(connections: Connections, remote: Remote) -> None:
    for _ in range(5):
        connection = await connections.take()
        assert await connection.fetchval("select 1") == 1
        connections.give_back(connection)
    assert len(remote.opened) == 1


async def test_there_are_never_more_than_there_may_be_and_who_waits_is_served_in_turn(connections: Connections) -> None:
    one, two = await connections.take(), await connections.take()
    assert one is not two
    served: list[int] = []

    async def customer(number: int) -> None:
        connection = await connections.take()
        served.append(number)
        connections.give_back(connection)

    waiting = [asyncio.create_task(customer(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert served == []
    connections.give_back(one)
    await asyncio.gather(*waiting)
    assert served == [0, 1, 2]
    connections.give_back(two)


async def test_one_that_was_lost_is_replaced_for_the_one_who_waits(connections: Connections, remote: Remote) -> None:
    one, two = await connections.take(), await connections.take()
    waiting = asyncio.create_task(connections.take())
    await asyncio.sleep(0)
    one.terminate()
    connections.give_back(one)
    another = await waiting
    assert another not in (one, two)
    assert len(remote.opened) == 3
    connections.give_back(another)
    connections.give_back(two)


async def test_a_connection_that_died_while_it_lay_idle_is_not_lent(connections: Connections, dsn: str) -> None:
    connection = await connections.take()
    connections.give_back(connection)
    killer = await asyncpg.connect(dsn)
    await killer.fetchval("select pg_terminate_backend($1)", connection.get_server_pid())
    await killer.close()
    await until(closed([connection], 1))
    another = await connections.take()
    assert await another.fetchval("select 1") == 1
    connections.give_back(another)


async def test_a_transaction_left_open_goes_with_its_connection(connections: Connections) -> None:
    connection = await connections.take()
    await connection.execute("begin")
    connections.give_back(connection)
    assert connection.is_closed()
    another = await connections.take()
    assert not another.is_in_transaction()
    connections.give_back(another)


async def test_who_gives_up_waiting_takes_nothing_along(connections: Connections) -> None:
    one, two = await connections.take(), await connections.take()
    impatient, patient = asyncio.create_task(connections.take()), asyncio.create_task(connections.take())
    await asyncio.sleep(0)
    connections.give_back(one)  # it is the impatient one's
    impatient.cancel()  # and that one will never know
    assert await patient is one
    connections.give_back(one)
    gone = asyncio.create_task(connections.take())
    assert await gone is one
    hopeless = asyncio.create_task(connections.take())
    await asyncio.sleep(0)
    hopeless.cancel()
    await asyncio.gather(hopeless, return_exceptions=True)
    connections.give_back(one)
    assert await connections.take() is one
    connections.give_back(one)
    connections.give_back(two)


async def test_a_server_that_is_away_leaves_room_for_the_next_to_try(connections: Connections, remote: Remote) -> None:
    one = await connections.take()
    remote.gate.clear()
    remote.error = ConnectionRefusedError()
    first, second = asyncio.create_task(connections.take()), asyncio.create_task(connections.take())
    await asyncio.sleep(0)
    remote.gate.set()
    for trying in (first, second):
        with pytest.raises(ConnectionRefusedError):
            await trying
    remote.error = None
    connections.give_back(await connections.take())
    connections.give_back(one)


async def test_what_is_not_needed_is_closed_but_for_one(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REST", 0.05)
    connections = Connections(remote.connect, size=3)
    taken = [await connections.take() for _ in range(3)]
    for connection in taken:
        connections.give_back(connection)
    await until(closed(taken, 2))
    await asyncio.sleep(0.1)
    assert sum(not connection.is_closed() for connection in taken) == 1
    await connections.close()


async def test_closing_waits_for_what_is_lent_and_refuses_who_waits(remote: Remote) -> None:
    connections = Connections(remote.connect, size=1)
    connection = await connections.take()
    waiting = asyncio.create_task(connections.take())
    await asyncio.sleep(0)
    closing = asyncio.create_task(connections.close())
    with pytest.raises(Unavailable):
        await waiting
    assert await connection.fetchval("select 1") == 1
    assert not closing.done()
    connections.give_back(connection)
    await closing
    assert connection.is_closed()
    with pytest.raises(Unavailable):
        await connections.take()


async def test_closing_does_not_wait_for_ever(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PARTING", 0.05)
    connections = Connections(remote.connect, size=1)
    connection = await connections.take()
    await connections.close()
    assert connection.is_closed()


@pytest.mark.parametrize("what", ["comes back", "is closed"])
async def test_who_is_cancelled_at_the_moment_that_a_connection_does_hears_of_that_and_of_nothing_else(
    remote: Remote, what: str
) -> None:
    connections = Connections(remote.connect, size=1)
    held = await connections.take()
    waiting = asyncio.create_task(connections.take())
    await asyncio.sleep(0)
    waiting.cancel()
    if what == "comes back":
        connections.give_back(held)
    closing = asyncio.create_task(connections.close())
    with pytest.raises(asyncio.CancelledError):
        await waiting
    connections.give_back(held)
    await closing


async def test_a_storm_of_cancellations_leaves_no_connection_behind(dsn: str) -> None:
    database = Database(dsn, "stepwell", size=3)
    await database.open()
    clients = database.for_clients()

    async def ask(number: int) -> None:
        place = clients if number % 3 else database
        if number % 2:
            await place.rows("next_due")
        else:
            async with place.transaction() as tx:
                await tx.rows("next_due")

    for _ in range(20):
        asking = [asyncio.create_task(ask(number)) for number in range(30)]
        for number in range(20):
            await asyncio.sleep(0.0005)
            asking[number * 7 % 30].cancel()
        async with asyncio.timeout(10):
            found = await asyncio.gather(*asking, return_exceptions=True)
        assert {type(each) for each in found} <= {type(None), asyncio.CancelledError}
    async with asyncio.timeout(30):
        await asyncio.gather(*(ask(number) for number in range(20)))
    await database.close()


async def test_a_share_leaves_the_rest_to_others_however_long_it_keeps_its_own(remote: Remote) -> None:
    connections = Connections(remote.connect, size=3)
    share = Share(connections, most=2)
    taken = [await share.take(), await share.take()]
    waiting = asyncio.create_task(share.take())
    async with asyncio.timeout(30):
        connections.give_back(await connections.take())
    assert not waiting.done()
    share.give_back(taken.pop())
    taken.append(await waiting)
    given_up = asyncio.create_task(share.take())
    await asyncio.sleep(0)
    given_up.cancel()
    for connection in taken:
        share.give_back(connection)
    async with asyncio.timeout(30):
        for connection in [await share.take(), await share.take()]:
            share.give_back(connection)
    await connections.close()


async def test_those_that_lay_idle_since_are_hung_up_and_no_others(remote: Remote) -> None:
    connections = Connections(remote.connect, size=3)
    old, new = await connections.take(), await connections.take()
    connections.give_back(old)
    between = asyncio.get_running_loop().time()
    await asyncio.sleep(0.01)
    connections.give_back(new)
    connections.forget_idle(between)
    assert (old.is_closed(), new.is_closed()) == (True, False)
    assert await connections.take() is new
    connections.give_back(new)
    await connections.close()


async def test_a_line_that_was_cut_before_a_transaction_could_begin_is_a_database_that_is_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = await database.connect()
    cut.terminate()

    async def take(self: object) -> Connection:
        return cut

    monkeypatch.setattr(Connections, "take", take)
    monkeypatch.setattr(Connections, "give_back", lambda self, connection: None)
    with pytest.raises(Unavailable, match="closed"):
        async with database.transaction():
            pass
