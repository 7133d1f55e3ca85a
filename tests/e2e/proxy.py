"""A proxy in front of Postgres that understands just enough of its protocol to be cruel at a chosen moment.

pass       bytes go through
refuse     new connections are closed at once
reset      every connection is cut, now
half-open  sockets stay, bytes do not move: for everyone, or for those who speak a certain statement
delay      what the client says takes a while to arrive
swallow    a statement reaches the server and is carried out, and its answer never comes back
cancel     a statement is cancelled by the server before it is carried out, as `pg_cancel_backend` would
detain     a statement is kept while its client is cut off, and reaches the server much later
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from stepwell.store.borrowed.asyncpg import AsyncpgConnection
from stepwell.store.borrowed.base import spoken
from stepwell.store.statements import load

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
NAMES = {
    text: name
    for name, statement in load("stepwell").items()
    for text in (statement.sql, spoken(statement.sql, AsyncpgConnection.place).sql)
}
"""Statements of the engine, by their text as the driver sends it on our connections and on a body's."""
FRAMES = ("begin", "commit", "rollback", "copy")
"""What the driver says by its text alone."""
CANCEL_ITSELF = b"do $$ begin loop perform pg_cancel_backend(pg_backend_pid()); end loop; end $$\0"
"""Said in place of a statement: the server cancels it, and knows of no other."""


@dataclass
class Swallow:
    """An answer that shall be lost: of a statement itself, or of the COMMIT that follows it."""

    statement: str
    at_commit: bool
    left: int
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Detained:
    """A statement that arrives when everyone has forgotten it."""

    statement: str
    messages: list[bytes] = field(default_factory=list)
    server: Writer | None = None

    def deliver(self) -> None:
        assert self.server is not None
        self.server.write(b"".join(self.messages))


@dataclass
class Cancels:
    """Statements that shall be cancelled: each once, the next time that anybody speaks it."""

    left: set[str]
    done: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Wire:
    """One connection through the proxy."""

    client: Writer
    server: Writer
    prepared: dict[bytes, str] = field(default_factory=dict)
    spoken: set[str] = field(default_factory=set)
    """The engine's statements that it has carried."""
    lost: Swallow | None = None
    frozen: bool = False
    detained: Detained | None = None
    cancelling: bool = False

    def cut(self) -> None:
        for end in (self.client, self.server):
            end.transport.abort()


class Proxy:
    def __init__(self, dsn: str, place: Path) -> None:
        self._dsn = dsn
        self._place = place
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._freezes: Callable[[str], bool] | None = None
        self._swallows: list[Swallow] = []
        self._detains: list[Detained] = []
        self._cancels: list[Cancels] = []
        self.wires: set[Wire] = set()
        self.refusing = False
        self.delay = 0.0

    @property
    def dsn(self) -> str:
        parts = urlsplit(self._dsn)
        return f"postgresql://{parts.username or ''}@/{parts.path.lstrip('/')}?host={quote(str(self._place))}&port=5432"

    # -- cruelties

    def swallow(self, statement: str, *, at_commit: bool = False, times: int = 1) -> Swallow:
        """Lose the answers to the next `times` of this statement, whoever speaks it."""
        swallow = Swallow(statement, at_commit, times)
        self._swallows.append(swallow)
        return swallow

    def cancel(self, *statements: str) -> Cancels:
        """Cancel the next of each of these: a statement of the engine, or one of FRAMES."""
        self._cancels.append(Cancels(set(statements)))
        return self._cancels[-1]

    def detain(self, statement: str) -> Detained:
        """Keep the next of this statement until it is delivered, and cut off who spoke it."""
        self._detains.append(Detained(statement))
        return self._detains[-1]

    def freeze(self, statements: Callable[[str], bool] = lambda _name: True) -> None:
        """Half-open, from the next word on: of those who speak such a statement."""
        self._freezes = statements

    def freeze_everything(self) -> None:
        """Half-open, at once and for newcomers too."""
        self.freeze()
        for wire in self.wires:
            wire.frozen = True

    def reset(self) -> None:
        for wire in list(self.wires):
            wire.cut()

    def heal(self) -> None:
        """Newcomers pass. What is half-open stays so: nobody ever hears of it again."""
        self._freezes, self.refusing, self.delay = None, False, 0.0
        self._swallows.clear()
        self._cancels.clear()

    # -- bytes

    async def open(self) -> None:
        self._place.mkdir(parents=True, exist_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, str(self._place / ".s.PGSQL.5432"))

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: Reader, writer: Writer) -> None:
        if self.refusing:
            writer.transport.abort()
            return
        try:
            from_server, to_server = await self._upstream()
        except OSError:
            writer.transport.abort()
            return
        wire = Wire(writer, to_server, frozen=self._freezes is not None and self._freezes("connect"))
        self.wires.add(wire)
        both = [
            asyncio.create_task(self._from_client(wire, reader)),
            asyncio.create_task(self._from_server(wire, from_server)),
        ]
        self._tasks.update(both)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wire.cut()
            self.wires.discard(wire)
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            self._tasks.difference_update(both)

    async def _upstream(self) -> tuple[Reader, Writer]:
        parts = urlsplit(self._dsn)
        asked = parse_qs(parts.query)
        host = asked["host"][0] if "host" in asked else parts.hostname or "localhost"
        port = int(asked["port"][0] if "port" in asked else parts.port or 5432)
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _from_client(self, wire: Wire, reader: Reader) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            (size,) = struct.unpack("!i", head := await reader.readexactly(4))
            wire.server.write(head + await reader.readexactly(size - 4))
            while True:
                head = await reader.readexactly(5)
                kind, size = struct.unpack("!ci", head)
                body = await reader.readexactly(size - 4)
                self._listen(wire, kind, body)
                if wire.cancelling:
                    if kind in b"QS":
                        wire.cancelling = False
                        self._later(wire.server.write, b"Q" + struct.pack("!i", len(CANCEL_ITSELF) + 4) + CANCEL_ITSELF)
                    continue
                if wire.detained is not None:
                    wire.detained.messages.append(head + body)
                    if kind == b"S":
                        wire.client.transport.abort()
                        await asyncio.Event().wait()
                    continue
                if not wire.frozen and not wire.server.is_closing():
                    self._later(wire.server.write, head + body)

    def _later(self, write: Callable[[bytes], None], data: bytes) -> None:
        # In order, since all of them wait equally long.
        if self.delay:
            asyncio.get_running_loop().call_later(self.delay, write, data)
        else:
            write(data)

    def _listen(self, wire: Wire, kind: bytes, body: bytes) -> None:
        if kind == b"Q" and (frame := next((each for each in FRAMES if body.lower().startswith(each.encode())), None)):
            self._cancel(wire, frame)
        match kind:
            case b"P":
                name, text = body.split(b"\0", 2)[:2]
                wire.prepared[name] = NAMES.get(text.decode(), "")
            case b"B":
                self._spoken(wire, wire.prepared.get(body.split(b"\0", 2)[1], ""))
            case b"Q" if body.upper().startswith(b"COMMIT"):
                for swallow in self._swallows:
                    if swallow.at_commit and swallow.left and swallow.statement in wire.spoken:
                        self._lose(wire, swallow)
            case b"Q" if body.upper().startswith(b"COPY"):
                wire.spoken.add("copy")
            case b"Q" if body.upper().startswith(b"BEGIN"):
                wire.spoken.clear()
            case _:
                pass

    def _spoken(self, wire: Wire, name: str) -> None:
        if not name:
            return
        wire.spoken.add(name)
        self._cancel(wire, name)
        if self._freezes is not None and self._freezes(name):
            wire.frozen = True
        for detained in self._detains:
            if detained.statement == name and detained.server is None:
                wire.detained, detained.server = detained, wire.server
        for swallow in self._swallows:
            if swallow.statement == name and swallow.left and not swallow.at_commit:
                self._lose(wire, swallow)

    def _cancel(self, wire: Wire, name: str) -> None:
        for cancels in self._cancels:
            if name in cancels.left:
                cancels.left.discard(name)
                cancels.done.append(name)
                wire.cancelling = True

    def _lose(self, wire: Wire, swallow: Swallow) -> None:
        swallow.left -= 1
        wire.lost = swallow

    async def _from_server(self, wire: Wire, reader: Reader) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(5)
                kind, size = struct.unpack("!ci", head)
                body = await reader.readexactly(size - 4)
                if wire.lost is not None:
                    # Ready for the next: this one is carried out, and committed if it stood alone.
                    if kind == b"Z":
                        if not wire.lost.left:
                            wire.lost.done.set()
                        return
                elif not wire.frozen:
                    wire.client.write(head + body)


@asynccontextmanager
async def proxied(dsn: str, place: Path) -> AsyncIterator[Proxy]:
    between = Proxy(dsn, place)
    await between.open()
    try:
        yield between
    finally:
        await between.close()
