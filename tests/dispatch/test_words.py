"""A word that goes with a commit is heard with it; whoever may not say it announces it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeAlias

import asyncpg
import pytest

from stepwell import App
from stepwell.dispatch.base import Channel
from stepwell.dispatch.pacing import BURST
from stepwell.dispatch.postgres import PostgresWakes
from stepwell.engine import runs
from stepwell.model.word import Word
from stepwell.store.pool import Database
from tests.factory import a_start
from tests.waiting_for import until

Sql: TypeAlias = "asyncpg.Connection[Any]"
WORD = Word("stepwell_pending", "letters")


class Ear:
    def __init__(self, connection: Sql) -> None:
        self._connection = connection
        self._heard: list[object] = []

    async def listen(self) -> None:
        await self._connection.add_listener(WORD.channel, lambda *said: self._heard.append(said[-1]))

    async def heard(self) -> list[object]:
        """All until now: notifications arrive before the answer to a later question."""
        await self._connection.execute("select 1")
        return self._heard


@pytest.fixture
async def ear(dsn: str) -> AsyncIterator[Ear]:
    connection = await asyncpg.connect(dsn)
    ear = Ear(connection)
    await ear.listen()
    yield ear
    await connection.close()


async def test_a_word_is_heard_with_the_commit_of_its_start_and_not_before(database: Database, ear: Ear) -> None:
    async with database.transaction() as tx:
        assert await runs.start_one(tx, a_start(), WORD)
        assert await ear.heard() == []
    assert await ear.heard() == [WORD.text]


async def test_a_word_is_not_heard_when_nothing_came_of_its_start(database: Database, ear: Ear) -> None:
    start = a_start()
    await runs.start_one(database, start)
    assert not await runs.start_one(database, start, WORD), "the run is there already"
    with pytest.raises(ZeroDivisionError):
        async with database.transaction() as tx:
            await runs.start_one(tx, a_start(), WORD)
            raise ZeroDivisionError
    assert await ear.heard() == []


async def test_while_one_says_a_word_no_other_waits_for_it(database: Database, ear: Ear) -> None:
    """The commits of all who NOTIFY wait for each other: so only one of ours does at a time."""
    async with database.transaction() as tx:
        assert await runs.start_one(tx, a_start(), WORD)
        async with asyncio.timeout(30):
            assert not await runs.start_one(database, a_start(), WORD)
    assert await ear.heard() == [WORD.text]
    assert await runs.start_one(database, a_start(), WORD)


async def test_a_start_that_may_not_say_its_word_is_announced(app: App, dsn: str, ear: Ear) -> None:
    holder = await asyncpg.connect(dsn)
    async with holder.transaction():
        await holder.execute("select stepwell.say($1, 'mine')", WORD.channel)
        await app.definition("letters").start(1)

        async def announced() -> bool:
            return "default" in await ear.heard()

        await until(announced)
    await holder.close()


async def test_a_lone_start_needs_no_announcement(app: App, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PostgresWakes, "announce", lambda *_: pytest.fail("it was said already"))
    await app.definition("letters").start(1)
    assert await ear.heard() == ["default"]


async def test_in_a_burst_words_are_left_to_the_announcements(database: Database) -> None:
    wakes = PostgresWakes(database)
    words = [wakes.word(Channel.PENDING, ["default"]) for _ in range(2 * BURST)]
    assert all(words[: BURST - 1])
    assert not any(words[BURST + 1 :])


async def test_a_burst_that_is_over_holds_up_no_word(database: Database) -> None:
    """What was announced instead is not to be paid for later: for minutes, after so many."""
    wakes = PostgresWakes(database)
    for _ in range(100_000):
        wakes.word(Channel.PENDING, ["default"])

    async def may_be_said() -> bool:
        return wakes.word(Channel.PENDING, ["default"]) is not None

    await until(may_be_said, within=20)


async def test_who_waits_for_an_answer_before_the_next_word_is_no_burst(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One caller who starts a run, waits for its result and starts the next would else wait to gather, each time."""

    @app.task
    async def work() -> None: ...

    async with app.worker():
        await (await work.start()).result(20)
        announced: list[Channel] = []
        announce = PostgresWakes.announce

        def noted(wakes: PostgresWakes, channel: Channel, what: Iterable[str]) -> None:
            told = list(what)
            announced.extend([channel] if told else [])
            announce(wakes, channel, told)

        monkeypatch.setattr(PostgresWakes, "announce", noted)
        for _ in range(3 * BURST):
            run = await work.start()
            await run.result(20)
    assert announced.count(Channel.PENDING) < BURST


async def test_what_is_too_long_for_a_word_is_announced(database: Database) -> None:
    wakes = PostgresWakes(database)
    assert wakes.word(Channel.FINISHED, ["x" * 2000]) is None
    assert wakes.word(Channel.FINISHED, []) is None
    assert wakes.word(Channel.FINISHED, ["a", "b"]) == Word("stepwell_finished", "a\nb")


async def test_a_result_that_is_awaited_is_said_with_its_commit(app: App, dsn: str) -> None:
    @app.task
    async def work(n: int) -> int:
        return n

    async with app.worker() as worker:
        assert await (await work.start(0)).result(10) == 0
        said: list[bool] = []
        exchange = worker._link.exchange

        async def seen(*given: Any) -> Any:
            exchanged = await exchange(*given)
            said.append(exchanged.said)
            return exchanged

        worker._link.exchange = seen  # type: ignore[method-assign]

        async def was_said() -> bool:
            assert await (await work.start(1)).result(10) == 1
            return any(said)

        await until(was_said)  # not the first, perhaps: the worker hears of who waits when it does
