"""Words of outcomes go ahead of them: whoever hears one, and looks too soon, looks again."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from stepwell import App
from stepwell.engine import lone, reads
from stepwell.model.outcome import Completed
from stepwell.model.run import Claim
from stepwell.store.pool import Database
from stepwell.waiting import Waiting
from tests.factory import claimed
from tests.waiting_for import until

SOON = 20.0


@pytest.fixture(autouse=True)
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.waiting.POLL", 600.0)
    monkeypatch.setattr("stepwell.waiting.SPREADING", (0.001, 600.0))


@pytest.fixture
async def waiting(app: App) -> Waiting:
    """Of which everyone knows that it waits."""
    waiting = app._opening.client._waiting
    waiting._begin()

    async def spread() -> bool:
        return waiting._is_known

    await until(spread)
    return waiting


async def a_claim(database: Database) -> Claim:
    async with database.transaction() as tx:
        return await claimed(tx)


class Late:
    """A run that completes, and nobody says so, once someone has looked for it in vain."""

    def __init__(self, database: Database, claim: Claim) -> None:
        self._database = database
        self._claim = claim
        self.looks = 0
        self._done = False

    def watch(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        look: Any = getattr(reads, name)

        async def looking(tx: Any, which: Any, **how: Any) -> Any:
            found = await look(tx, which, **how)
            if self._claim.id in (which if isinstance(which, list) else [which]):
                self.looks += 1
                await self._complete()
            return found

        monkeypatch.setattr(reads, name, looking)

    async def _complete(self) -> None:
        if not self._done:
            self._done = True
            await lone.complete(self._database, [(self._claim, Completed(b"1"))])


async def result_of(waiting: Waiting, run_id: UUID) -> bytes | None:
    async with asyncio.timeout(SOON):
        return (await waiting.wait(run_id)).result


@pytest.mark.parametrize("heard", ["before anyone waits", "while one waits", "while many wait"])
async def test_a_run_that_was_announced_ahead_is_looked_for_again(
    database: Database, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, heard: str
) -> None:
    claim = await a_claim(database)
    late = Late(database, claim)
    late.watch(monkeypatch, "awaited")
    waiting.started([claim.id])
    if heard == "before anyone waits":
        waiting._heard_finished([claim.id.hex])
    results = [asyncio.create_task(result_of(waiting, claim.id)) for _ in range(20 if "many" in heard else 1)]
    await asyncio.sleep(0)
    if heard != "before anyone waits":
        waiting._heard_finished([claim.id.hex])
    assert await asyncio.gather(*results) == [b"1"] * len(results)
    assert late.looks <= 4, "one looks for all"


async def test_if_the_one_who_looks_is_kept_from_it_another_looks(
    database: Database, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = await a_claim(database)
    look, looking = reads.awaited, asyncio.Event()

    async def awaited(tx: Any, run_id: UUID) -> Any:
        if not looking.is_set():
            looking.set()
            await asyncio.Event().wait()
        return await look(tx, run_id)

    monkeypatch.setattr(reads, "awaited", awaited)
    results = []
    for _ in range(2):
        waiting.started([claim.id])
        results.append(asyncio.create_task(result_of(waiting, claim.id)))
        await asyncio.sleep(0)
    waiting._heard_finished([claim.id.hex])
    await looking.wait()
    await lone.complete(database, [(claim, Completed(b"1"))])
    (kept,) = [each for each in results if _looks(each)]
    kept.cancel()
    (other,) = [each for each in results if each is not kept]
    assert await other == b"1"


async def test_if_the_one_who_is_to_look_gives_up_at_that_moment_another_looks(
    database: Database, waiting: Waiting
) -> None:
    claim = await a_claim(database)
    results = []
    for _ in range(2):
        waiting.started([claim.id])
        results.append(asyncio.create_task(result_of(waiting, claim.id)))
        await asyncio.sleep(0)
    await lone.complete(database, [(claim, Completed(b"1"))])
    futures = waiting._futures[claim.id]
    waiting._heard_finished([claim.id.hex])
    (chosen,) = [future for future in futures if future.done()]
    (kept,) = [each for each in results if _awaits(each) is chosen]
    kept.cancel()
    (other,) = [each for each in results if each is not kept]
    assert await other == b"1"
    assert kept.cancelled()


def _awaits(task: Any) -> Any:
    return task._fut_waiter


def _looks(task: asyncio.Task[Any]) -> bool:
    """Whether it is looking, and does not wait to be told."""
    coroutine: Any = task.get_coro()
    names = []
    while coroutine is not None:
        names.append(getattr(coroutine, "__name__", ""))
        coroutine = getattr(coroutine, "cr_await", None)
    return "_look_for" in names


async def test_who_begins_to_wait_right_after_the_word_looks_once_more(
    app: App, database: Database, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waited when it was said, and the outcome was on its way when the first look was made."""
    claim = await a_claim(database)
    late = Late(database, claim)
    late.watch(monkeypatch, "finished")
    assert await result_of(waiting, claim.id) == b"1"


async def test_who_begins_to_wait_while_others_are_looked_at_has_a_look_to_itself(
    app: App, database: Database, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[list[UUID]] = []
    look = reads.finished

    async def finished(tx: Any, ids: Any, *, recent: bool = False) -> Any:
        if recent:
            looked.append(list(ids))
        return await look(tx, ids, recent=recent)

    monkeypatch.setattr(reads, "finished", finished)
    claims = [await a_claim(database) for _ in range(2)]
    results = [asyncio.create_task(result_of(waiting, claim.id)) for claim in claims]

    async def twice() -> bool:
        return sum(claims[1].id in ids for ids in looked) >= 2

    await until(twice)
    for claim in claims:
        await lone.complete(database, [(claim, Completed(b"1"))])
        waiting._heard_finished([claim.id.hex])
    await asyncio.gather(*results)
