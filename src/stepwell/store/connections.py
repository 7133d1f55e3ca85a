"""The connection pool: open connections, borrowed and given back.

The driver's own pool takes a connection back through a task and a turn of the event loop, after every statement and
before its answer is returned. Our sessions leave nothing behind to be reset, so here it costs two operations on a
deque.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import asyncpg

from stepwell.model.errors import Unavailable

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

REST = 60.0
"""Seconds after which an idle connection is closed, if there are others."""
PARTING = 5.0
"""Seconds to wait for connections at the end, before they are terminated."""


class Connections:
    """A pool of up to `size` connections."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]], *, size: int) -> None:
        self._connect = connect
        self._size = size
        self._idle: deque[tuple[float, Connection]] = deque()
        """Idle connections, each with the time since when. The one used last is taken first, so that the others can be
        closed."""
        self._lent: set[Connection] = set()
        self._opening = 0
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._sweep: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._all_back = asyncio.Event()

    async def open(self) -> None:
        """Open the first connection, so that the first statement does not wait for it."""
        self.give_back(await self.take())

    async def take(self) -> Connection:
        """Borrow a connection. Nobody else uses it until it is given back."""
        while True:
            if self._closed:
                raise Unavailable("the connection pool is closed")
            while self._idle:
                _, connection = self._idle.pop()
                if not connection.is_closed():
                    self._lent.add(connection)
                    return connection
            if len(self._lent) + self._opening < self._size:
                return await self._open_one()
            if (passed_on := await self._next()) is not None:
                return passed_on

    async def _open_one(self) -> Connection:
        self._opening += 1
        try:
            connection = await self._connect()
            self._lent.add(connection)
            return connection
        finally:
            self._opening -= 1
            if self._opening + len(self._lent) < self._size:
                self._wake_next(None)

    async def _next(self) -> Connection | None:
        """Wait for the next connection that is given back; None if it was lost, so that there is room for another."""
        waiting: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiting)
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                self._pass_on(waiting.result())
            elif waiting in self._waiting:  # unless a give_back removed it already
                self._waiting.remove(waiting)
            raise

    def give_back(self, connection: Connection) -> None:
        """Return a borrowed connection, in any state. It is terminated if it is still in a transaction."""
        self._lent.discard(connection)
        if not connection.is_closed() and (self._closed or connection.is_in_transaction()):
            connection.terminate()
        self._pass_on(None if connection.is_closed() else connection)
        if self._closed and not self._lent:
            self._all_back.set()

    def _pass_on(self, connection: Connection | None) -> None:
        """Give a connection to the next waiter, or keep it idle."""
        if self._wake_next(connection) or connection is None:
            return
        self._lent.discard(connection)
        self._idle.append((asyncio.get_running_loop().time(), connection))
        if self._sweep is None and len(self._idle) > 1:
            self._sweep = asyncio.get_running_loop().call_later(REST, self._close_idle)

    def _wake_next(self, connection: Connection | None) -> bool:
        """Wake the next waiter. Return False if there is none."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if not waiting.done():
                if connection is not None:
                    self._lent.add(connection)
                waiting.set_result(connection)
                return True
        return False

    def _close_idle(self) -> None:
        """Close connections that were idle for `REST` seconds."""
        self._sweep = None
        now = asyncio.get_running_loop().time()
        while len(self._idle) > 1 and self._idle[0][0] <= now - REST:
            self._close_later(self._idle.popleft()[1])
        if len(self._idle) > 1:
            self._sweep = asyncio.get_running_loop().call_later(self._idle[0][0] + REST - now, self._close_idle)

    def forget_idle(self, since: float) -> None:
        """Terminate connections that have been idle since then: what broke one connection may have broken them all."""
        while self._idle and self._idle[0][0] <= since:
            self._idle.popleft()[1].terminate()

    def _close_later(self, connection: Connection) -> None:
        closing = asyncio.create_task(_close(connection), name="stepwell.closing")
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close the pool. Wait for borrowed connections, but not for long."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()
        while self._idle:
            self._close_later(self._idle.pop()[1])
        try:
            async with asyncio.timeout(PARTING):
                if self._lent:
                    await self._all_back.wait()
                if self._closing:
                    await asyncio.wait(self._closing)
        except TimeoutError:
            pass
        for connection in self._lent:
            connection.terminate()


class Share:
    """A view of a pool that borrows at most `most` connections, so that the rest stay free for others however long
    these are kept."""

    def __init__(self, connections: Connections, *, most: int) -> None:
        self._connections = connections
        self._room = asyncio.Semaphore(most)
        self.forget_idle = connections.forget_idle
        self.close = connections.close

    async def take(self) -> Connection:
        await self._room.acquire()
        try:
            return await self._connections.take()
        except BaseException:
            self._room.release()
            raise

    def give_back(self, connection: Connection) -> None:
        self._connections.give_back(connection)
        self._room.release()


async def _close(connection: Connection) -> None:
    try:
        await connection.close(timeout=1)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
