"""Starts, cancels and signals in a transaction of the user's: they happen if and only if it commits.

Nothing is retried here, and nothing waits for a database that is away: an error belongs to the transaction, and so to
the user. No code of ours runs after the commit. Notifications are therefore sent inside the transaction, and Postgres
delivers them with its commit.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar
from uuid import UUID

from stepwell.context.current import completes_in_its_own_tx
from stepwell.dispatch.base import Channel, words_of
from stepwell.engine import arrivals, ends, reads, runs, workflows
from stepwell.model.errors import KeyConflict, Unavailable, WrongUse
from stepwell.model.events import Event, EventType
from stepwell.model.ids import RunId, new_run_id
from stepwell.model.start import Start, are_debounced
from stepwell.model.turn import Consequences
from stepwell.model.word import Word
from stepwell.replay.replay import LONG_AGO
from stepwell.store.borrowed import borrow
from stepwell.store.namespace import Home
from stepwell.store.statements import load

T = TypeVar("T")

AT_ONCE = "0"
"""Seconds after which `due` should poll: at once, since the time until the commit is not known."""


class InTransaction:
    """The verbs that can be part of a transaction of the user's, on the user's connection."""

    def __init__(self, connection: Any, schema: str, home: Home) -> None:
        self._tx = borrow(connection, load(schema))
        self._schema = schema
        self._home = home

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a verb for blocking code, in the caller's thread, since the connection may belong to that thread."""
        if not self._tx.blocks:
            raise WrongUse(
                "the connection given as tx= is asynchronous, and .sync blocks: "
                "await the verb itself, or give a blocking connection"
            )
        verb = make()
        try:
            verb.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        verb.close()
        raise RuntimeError("a verb on a blocking connection waited for an event loop")

    async def start(self, start: Start) -> RunId:
        return (await self._start([start]))[0]

    async def start_many(self, starts: Iterator[Start], count: int) -> dict[RunId, RunId]:
        return await runs.once_for_each_key(list(starts), self._start)

    async def id_by_key(self, key: str) -> UUID:
        await self._require()
        return await reads.id_by_key(self._tx, key)

    async def cancel(self, run_id: UUID) -> None:
        await self._require()
        if completes_in_its_own_tx(run_id):
            raise WrongUse(
                "a run cannot cancel itself in its own current.tx(), whose commit completes it: "
                "call cancel() without tx="
            )
        moved, after = await ends.cancel(self._tx, [run_id])
        if not moved and not after.asked:
            await runs.refuse_finished(self._tx, run_id)
        after.cancelled += list(moved)
        await self._tell(words_of(after))

    async def signal(self, run_id: UUID, name: str, value: bytes) -> str:
        await self._require()
        after = Consequences()
        workflow = await arrivals.arrive(self._tx, run_id, _signal(name, value), after)
        if workflow is None:
            await arrivals.refuse_arrival(self._tx, run_id)
        await self._tell(words_of(after))
        return workflow

    async def signal_or_start(self, start: Start, name: str, value: bytes) -> RunId:
        await self._require()
        after = Consequences()
        run_id = await workflows.signal_or_start(self._tx, start, _signal(name, value), after)
        await self._tell(words_of(after))
        return run_id

    async def _require(self) -> None:
        """Raise an error unless the user's connection is in a transaction, on the app's database."""
        await self._tx.require_transaction()
        await self._home.require(self._tx)

    async def _start(self, starts: Sequence[Start]) -> list[RunId]:
        await self._require()
        if not starts:
            return []
        try:
            ids = await self._insert(starts)
        except (KeyConflict, Unavailable):
            if len(starts) > 1:
                await runs.undo_starts(self._tx, starts)
            raise
        terms = {each.terms for each in starts}
        words = [(Channel.PENDING, queue) for queue in sorted({each.queue for each in terms if not each.is_delayed})]
        if any(not each.is_plain for each in terms):
            words.append((Channel.SCHEDULED, AT_ONCE))
        await self._tell(words)
        return ids

    async def _insert(self, starts: Sequence[Start]) -> list[RunId]:
        if are_debounced(starts):
            return [await runs.debounce(self._tx, each) for each in starts]
        return await runs.start_all(self._tx, starts)

    async def _tell(self, words: Sequence[tuple[Channel, str]]) -> None:
        await runs.tell_with_commit(self._tx, [Word(f"{self._schema}_{channel}", text) for channel, text in words])


def _signal(name: str, value: bytes) -> Event:
    return Event(0, EventType.SIGNAL_RECEIVED, LONG_AGO, name=name, value=value, id=new_run_id())
