"""Waiting for results: what finishes is announced while someone waits, and nobody says a word otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from stepwell import App
from stepwell.client.result_waiter import SPREADING, _among
from stepwell.dispatch.base import WE, WHO, Channel
from stepwell.engine import reads
from stepwell.model.errors import Unavailable
from stepwell.model.run import Finished
from stepwell.store.pool import Tx
from stepwell.worker.direct import FEW
from tests.waiting_for import until

SOON = 15.0
"""Seconds within which an announcement is heard; polling is out of the way in these tests."""


class Overheard:
    """Everything that is announced, by a connection of its own."""

    def __init__(self, connection: asyncpg.Connection[Any]) -> None:
        self._connection = connection
        self.words: dict[str, list[str]] = {channel.value: [] for channel in Channel}

    async def listen(self) -> None:
        for channel in Channel:
            await self._connection.add_listener(f"stepwell_{channel}", self._heard)

    def _heard(self, _connection: object, _pid: int, name: str, payload: object) -> None:
        self.words[name.removeprefix("stepwell_")] += [word for word in str(payload).split("\n") if word]

    async def said(self, channel: Channel) -> list[str]:
        """All that was said there until now: notifications arrive before the answer to a later question."""
        await self._connection.execute("select 1")
        return self.words[channel]


@pytest.fixture
async def overheard(dsn: str) -> AsyncIterator[Overheard]:
    connection = await asyncpg.connect(dsn)
    overheard = Overheard(connection)
    await overheard.listen()
    yield overheard
    await connection.close()


@pytest.fixture(autouse=True)
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    """A minute without a look of anyone's own accord, and so without a word repeated."""
    monkeypatch.setattr("stepwell.client.result_waiter.POLL", 60.0)
    monkeypatch.setattr("stepwell.worker.direct.AWAITED", 180.0)


class Office:
    """An app whose bodies end when they are told to."""

    def __init__(self, dsn: str) -> None:
        self.app = App(dsn, lease=5)
        self.gates: dict[int, asyncio.Event] = {}

        @self.app.task(name="office.work")
        async def work(n: int) -> int:
            await self.gate(n).wait()
            return n

        self.work = work

    def gate(self, n: int) -> asyncio.Event:
        return self.gates.setdefault(n, asyncio.Event())


async def word_has_spread(app: App) -> None:
    """Everyone has heard that someone waits, and nobody looks any more just in case."""
    waiting = app._opening.client._waiting

    async def spread() -> bool:
        return bool(waiting._is_known and not waiting._looks)

    await until(spread)


async def heard_in(result: asyncio.Task[Any]) -> float:
    began = time.monotonic()
    async with asyncio.timeout(30):
        await result
    return time.monotonic() - began


@pytest.mark.parametrize("apart", [False, True], ids=["in one app", "in two apps"])
async def test_a_result_is_heard_of_without_polling(dsn: str, overheard: Overheard, apart: bool) -> None:
    office = Office(dsn)
    client = App(dsn) if apart else office.app
    async with office.app, office.app.worker():
        if apart:
            await client.__aenter__()
        runs = [await client.start("office.work", n) for n in range(3)]
        results = [asyncio.create_task(run.result(30)) for run in runs]
        await asyncio.sleep(0)
        await word_has_spread(client)
        for n, result in enumerate(results):
            assert not result.done()
            office.gate(n).set()
            assert await heard_in(result) < SOON

        async def all_announced() -> bool:
            return set(await overheard.said(Channel.FINISHED)) == {run.id.hex for run in runs}

        await until(all_announced)
        if apart:
            await client.__aexit__(None, None, None)


async def test_while_nobody_waits_nothing_that_finishes_is_announced(app: App, overheard: Overheard) -> None:
    @app.task
    async def work(n: int) -> int:
        if n % 10 == 0:
            raise ValueError("this one fails")
        return n

    async with app.worker():
        await work.start_many([(n,) for n in range(100)])

        async def over() -> bool:
            return len((await app.runs(state="completed", limit=200)).items) == 90

        await until(over)
        assert await overheard.said(Channel.FINISHED) == []
        assert WE not in await overheard.said(Channel.AWAITED)


async def test_a_run_that_finished_before_anyone_waits_is_found_at_once(app: App, overheard: Overheard) -> None:
    @app.task
    async def work(n: int) -> int:
        return n

    async with app.worker():
        run = await work.start(7)

        async def over() -> bool:
            return (await run.info()).state.finished

        await until(over)
        assert await overheard.said(Channel.FINISHED) == []
        result = asyncio.create_task(run.result(30))
        assert await heard_in(result) < SOON
        assert result.result() == 7


async def test_who_begins_to_wait_says_so_once_for_all(app: App, overheard: Overheard) -> None:
    @app.task
    async def work() -> None: ...

    runs = await work.start_many([() for _ in range(100)])
    waiters = [asyncio.create_task(run.result(30)) for run in runs]

    async def said() -> bool:
        return WE in await overheard.said(Channel.AWAITED)

    await until(said)
    await word_has_spread(app)
    assert (await overheard.said(Channel.AWAITED)).count(WE) <= 2
    for waiter in waiters:
        waiter.cancel()
    await asyncio.gather(*waiters, return_exceptions=True)


@pytest.mark.parametrize("apart", [True, False], ids=["in two apps", "in one app"])
async def test_a_worker_that_starts_later_asks_who_waits_and_is_answered(
    dsn: str, overheard: Overheard, apart: bool
) -> None:
    """Also in one app, which listens already and has missed no words itself."""
    office = Office(dsn)
    client = App(dsn) if apart else office.app
    async with office.app:
        if apart:
            await client.__aenter__()
        run = await client.start("office.work", 1)
        result = asyncio.create_task(run.result(30))
        await asyncio.sleep(0)
        await word_has_spread(client)
        async with office.app.worker() as worker:

            async def asked() -> bool:
                return worker._link._awaited_until > 0

            await until(asked)
            assert WHO in await overheard.said(Channel.AWAITED)
            await word_has_spread(client)
            office.gate(1).set()
            assert await heard_in(result) < SOON
        if apart:
            await client.__aexit__(None, None, None)


async def test_a_run_that_finishes_while_the_word_spreads_is_found_by_a_look(
    app: App, overheard: Overheard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker never hears that anyone waits; the waiter looks a few times all the same."""
    gate = asyncio.Event()

    @app.task
    async def work() -> int:
        await gate.wait()
        return 1

    async with app.worker() as worker:
        monkeypatch.setattr(type(worker._link), "_is_awaited", False)
        run = await work.start()
        result = asyncio.create_task(run.result(30))
        await asyncio.sleep(0)
        gate.set()
        assert await heard_in(result) < sum(SPREADING) + SOON
        assert await overheard.said(Channel.FINISHED) == []


async def test_a_run_started_where_it_is_known_that_someone_waits_is_not_even_looked_for(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepwell.engine import reads

    gate, looked = asyncio.Event(), []
    finished = reads.finished

    async def counted(tx: Any, ids: Any, **how: Any) -> Any:
        looked.append(list(ids))
        return await finished(tx, ids, **how)

    monkeypatch.setattr("stepwell.engine.reads.finished", counted)

    @app.task
    async def work(n: int) -> int:
        await gate.wait()
        return n

    async with app.worker():
        first = await work.start(0)
        waiting = asyncio.create_task(first.result(30))
        await asyncio.sleep(0)
        await word_has_spread(app)
        gate.set()
        await waiting
        looked.clear()
        for n in range(20):
            run = await work.start(n)
            assert await run.result(20) == n
        assert len(looked) <= 30, "about one look for each, when it is announced"


async def test_words_that_may_have_been_missed_are_made_up_for_by_a_look(
    app: App, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wire is cut while a run finishes: once it is there again, whoever waits looks."""
    gate = asyncio.Event()

    @app.task
    async def work() -> int:
        await gate.wait()
        return 1

    async with app.worker() as worker:
        run = await work.start()
        result = asyncio.create_task(run.result(30))
        await asyncio.sleep(0)
        await word_has_spread(app)
        monkeypatch.setattr(type(worker._link), "_is_awaited", False)
        gate.set()

        async def over() -> bool:
            return (await run.info()).state.finished

        await until(over)
        assert not result.done()
        await cut_the_wire(dsn)
        assert await heard_in(result) < SOON


async def cut_the_wire(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    listening = "query ilike '%pg_notify%' or query ilike 'listen%' or query ilike '%stepwell_%'"
    await connection.execute(
        f"select pg_terminate_backend(pid) from pg_stat_activity "
        f"where datname = current_database() and pid <> pg_backend_pid() and ({listening})"
    )
    await connection.close()


async def test_every_one_of_many_waiters_for_one_run_is_told(app: App) -> None:
    gate = asyncio.Event()

    @app.task
    async def work() -> int:
        await gate.wait()
        return 1

    async with app.worker():
        run = await work.start()
        results = [asyncio.create_task(run.result(30)) for _ in range(50)]
        given_up = asyncio.create_task(run.result(0.01))
        await asyncio.wait({given_up})
        await word_has_spread(app)
        gate.set()
        assert await asyncio.gather(*results) == [1] * 50
    assert isinstance(given_up.exception(), TimeoutError)


async def test_a_run_whose_announcement_was_lost_is_found_though_others_are_announced(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look at all that is awaited does not wait for a silence."""
    monkeypatch.setattr("stepwell.client.result_waiter.POLL", 0.5)
    monkeypatch.setattr("stepwell.client.result_waiter.SPREADING", (0.01, 0.01))
    gate = asyncio.Event()

    @app.task
    async def quick() -> None: ...

    @app.task
    async def late() -> str:
        await gate.wait()
        return "found"

    async with app.worker():
        run = await late.start()
        awaited = asyncio.create_task(run.result(20))
        await (await quick.start()).result(10)
        wakes: Any = app._opening.wakes
        announce = wakes.announce

        def forgetful(channel: Channel, what: Any) -> None:
            announce(channel, [word for word in what if not (channel is Channel.FINISHED and word == run.id.hex)])

        wakes.announce = forgetful
        gate.set()
        while not awaited.done():  # something stirs all the time
            await (await quick.start()).result(10)
        assert awaited.result() == "found"


@pytest.mark.parametrize("away", [False, True], ids=["not finished", "and the database away"])
async def test_who_was_told_too_soon_and_looks_in_vain_waits_on(
    app: App, overheard: Overheard, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """The only one who waits for a run looks itself when that is announced. Anyone may say so."""
    gate, looked = asyncio.Event(), asyncio.Event()
    look = reads.finished

    async def finished(tx: Tx, ids: Sequence[UUID], *, recent: bool = False) -> list[Finished]:
        if recent and not looked.is_set():
            looked.set()
            if away:
                raise Unavailable("gone")
        return await look(tx, ids, recent=recent)

    @app.task
    async def wait() -> str:
        await gate.wait()
        return "done"

    async with app, app.worker():
        run = await wait.start()
        waiting = asyncio.create_task(run.result())

        async def is_awaited() -> bool:
            return WE in await overheard.said(Channel.AWAITED)

        await until(is_awaited)
        monkeypatch.setattr(reads, "finished", finished)
        wakes: Any = app._opening.wakes
        wakes.announce(Channel.FINISHED, [run.id.hex])
        async with asyncio.timeout(30):
            await looked.wait()
        gate.set()
        assert await asyncio.wait_for(waiting, 30) == "done"


@pytest.mark.parametrize(("said", "known"), [(3, 500), (500, 3), (0, 2), (2, 0)])
def test_whichever_are_fewer_those_that_are_waited_for_are_found_among_many(said: int, known: int) -> None:
    ids = [uuid4() for _ in range(said + known)]
    shared = ids[: min(said, known) // 2]
    told, awaited = [*shared, *ids[:said]], {*shared, *ids[said:]}
    assert _among([each.hex for each in told], awaited) == set(shared)


async def test_the_word_of_a_workflow_is_not_held_up_by_those_of_its_many_runs(app: App, dsn: str) -> None:
    """It leaves alone, unless others are on their way: a waiter for it would read them all, and wait for them."""

    @app.task
    async def work(n: int) -> int:
        return n

    @app.workflow
    async def fan() -> None:
        await asyncio.gather(*(work(n) for n in range(2 * FEW)))

    letters: list[str] = []
    connection = await asyncpg.connect(dsn)
    await connection.add_listener(f"stepwell_{Channel.FINISHED}", lambda *said: letters.append(str(said[-1])))
    try:
        async with app.worker():
            for _ in range(30):
                run = await fan.start()
                await run.result(30)
                await connection.execute("select 1")
                if run.id.hex in letters:
                    break
            else:
                pytest.fail(f"it always came with others: {letters[-1:]}")
    finally:
        await connection.close()
