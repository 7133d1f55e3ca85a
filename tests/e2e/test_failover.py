"""A primary is lost, or steps down, and its standby is promoted: work goes on there, and nothing accepted is lost."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import pytest
from e2e_processes import eventually
from two_servers import TwoServers, free_port, two_servers

from stepwell import App, Unavailable, current
from stepwell.store import address
from stepwell.store.pool import Database
from tests.waiting_for import until


@pytest.fixture
def pair() -> Iterator[TwoServers]:
    with two_servers() as pair:
        yield pair


class Starting:
    """Starts runs one after the other, for as long as it is not told to stop, and keeps those that were accepted."""

    def __init__(self, app: App) -> None:
        @app.task
        async def double(n: int) -> int:
            return 2 * n

        @app.task
        async def noted(n: int) -> int:
            async with current.tx() as tx:
                await tx.execute("insert into noted values ($1)", n)
            return n

        self.double, self.noted = double, noted
        self.accepted: dict[int, Any] = {}
        self._stopped = False

    async def __aenter__(self) -> Starting:
        self._task = asyncio.create_task(self._start())
        return self

    async def _start(self) -> None:
        n = 0
        while not self._stopped:
            with suppress(Unavailable):
                # With a key: what was accepted without an answer is found again.
                self.accepted[n] = await self.double.options(key=f"k{n}").start(n)
                n += 1
            await asyncio.sleep(0.005)

    async def more(self) -> None:
        """Until ten more were accepted."""
        wanted = len(self.accepted) + 10

        async def there() -> bool:
            return len(self.accepted) >= wanted

        await eventually(there, within=40)

    async def __aexit__(self, *_error: object) -> None:
        self._stopped = True
        await self._task


async def test_runs_go_on_after_a_standby_is_promoted_and_nothing_accepted_is_lost(pair: TwoServers) -> None:
    app = App(pair.dsn, lease=5)
    starting = Starting(app)
    async with app, app.worker():
        async with starting:
            await starting.more()
            await asyncio.to_thread(pair.first.kill)
            await asyncio.to_thread(pair.second.promote)
            await starting.more()
        for n, run in starting.accepted.items():
            assert await run.result(timeout=40) == 2 * n


async def test_what_is_connected_to_a_primary_that_stepped_down_goes_to_the_new_one(pair: TwoServers) -> None:
    app = App(pair.dsn, lease=5)
    starting = Starting(app)
    async with app, app.worker():
        async with starting:
            await starting.more()
            await asyncio.to_thread(pair.first.refuse_writes)
            await asyncio.to_thread(pair.second.promote)
            await starting.more()
        for n, run in starting.accepted.items():
            assert await run.result(timeout=40) == 2 * n
        await nobody_is_left_at(pair.first.port)


async def nobody_is_left_at(port: int) -> None:
    """None of our sessions. The one that listens leaves after its next ping."""
    old = await asyncpg.connect(f"postgresql://app@127.0.0.1:{port}/postgres")

    async def nobody() -> bool:
        return bool(await old.fetchval("select count(*) = 0 from pg_stat_activity where application_name = 'stepwell'"))

    await until(nobody, within=30)
    await old.close()


async def test_a_body_that_writes_itself_goes_on_after_the_primary_stepped_down(pair: TwoServers) -> None:
    app = App(pair.dsn, lease=5)
    starting = Starting(app)
    async with app, app.worker():
        async with app._opening.database.transaction() as tx:
            await tx.connection.fetch("create table noted (n int primary key)")
        assert await (await starting.noted.start(1)).result(timeout=30) == 1
        await asyncio.to_thread(pair.first.refuse_writes)
        await asyncio.to_thread(pair.second.promote)
        assert await (await starting.noted.start(2)).result(timeout=40) == 2


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a machine that is gone: connections to it are neither taken nor refused."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = int(listening.getsockname()[1])
        knocks = []
        for _ in range(3):  # its queue is full, so that the kernel leaves what comes then without an answer
            knock = socket.socket()
            knock.setblocking(False)
            with suppress(BlockingIOError):
                knock.connect(("127.0.0.1", port))
            knocks.append(knock)
        yield port
        for knock in knocks:
            knock.close()


@pytest.fixture
async def relay(dsn: str) -> AsyncIterator[int]:
    """A port that leads to the test's own server."""
    read = address.read_dsn(dsn)
    (server,) = read.servers
    path = f"{server.host}/.s.PGSQL.{server.port}"

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65_536):
                target.write(data)
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as serving:
        yield serving.sockets[0].getsockname()[1]


async def test_a_machine_that_is_gone_does_not_keep_the_others_from_being_asked(
    dsn: str, relay: int, silent: int
) -> None:
    name = address.read_dsn(dsn).database
    database = Database(
        f"postgresql://stepwell@127.0.0.1:{silent},127.0.0.1:{free_port()},127.0.0.1:{relay}/{name}", "stepwell"
    )
    async with asyncio.timeout(address.REACH / 2):
        await database.open()
        assert await database.rows("led_services") == []
    await database.close()


async def test_every_server_is_named_with_what_is_wrong_with_it(silent: int) -> None:
    one, other = free_port(), free_port()
    with pytest.raises(Unavailable) as raised:
        await Database(f"postgresql://x@127.0.0.1:{one},127.0.0.1:{other}/x", "stepwell").open()
    assert f"127.0.0.1:{one}: " in raised.value.reason
    assert f"127.0.0.1:{other}: " in raised.value.reason
