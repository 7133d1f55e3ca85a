"""Dispatch on Postgres: wakes by LISTEN and NOTIFY, claims by SQL.

NOTIFY takes a lock that serialises the commits of all sessions that notify. A transaction that does work therefore
does not notify, except for one at a time (`word`). Announcements gather while the last one is on its way. They leave
on one connection of their own, after the commit they tell of, and without waiting for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

import asyncpg

from stepwell.dispatch.base import Channel, Hear
from stepwell.dispatch.pacing import GATHER, Pacing
from stepwell.engine import ends, runs
from stepwell.engine.ends import ClaimEnd
from stepwell.model.errors import Unavailable
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim, Claimant, Claimed, Exchanged, Look, Order, Wanted
from stepwell.model.states import State
from stepwell.model.turn import Consequences
from stepwell.model.word import Word
from stepwell.store.pool import Database, Row, reaching
from stepwell.telemetry import log

PING = 10.0
"""Seconds between two checks that the connection still receives."""
FAREWELL = 2.0
_PAYLOAD = 7_000
"""Postgres refuses a payload of 8,000 bytes."""
_WORD = 1_000
"""The most bytes that a statement publishes with its commit."""
_SEPARATOR = "\n"
_TAKES_WRITES = "select current_setting('transaction_read_only')::bool as is_read_only"
_PING = _SEPARATOR
"""A payload that no name of a run or queue can be."""


class PostgresClaims:
    """Claims by SQL: the table of runs decides."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, who: Claimant, look: Look) -> Claimed:
        wanted = Wanted(who.worker, who.queues, who.names, look.limit, look.alone)
        if look.queue is not None:
            return await runs.claim_from(self._database, look.queue, wanted, look.claim_id)
        if look.limited:
            return await runs.claim_limited(self._database, wanted, look.claim_id)
        return await runs.claim(self._database, wanted, look.claim_id)

    async def exchange(
        self, who: Claimant, completed: Sequence[tuple[Claim, Completed]], order: Order, *, word: Word | None
    ) -> Exchanged:
        if order.places:
            return await runs.exchange(
                self._database, completed, order, worker=who.worker, names=who.names, word=word
            )  # fmt: skip
        endings = [ClaimEnd(claim, State.COMPLETED, outcome.result) for claim, outcome in completed]
        ended = await ends.end(self._database, endings, Consequences(), word=word)
        return Exchanged([], {claim.id for claim, _ in completed} - ended.moved, ended.said)


class PostgresWakes:
    """Wakes by LISTEN and NOTIFY, on one connection of their own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._names = {channel: f"{database.schema}_{channel}" for channel in Channel}
        self._channels = {name: channel for channel, name in self._names.items()}
        self._hears: dict[Channel, list[Hear]] = {channel: [] for channel in Channel}
        self._outbox: dict[Channel, dict[str, None]] = {}
        self._stirred = asyncio.Event()
        self._ponged = asyncio.Event()
        self._wire: asyncio.Task[None] | None = None
        self._listening: set[Channel] = set()
        self._closing = False
        self._sends = Pacing()
        self._words = {channel: Pacing() for channel in Channel}

    @property
    def hears(self) -> bool:
        return bool(self._listening)

    def announce(self, channel: Channel, what: Iterable[str]) -> None:
        told = dict.fromkeys(what)
        if told:
            self._outbox.setdefault(channel, {}).update(told)
            self._stir()

    def word(self, channel: Channel, what: Sequence[str]) -> Word | None:
        """Return a word while few are published: in a burst, announcements gather."""
        text = _SEPARATOR.join(what)
        if not text or len(text) > _WORD or self._outbox or not self._words[channel].may_leave_at_once():
            return None
        return Word(self._names[channel], text)

    def answered(self, channel: Channel) -> None:
        self._words[channel].answered()

    def subscribe(self, channel: Channel, hear: Hear) -> Callable[[], None]:
        self._hears[channel].append(hear)
        if channel in self._listening:
            # Announcements before this subscription are lost: have the subscriber look once.
            asyncio.get_running_loop().call_soon(hear, None)
        self._stir()
        return lambda: self._hears[channel].remove(hear)

    async def close(self) -> None:
        """Publish what is left, for a short time: announcements are only hints."""
        self._closing = True
        self._stirred.set()
        if self._wire is not None:
            await asyncio.wait({self._wire}, timeout=FAREWELL)
            self._wire.cancel()
            await asyncio.gather(self._wire, return_exceptions=True)

    def _stir(self) -> None:
        self._stirred.set()
        if (self._wire is None or self._wire.done()) and not self._closing:
            self._wire = asyncio.create_task(self._run(), name="stepwell.wire")

    async def _run(self) -> None:
        """Keep the connection while there are announcements to publish or subscribers."""
        pause = 0.1
        while not self._closing or self._outbox:
            try:
                connection = await self._database.connect(synchronous_commit="off")
                pause = 0.1
                try:
                    with reaching():
                        await self._serve(connection)
                finally:
                    self._listening.clear()
                    connection.terminate()
                return
            except (Unavailable, asyncpg.PostgresError) as error:
                # Also when Postgres refuses to notify, since its queue is full: hints may be lost, the connection not.
                log.debug("the connection for announcements is lost: %s", error)
                if self._closing:
                    return
                self._outbox.clear()
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)

    async def _serve(self, connection: asyncpg.Connection[Row]) -> None:
        connection.add_termination_listener(lambda _connection: self._stirred.set())
        now = asyncio.get_running_loop().time
        next_ping = now() + PING
        while not (self._closing and not self._outbox):
            self._stirred.clear()
            await self._listen(connection)
            if self._outbox:
                await self._send(connection)
                if not self._sends.may_leave_at_once():
                    await asyncio.sleep(GATHER)
                continue
            try:
                async with asyncio.timeout_at(next_ping):
                    await self._stirred.wait()
            except TimeoutError:
                await self._ping(connection)
                next_ping = now() + PING
            if connection.is_closed():
                raise Unavailable("the listening connection was lost")

    async def _listen(self, connection: asyncpg.Connection[Row]) -> None:
        if self._database.is_pooled:
            return  # behind a pooler the listening session would be another client's: subscribers poll
        for channel, hears in self._hears.items():
            if hears and channel not in self._listening:
                await connection.add_listener(self._names[channel], self._heard)
                self._listening.add(channel)
                # Announcements before LISTEN are lost: have the subscribers look once.
                for hear in list(hears):
                    hear(None)

    async def _send(self, connection: asyncpg.Connection[Row]) -> None:
        outbox, self._outbox = self._outbox, {}
        letters = [(self._names[channel], text) for channel, whats in outbox.items() for text in _letters(whats)]
        await self._wake(connection, letters)

    async def _ping(self, connection: asyncpg.Connection[Row]) -> None:
        """Send a message to ourselves and wait for it: a pooler or a half-open socket may accept messages and never
        deliver them.

        A server that takes no writes is no longer the primary. Messages to the new primary do not arrive there.
        """
        self._ponged.clear()
        async with asyncio.timeout(5):
            if (await connection.fetch(_TAKES_WRITES))[0]["is_read_only"]:
                raise Unavailable("the server takes no writes any more")
            if not self._listening:
                return
            await self._wake(connection, [(self._names[next(iter(self._listening))], _PING)])
            await self._ponged.wait()

    async def _wake(self, connection: asyncpg.Connection[Row], letters: list[tuple[str, str]]) -> None:
        statement = self._database.statements["wake"]
        channels, payloads = [name for name, _ in letters], [text for _, text in letters]
        await connection.fetch(statement.sql, *statement.bind({"channels": channels, "payloads": payloads}))

    def _heard(self, _connection: object, _pid: int, name: str, payload: object) -> None:
        if payload == _PING:
            self._ponged.set()
            return
        what = str(payload).split(_SEPARATOR)
        for hear in list(self._hears[self._channels[name]]):
            hear(what)


def _letters(whats: Iterable[str]) -> list[str]:
    """Pack the words into as few payloads as possible."""
    letters: list[list[str]] = [[]]
    size = 0
    for what in whats:
        needs = (len(what) if what.isascii() else len(what.encode())) + 1
        if size and size + needs > _PAYLOAD:
            letters.append([])
            size = 0
        letters[-1].append(what)
        size += needs
    return [_SEPARATOR.join(each) for each in letters]
