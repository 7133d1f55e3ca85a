"""The hot path on a real database: completed runs out and new claims in, with one statement for both."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import asyncpg
import pytest

from stepwell import App, Retry, Run, State, Unavailable, current
from stepwell.model.outcome import Completed
from stepwell.worker.claiming import lanes
from tests.waiting_for import until

Ask = Callable[..., Any]


class Wiretap:
    """What a worker asks of its link, and a way to come between."""

    def __init__(self, worker: Any) -> None:
        self._link = worker._link
        self.exchanges: list[tuple[int, int]] = []
        """Of each: how many were completed, and how many claimed."""
        self.places = 0
        self.settled: list[Any] = []
        self.looks = 0
        self._exchange, self._settle, self._claim = self._link.exchange, self._link.settle, self._link.claim
        self._link.exchange, self._link.settle, self._link.claim = self.exchange, self.settle, self.claim
        self.before: Callable[[Sequence[Any]], None] = lambda _completed: None
        self.after: Callable[[Sequence[Any], Any], None] = lambda _completed, _exchanged: None

    async def exchange(self, completed: Sequence[Any], order: Any) -> Any:
        self.before(completed)
        exchanged = await self._exchange(completed, order)
        self.exchanges.append((len(completed), len(exchanged.claims)))
        self.places += len(order.places)
        self.after(completed, exchanged)
        return exchanged

    async def settle(self, settlements: Sequence[Any], *, repeated: bool) -> Any:
        self.settled += settlements
        return await self._settle(settlements, repeated=repeated)

    async def claim(self, look: Any) -> Any:
        self.looks += look.queue is None and not look.limited
        return await self._claim(look)


async def outcomes(run: Run[Any]) -> list[str]:
    return [each.outcome for each in await run.attempts()]


async def until_count(count: Callable[[], int], wanted: int) -> None:
    async def there() -> bool:
        return count() == wanted

    await until(there)


async def is_open(worker: Any) -> bool:
    return bool(worker._lanes._open)


async def count_of(dsn: str, state: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval("select count(*) from stepwell.all_runs where state = $1", state))
    finally:
        await connection.close()


async def count_before(dsn: str, run: Run[Any]) -> int:
    """How many others were begun while it waited."""
    connection = await asyncpg.connect(dsn)
    asked = """select count(*) from stepwell.all_runs r, stepwell.all_runs o
                where r.id = $1 and o.started_at between r.created_at and r.started_at and o.id <> r.id"""
    try:
        return int(await connection.fetchval(asked, run.id))
    finally:
        await connection.close()


async def test_completed_runs_are_settled_by_the_statement_that_claims_the_next(app: App) -> None:
    @app.task
    async def quick(n: int) -> int:
        return n

    runs = await quick.start_many([(n,) for n in range(600)])
    async with app.worker(slots=20) as worker:
        tap = Wiretap(worker)
        assert [await run.result(20) for run in runs] == list(range(600))
        assert sum(completed for completed, _ in tap.exchanges) == 600
        assert any(completed and claimed for completed, claimed in tap.exchanges)
        assert not [outcome for _, outcome in tap.settled if isinstance(outcome, Completed)]
        assert tap.looks < len(tap.exchanges)


async def test_an_exchange_whose_answer_is_lost_loses_no_result_and_releases_its_claims(app: App) -> None:
    ran, lost, refused = [], [], []

    @app.task
    async def quick(n: int) -> int:
        ran.append(n)
        return n

    def lose(completed: Sequence[Any], exchanged: Any) -> None:
        if completed and exchanged.claims and len(lost) < 3:
            lost.append((completed, exchanged.claims))
            raise Unavailable("the answer is lost")

    def hear(name: str, facts: dict[str, Any]) -> None:
        if name == "worker.settled":
            refused.extend(facts["lost"])

    app.telemetry.listen(hear)
    runs = await quick.start_many([(n,) for n in range(600)])
    async with app.worker(slots=20) as worker:
        Wiretap(worker).after = lose
        assert [await run.result(20) for run in runs] == list(range(600))
        by_id = {run.id: run for run in runs}
        released = {claim.id for _, claims in lost for claim in claims}
        infos = {run_id: await by_id[run_id].info() for run_id in released}
        attempts = [await outcomes(by_id[run_id]) for run_id in released]
    assert len(lost) == 3
    assert sorted(ran) == list(range(600)), "each body ran once"
    assert not refused
    assert {info.failures for info in infos.values()} == {0}
    assert all(each[-1] == "completed" and set(each[:-1]) == {"released"} for each in attempts)


async def test_claims_whose_answer_was_lost_are_released_soon(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not when everything is next compared: the worker knows that it missed something."""
    monkeypatch.setattr("stepwell.worker.claiming.watch.WATCH_ALL", 60.0)

    @app.task
    async def quick() -> None: ...

    claimed: list[Any] = []

    def lose(_completed: Sequence[Any], exchanged: Any) -> None:
        if exchanged.claims and not claimed:
            claimed.extend(exchanged.claims)
            worker._lanes.close()  # so that nobody claims them again
            raise Unavailable("the answer is lost")

    await quick.start_many([() for _ in range(300)])
    async with app.worker(slots=20) as worker:
        Wiretap(worker).after = lose
        await until(lambda: _any(claimed))

        async def all_released() -> bool:
            return {(await app.run(claim.id).info()).state for claim in claimed} == {State.PENDING}

        await until(all_released)
        assert not worker._lanes.unanswered


async def _any(found: list[Any]) -> bool:
    return bool(found)


async def test_what_an_exchange_is_refused_for_is_settled_apart(app: App) -> None:
    refusals = 0

    @app.task
    async def quick(n: int) -> int:
        return n

    def refuse(completed: Sequence[Any]) -> None:
        nonlocal refusals
        if completed and refusals < 3:
            refusals += 1
            raise ValueError("not these")

    runs = await quick.start_many([(n,) for n in range(300)])
    async with app.worker(slots=20) as worker:
        tap = Wiretap(worker)
        tap.before = refuse
        assert [await run.result(20) for run in runs] == list(range(300))
        assert refusals == 3
        assert [outcome for _, outcome in tap.settled if isinstance(outcome, Completed)]


async def test_a_run_more_urgent_than_the_backlog_is_taken_at_the_next_look(app: App, dsn: str) -> None:
    @app.task
    async def work(n: int) -> int:
        await asyncio.sleep(0.005)
        return n

    backlog = await work.start_many([(n,) for n in range(3000)])
    async with app.worker(slots=4) as worker:
        tap = Wiretap(worker)
        await backlog[100].result(20)
        for _ in range(3):
            assert tap.places, "the worker goes on behind its place, where no urgent run stands"
            urgent = await work.options(priority=1).start(-1)
            await urgent.result(20)
            assert await count_before(dsn, urgent) < 500, "there is a look every tenth of a second"
        assert await count_of(dsn, "pending") > 1000


async def test_a_run_tried_again_does_not_wait_for_the_end_of_the_backlog(app: App, dsn: str) -> None:
    @app.task(retry=Retry(attempts=2, delay=0))
    async def work(n: int) -> int:
        await asyncio.sleep(0.005)
        if n == 100 and current.attempt == 1:
            raise ValueError("once")
        return n

    backlog = await work.start_many([(n,) for n in range(3000)])
    async with app.worker(slots=4):
        assert await backlog[100].result(20) == 100
        assert await count_of(dsn, "pending") > 1000


async def test_runs_that_someone_had_locked_and_let_go_of_are_not_left_behind(app: App, dsn: str) -> None:
    """An exchange may step over what says that it was locked: a look finds it, though the backlog goes on."""

    @app.task
    async def work(n: int) -> int:
        return n

    backlog = await work.start_many([(n,) for n in range(5000)])
    once_locked = backlog[1500:2500]
    connection = await asyncpg.connect(dsn)
    try:
        transaction = connection.transaction()
        await transaction.start()
        asked = "select count(*) from (select from stepwell.runs where id = any($1::uuid[]) for update) locked"
        assert await connection.fetchval(asked, [run.id for run in once_locked]) == 1000
        await transaction.rollback()
        touched = "select count(*) from stepwell.runs where xmax <> '0'::xid"
        assert await connection.fetchval(touched) == 1000
    finally:
        await connection.close()
    async with app.worker() as worker:
        tap = Wiretap(worker)
        assert [await run.result(30) for run in backlog] == list(range(5000))
        assert tap.places, "it went on behind its place"


async def test_no_more_is_claimed_than_there_are_slots_where_bodies_wait(app: App, dsn: str) -> None:
    """However many of them end at once."""
    begun, most, gate = 0, 0, asyncio.Event()

    @app.task
    async def waits() -> None:
        nonlocal begun, most
        begun, most = begun + 1, max(most, worker._attempts.taken)
        await gate.wait()

    async def all_begun() -> bool:
        return begun == 5

    runs = await waits.start_many([() for _ in range(50)])
    async with app.worker(slots=5) as worker:
        for _ in range(5):
            await until(all_begun)
            worker._lanes.heard()
            await worker._ledger.drained()
            assert await count_of(dsn, "running") == 5
            opened, gate, begun = gate, asyncio.Event(), 0
            opened.set()
        await until(all_begun)
        assert most <= 5
        gate.set()  # from here on they are quick
        await asyncio.gather(*(run.result(20) for run in runs))


async def test_a_crowded_worker_leaves_nothing_waiting(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last slot that becomes free is claimed for, though nothing is heard of and nothing ends any more."""
    monkeypatch.setattr(lanes, "POLL", 3600.0)
    hold, free = asyncio.Event(), asyncio.Event()

    @app.task
    async def holds() -> None:
        await hold.wait()

    @app.task
    async def frees() -> None:
        await free.wait()

    async with app.worker(slots=16) as worker:
        held = await holds.start_many([()] * 15)
        freed = await frees.start()
        await until_count(lambda: len(worker._ledger.known), 16)
        later = await frees.start()
        free.set()
        await freed.result(20)
        await later.result(20)
        hold.set()
        for run in held:
            await run.result(20)


async def test_more_is_claimed_than_there_are_slots_where_bodies_are_quick(app: App) -> None:
    most = 0

    @app.task
    async def quick() -> None:
        nonlocal most
        most = max(most, worker._attempts.taken)

    runs = await quick.start_many([() for _ in range(3000)])
    async with app.worker(slots=2) as worker:
        await runs[-1].result(30)
    assert most > 2


class Change:
    """Many bodies that are quick, and after them many that wait."""

    def __init__(self, app: App, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gate, self.in_line, self.runs = asyncio.Event(), 0, []
        self._app = app
        self.worker: Any = None
        # On a machine that was held up just then it would claim nothing ahead.
        monkeypatch.setattr("stepwell.worker.pace.Pace.lately", lambda *_: 0 if self.in_line else 250)

        @app.task
        async def work(waits: bool) -> None:
            if waits:
                self.in_line = max(self.in_line, len(self.worker._attempts._first.line))
                await self.gate.wait()

        self.work = work

    async def start(self) -> None:
        self.runs = await self.work.start_many([(False,)] * 3000 + [(True,)] * 150)

    async def given_back(self) -> list[Any]:
        found = [info for info in (await self._app.runs(state="pending", limit=200)).items if info.attempt]
        return found if self.in_line else []


async def test_claims_that_find_no_slot_in_time_are_given_back(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    change = Change(app, monkeypatch)
    await change.start()
    async with app.worker(slots=2) as change.worker:
        given_back = await until(change.given_back, within=20)
        assert {info.failures for info in given_back} == {0}
        assert {(await outcomes(app.run(info.id)))[0] for info in given_back[:10]} == {"released"}
        change.gate.set()
        await asyncio.gather(*(run.result(30) for run in change.runs[-150:]))


async def test_claims_that_were_given_back_are_left_to_others(
    app: App, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be given back again, and again: there is no slot for them here."""
    change = Change(app, monkeypatch)
    await change.start()
    async with app.worker(slots=2) as change.worker:
        attempts, passes = change.worker._attempts, 0
        give_back_stale = attempts.give_back_stale

        def counted() -> None:
            nonlocal passes
            passes += 1
            give_back_stale()

        attempts.give_back_stale = counted
        await until(change.given_back, within=20)
        passes = 0

        async def twice() -> bool:
            return passes >= 2

        await until(twice)
        assert await count_of(dsn, "running") == 2
        assert {info.attempt for info in await change.given_back()} == {1}
        change.gate.set()


async def test_slots_are_never_over_committed_though_bodies_before_were_quick(app: App) -> None:
    waiting, most = 0, 0

    @app.task
    async def work(waits: bool) -> None:
        nonlocal waiting, most
        if waits:
            waiting += 1
            most = max(most, waiting)
            await asyncio.sleep(0.002)
            waiting -= 1

    runs = await work.start_many([(n % 100 > 80,) for n in range(2000)])
    async with app.worker(slots=3):
        await asyncio.gather(*(run.result(30) for run in runs))
    assert most == 3


async def test_what_completes_while_the_worker_stops_is_recorded_at_once(app: App) -> None:
    """No exchange comes any more: it must not be kept for one until the last body has ended."""
    begun, short, long = [], asyncio.Event(), asyncio.Event()

    @app.task
    async def work(which: str) -> str:
        begun.append(which)
        await (short if which == "short" else long).wait()
        return which

    async def both() -> bool:
        return len(begun) == 2

    async with app.worker() as worker:
        first, last = await work.start("short"), await work.start("long")
        await until(both)
        stopping = asyncio.create_task(worker.stop(60))
        await asyncio.sleep(0)
        short.set()
        try:
            assert await first.result(10) == "short"
        finally:
            long.set()
            await stopping
    assert await last.result(30) == "long"


async def test_many_busy_queues_are_all_served(app: App) -> None:
    @app.task
    async def quick(n: int) -> int:
        return n

    runs = []
    for queue in range(30):
        runs += await quick.options(queue=f"q{queue}").start_many([(n,) for n in range(60)])
    async with app.worker(slots=7):
        await asyncio.gather(*(run.result(30) for run in runs))


async def test_a_queue_that_was_heard_of_is_asked_and_a_look_follows_where_there_is_more(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    async def work(n: int) -> int:
        return n

    monkeypatch.setattr("stepwell.worker.claiming.lanes.POLL", 60.0)
    monkeypatch.setattr("stepwell.worker.claiming.frontier.CHEAP", 60.0)
    await app.queue("narrow").set(concurrency=1)
    async with app.worker() as worker:
        assert await (await work.start(1)).result(10) == 1
        tap = Wiretap(worker)
        assert await (await work.start(2)).result(10) == 2
        assert tap.looks == 0
        assert await (await work.options(queue="narrow").start(3)).result(10) == 3
        assert tap.looks > 0
