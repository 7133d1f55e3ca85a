"""Starts and cancels in a transaction of the user's: they happen if and only if it commits.

Nothing is repeated here, and nothing waits for a database that is away: a failure is the transaction's, and so the
user's. Nobody is there after the commit, so what others must hear is said in the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar
from uuid import UUID

from stepwell.dispatch.base import Channel
from stepwell.engine import reads, runs
from stepwell.model.errors import InvalidSetting, KeyConflict, WrongUse
from stepwell.model.ids import RunId
from stepwell.model.start import Start, first_by_key
from stepwell.model.word import Word
from stepwell.store.borrowed import borrow
from stepwell.store.statements import load

T = TypeVar("T")

MOST = 5_000
"""Runs of one statement."""
AT_ONCE = "0"
"""How soon someone should look for what is due: the time until the commit is not known."""


class Within:
    def __init__(self, connection: Any, schema: str) -> None:
        self._tx = borrow(connection, load(schema))
        self._schema = schema

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """For blocking code: the verb, here and in this thread, since the connection may belong to it."""
        if not self._tx.blocks:
            raise WrongUse(
                "tx= is a connection for an event loop: await the verb itself there, or give a blocking connection"
            )
        verb = make()
        try:
            verb.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result
        verb.close()
        raise RuntimeError("a blocking connection made its caller wait for an event loop")

    async def start(self, start: Start) -> RunId:
        return (await self._start([start]))[0]

    async def start_many(self, starts: Iterator[Start], count: int) -> list[tuple[Start, RunId]]:
        made = list(starts)
        first = first_by_key(made)
        unique = [each for each in made if each.key is None or first[each.key] is each]
        ids = dict(zip((each.id for each in unique), await self._start(unique), strict=True))
        return [(each, ids[each.id if each.key is None else first[each.key].id]) for each in made]

    async def id_by_key(self, key: str) -> UUID:
        return await reads.id_by_key(self._tx, key)

    async def cancel(self, run_id: UUID) -> None:
        await self._tx.require_transaction()
        if not await runs.cancel(self._tx, [run_id]):
            await runs.refuse_finished(self._tx, run_id)
        await self._tell([(Channel.CANCELLED, run_id.hex), (Channel.FINISHED, run_id.hex)])

    async def _start(self, starts: Sequence[Start]) -> list[RunId]:
        await self._tx.require_transaction()
        if not starts:
            return []
        try:
            ids = await self._insert(starts)
        except KeyConflict:
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
        debounced = [each.debounce_key is not None for each in starts]
        if all(debounced):
            return [await runs.debounce(self._tx, each) for each in starts]
        if any(debounced):
            raise InvalidSetting("start_many", "debounce", "what is debounced is started apart from what is not")
        ids: list[RunId] = []
        for first in range(0, len(starts), MOST):
            ids += await runs.start(self._tx, starts[first : first + MOST])
        return ids

    async def _tell(self, words: Sequence[tuple[Channel, str]]) -> None:
        await runs.tell_with_commit(self._tx, [Word(f"{self._schema}_{channel}", text) for channel, text in words])
