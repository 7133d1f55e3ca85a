from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from operator import attrgetter
from typing import Any

import asyncpg
import pytest

from stepwell import App, Fatal, Retry, RunCancelled, RunError, RunFailed, Snooze, State, current
from stepwell.engine import ends, runs
from stepwell.model.ids import new_claim_id
from stepwell.model.run import Wanted
from stepwell.store.pool import Database
from tests.waiting_for import until


async def test_a_task_is_tried_again_until_it_succeeds(app: App) -> None:
    tries = []

    @app.task(retry=Retry(attempts=5, delay=0.01))
    async def flaky() -> int:
        tries.append(current.attempt)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return len(tries)

    async with app.worker():
        run = await flaky.start()
        assert await run.result(10) == 3
    info, attempts = await run.info(), await run.attempts()
    assert (info.attempt, info.failures) == (3, 2)
    assert tries == [1, 2, 3]
    assert [each.outcome for each in attempts] == ["failed", "failed", "completed"]
    assert all(each.error and each.error.type == "ConnectionError" for each in attempts[:2])


@pytest.mark.parametrize(
    ("error", "retry", "attempts"),
    [
        (Fatal("never"), Retry(attempts=9, delay=0), 1),
        (ValueError(), Retry(attempts=2, delay=0), 2),
        (KeyError(), Retry(attempts=9, delay=0, never=LookupError), 1),
        (KeyError(), Retry(attempts=2, delay=0, on=(OSError, LookupError)), 2),
        (KeyError(), Retry(attempts=9, delay=0, on=OSError), 1),
        (RunError("declined", code="CARD"), Retry(attempts=9, delay=0, never="CARD"), 1),
        (RunError("declined", code="CARD"), Retry(attempts=2, delay=0, on="CARD"), 2),
        (SystemExit(3), Retry(attempts=1), 1),
        (KeyboardInterrupt(), Retry(attempts=1), 1),
        (MemoryError(), Retry(attempts=1), 1),
        (GeneratorExit(), Retry(attempts=1), 1),
        (asyncio.CancelledError(), Retry(attempts=1), 1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_policy_decides_by_what_was_raised(
    app: App, error: BaseException, retry: Retry, attempts: int, kind: str
) -> None:
    async def on_loop() -> None:
        raise error

    def in_thread() -> None:
        raise error

    task: Any = app.task(retry=retry)(on_loop if kind == "async" else in_thread)
    async with app.worker():
        run = await task.start()
        with pytest.raises(RunFailed):
            await run.result(10)
        assert len(await run.attempts()) == attempts
        if isinstance(error, RunError):
            failed = (await run.info()).error
            assert failed is not None
            assert failed.code == "CARD"


async def test_a_snoozed_task_comes_back_and_no_failure_is_counted(app: App) -> None:
    @app.task(retry=Retry(attempts=1))
    async def later() -> int:
        if current.attempt < 3:
            raise Snooze(0.01)
        return current.attempt

    async with app.worker():
        run = await later.start()
        assert await run.result(10) == 3
    assert (await run.info()).failures == 0


@pytest.mark.parametrize("delay", [0, "1ms"])
async def test_a_snooze_of_no_time_does_not_spin(app: App, delay: Any) -> None:
    @app.task(retry=Retry(attempts=1))
    async def later() -> int:
        if current.attempt < 3:
            raise Snooze(delay)
        return current.attempt

    async with app.worker():
        run = await later.start()
        assert await run.result(20) == 3
    first, second, third = await run.attempts()
    for one, next_one in ((first, second), (second, third)):
        assert one.ended_at is not None
        assert next_one.started_at is not None
        assert (next_one.started_at - one.ended_at).total_seconds() >= 0.1


@pytest.mark.parametrize("kind", ["async", "thread", "process"])
async def test_an_attempt_that_takes_too_long_is_ended(app: App, kind: str) -> None:
    from tests.worker import bodies

    task: Any = bodies.define(app)[kind]
    async with app.worker(slots=4):
        run = await task.options(timeout=0.3, retry=Retry(attempts=1)).start()
        with pytest.raises(RunFailed) as raised:
            await run.result(20)
        assert raised.value.reason == "timed_out"
        bodies.let_go.set()


async def test_a_body_that_ignores_its_timeout_loses_its_claim_but_keeps_its_slot(app: App) -> None:
    ignored, end = asyncio.Event(), asyncio.Event()

    @app.task(timeout=0.05, retry=Retry(attempts=1))
    async def stubborn() -> None:
        while not end.is_set():
            try:
                await end.wait()
            except asyncio.CancelledError:
                ignored.set()

    async with app.worker(slots=1) as worker:
        run = await stubborn.start()
        with pytest.raises(RunFailed):
            await run.result(10)
        assert ignored.is_set()
        assert worker._lanes._room(asyncio.get_running_loop().time()) <= 0
        end.set()


@pytest.mark.usefixtures("only_by_word")
async def test_a_cancelled_body_is_told_at_once_and_its_result_refused(app: App) -> None:
    begun, told = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.set()
        return "too late"

    async with app.worker():
        run = await work.start()
        await begun.wait()
        await run.cancel()
        async with asyncio.timeout(30):
            await told.wait()
        with pytest.raises(RunCancelled):
            await run.result(30)


async def test_a_cancelled_thread_can_see_it(app: App) -> None:
    begun = threading.Event()

    @app.task
    def work() -> None:
        begun.set()
        while not current.cancelled:
            threading.Event().wait(0.005)
        seen.set()

    seen = threading.Event()
    async with app.worker():
        run = await work.start()
        await asyncio.to_thread(begun.wait, 5)
        await run.cancel()
        assert await asyncio.to_thread(seen.wait, 1.5)


async def test_a_stopping_worker_lets_attempts_end_within_its_grace(app: App) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> str:
        begun.set()
        await go_on.wait()
        return "finished"

    async with app.worker(grace=10) as worker:
        run = await work.start()
        await begun.wait()
        stopping = asyncio.create_task(worker.stop(10))
        await asyncio.sleep(0)
        go_on.set()
        await stopping
    assert await run.result(30) == "finished"


async def test_a_stopping_worker_gives_back_the_rest_and_counts_no_failure(app: App) -> None:
    begun = asyncio.Event()

    @app.task
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with app.worker():
        run = await work.start()
        await begun.wait()
    info = await run.info()
    assert (info.state, info.failures, info.attempt) == (State.PENDING, 0, 1)
    assert [each.outcome for each in await run.attempts()] == ["released"]


async def test_a_claim_whose_answer_was_lost_is_given_back(app: App, dsn: str) -> None:
    ran = []

    @app.task(name="work")
    async def work() -> int:
        ran.append(current.attempt)
        return 1

    database = Database(dsn, "stepwell")
    await database.open()
    async with app.worker(queues=["elsewhere"]) as worker:
        run = await work.start()
        who = await _only_worker(database)
        await runs.claim(database, Wanted(who, ["default"], ["work"], 1, alone=True), new_claim_id())
        await worker._watch.compare()
        await worker._ledger.drained()
        info = await run.info()
        assert (info.state, info.failures) == (State.PENDING, 0)
    await database.close()


async def _only_worker(database: Database) -> Any:
    connection = await database.connect()
    found = await connection.fetchval("select id from stepwell.workers where stopped_at is null")
    await connection.close()
    return found


async def test_a_worker_without_its_lease_ends_what_it_runs_and_claims_nothing_until_it_is_back(app: App) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with app.worker(slots=1) as worker:
        run = await work.start()
        await begun.wait()
        worker._lease_lost()
        await ended.wait()
        begun.clear()
        await until(lambda: _is(run, State.PENDING))
        assert worker._lanes._room(asyncio.get_running_loop().time()) <= 0
        worker._lease_back()
        await begun.wait()
        assert (await run.info()).failures == 0


async def _is(run: Any, state: State) -> bool:
    return (await run.info()).state is state


async def test_slots_are_never_over_committed(app: App) -> None:
    running, most = 0, 0

    @app.task
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1

    started = await work.start_many([() for _ in range(200)])
    async with app.worker(slots=7):
        await asyncio.gather(*(run.result(20) for run in started))
    assert most <= 7


async def test_a_blocked_event_loop_does_not_lose_the_lease(dsn: str) -> None:
    import time

    app = App(dsn, lease=2)

    @app.task(retry=Retry(attempts=1))
    async def block() -> int:
        time.sleep(5)
        return current.attempt

    async with app, app.worker():
        run = await block.start()
        assert await run.result(10) == 1
    assert [each.outcome for each in await _attempts(dsn, run.id)] == ["completed"]


async def _attempts(dsn: str, run_id: Any) -> Any:
    async with App(dsn) as app:
        return await app.run(run_id).attempts()


async def test_a_process_that_dies_fails_its_attempt_and_its_neighbours_go_on(app: App) -> None:
    from tests.worker import bodies

    tasks = bodies.define(app)
    async with app.worker():
        dies = await tasks["dies"].options(retry=Retry(attempts=2, delay=0)).start()
        good = await tasks["adds"].start_many([(n, 1) for n in range(6)])
        assert [await run.result(30) for run in good] == [1, 2, 3, 4, 5, 6]
        with pytest.raises(RunFailed) as raised:
            await dies.result(30)
    assert raised.value.reason == "worker_lost"
    assert (await dies.info()).attempt == 2


async def test_a_body_in_another_process_knows_its_run(app: App) -> None:
    from tests.worker import bodies

    tells = bodies.define(app)["tells"]
    async with app.worker():
        run = await tells.options(key="k", tags={"a": "b"}).start()
        assert await run.result(30) == (str(run.id), 1, "k", {"a": "b"})


@pytest.mark.parametrize("part", ["_ledger._settle", "_lanes._frontier.next", "_watch.compare"])
async def test_a_part_of_the_worker_that_fails_ends_the_block(app: App, part: str) -> None:
    def broken(*_args: object, **_values: object) -> None:
        raise RuntimeError("this part is broken")

    @app.task
    async def work() -> None:
        raise Fatal("what is not completed goes through the ledger")

    with pytest.raises(RuntimeError, match="this part is broken"):
        async with app.worker() as worker, asyncio.timeout(20):
            await until(lambda: _open(worker))
            *inside, name = part.split(".")
            setattr(attrgetter(".".join(inside))(worker) if inside else worker, name, broken)
            await work.start()
            worker._cancelled(None)
            await asyncio.Event().wait()


async def test_a_lease_whose_thread_dies_ends_the_worker(app: App) -> None:
    async def refused(*_args: object) -> None:
        raise RuntimeError("not allowed")

    with pytest.raises(RuntimeError, match="not allowed"):
        async with app.worker() as worker:
            await until(lambda: _open(worker))
            worker._lease._renew = refused  # type: ignore[method-assign,assignment]
            async with asyncio.timeout(20):
                await asyncio.Event().wait()


async def _open(worker: Any) -> bool:
    return bool(worker._lanes._open)


async def test_a_worker_can_be_stopped_before_it_ever_had_its_lease(app: App) -> None:
    async with app.worker():
        pass
    async with app.worker() as worker:
        await worker.stop()
        async with asyncio.timeout(30):
            await worker.stopped()


async def test_a_claim_that_arrives_while_stopping_is_given_back(app: App) -> None:
    @app.task
    async def work() -> None:
        await asyncio.Event().wait()

    run = await work.start()
    async with app.worker() as worker:
        claim = worker._link.claim
        asked, answer = asyncio.Event(), asyncio.Event()

        async def slow(*args: Any, **more: Any) -> Any:
            claimed = await claim(*args, **more)
            asked.set()
            await answer.wait()
            return claimed

        worker._link.claim = slow  # type: ignore[method-assign]
        await until(lambda: _open(worker))
        worker._lanes.heard()
        await asked.wait()
        stopping = asyncio.create_task(worker.stop())
        await asyncio.sleep(0)
        answer.set()
        await stopping
        async with asyncio.timeout(30):
            await worker.stopped()
    info = await run.info()
    assert (info.state, info.failures) == (State.PENDING, 0)


async def test_a_task_of_this_worker_may_start_children(app: App) -> None:
    @app.task
    async def child(n: int) -> int:
        return n

    @app.task
    async def parent() -> int:
        started = await child.start_many([(n,) for n in range(3)])
        return sum([await run.result(10) for run in started])

    async with app.worker():
        run = await parent.start()
        assert await run.result(10) == 3
        children = [item for item in (await app.runs(name=child.name)).items if item.parent_id == run.id]
    assert len(children) == 3


def test_a_lease_must_be_long_enough_to_be_renewed() -> None:
    from stepwell import InvalidSetting

    with pytest.raises(InvalidSetting, match="lease"):
        App("postgresql://nowhere/x", lease=timedelta(milliseconds=10))


async def test_a_process_task_is_timed_from_when_its_body_begins(app: App) -> None:
    from tests.worker import bodies

    naps = bodies.define(app)["naps"]
    started = await naps.options(timeout=10, retry=Retry(attempts=1)).start_many([(0.01,)] * 4)
    async with app.worker():
        for run in started:
            assert await run.result(30) == 0.01
        tight = await naps.options(timeout=3, retry=Retry(attempts=1)).start_many([(0.5,)] * 16)
        assert [await run.result(30) for run in tight] == [0.5] * 16


async def test_an_error_that_cannot_even_be_described_ends_its_run(app: App) -> None:
    class Odd(Exception):
        @property
        def code(self) -> str:
            raise KeyError("no code")

        def __str__(self) -> str:
            raise ValueError("no text")

    @app.task(retry=Retry(attempts=1))
    async def odd() -> None:
        raise Odd

    async with app.worker():
        with pytest.raises(RunFailed) as raised:
            await (await odd.start()).result(10)
    assert "Odd" in raised.value.type


async def test_a_row_whose_policy_cannot_be_read_fails_alone(app: App, dsn: str) -> None:
    @app.task
    async def bad() -> None:
        raise ValueError("boom")

    odd, newer, good = [await bad.start() for _ in range(3)]
    connection = await asyncpg.connect(dsn)
    await connection.execute('update stepwell.runs set retry = \'{"attempts": "many"}\' where id = $1', odd.id)
    await connection.execute('update stepwell.runs set retry = \'{"attempts": 1, "new": 2}\' where id = $1', newer.id)
    await connection.close()
    async with app.worker():
        for run in (odd, newer):
            with pytest.raises(RunFailed):
                await run.result(10)
        await until(lambda: _is(good, State.SCHEDULED))


async def test_a_worker_is_woken_by_a_start_and_a_waiter_by_the_end(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """With polling out of the way, only announcements can do it."""
    monkeypatch.setattr("stepwell.worker.claiming.lanes.POLL", 60.0)
    monkeypatch.setattr("stepwell.client.result_waiter.POLL", 60.0)

    @app.task
    async def work(n: int) -> int:
        return n

    async with app.worker() as worker:
        await until(lambda: _hears(worker))
        for n in range(5):
            assert await (await work.start(n)).result(20) == n


async def _hears(worker: Any) -> bool:
    return bool(worker._lanes._open and worker._link.hears)


async def test_a_cancel_whose_announcement_is_lost_is_noticed_all_the_same(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, told = asyncio.Event(), asyncio.Event()

    @app.task
    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.set()

    async with app.worker() as worker:
        monkeypatch.setattr(worker, "_cancelled", lambda _ids: None)
        run = await work.start()
        await begun.wait()
        await ends.cancel(app._opening.database, [run.id])
        async with asyncio.timeout(30):
            await told.wait()


async def test_a_worker_that_left_stays_gone_however_late_its_last_renewal_comes(app: App, dsn: str) -> None:
    for turns in range(6):
        async with app.worker():
            for _ in range(turns):
                await asyncio.sleep(0)
    connection = await asyncpg.connect(dsn)
    live = await connection.fetchval("select count(*) from stepwell.workers where lease_until > stepwell.now()")
    await connection.close()
    assert live == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "stepwell.lease"]


async def test_a_claim_that_arrives_after_the_lease_was_lost_is_given_back(app: App) -> None:
    @app.task
    async def work() -> None:
        await asyncio.Event().wait()

    run = await work.start()
    async with app.worker() as worker:
        claim, asked, answer = worker._link.claim, asyncio.Event(), asyncio.Event()

        async def slow(*args: Any, **more: Any) -> Any:
            claimed = await claim(*args, **more)
            asked.set()
            await answer.wait()
            return claimed

        worker._link.claim = slow  # type: ignore[method-assign]
        await until(lambda: _open(worker))
        worker._lanes.heard()
        await asked.wait()
        worker._lease_lost()
        answer.set()
        await until(lambda: _is(run, State.PENDING))
        assert (await run.info()).failures == 0


async def test_long_results_are_recorded_a_few_at_a_time(app: App) -> None:
    """Together they would be one statement of a hundred megabytes."""
    settled: list[int] = []

    @app.task
    async def write(n: int) -> str:
        return "x" * 1_000_000

    async with app.worker() as worker:
        settle = worker._link.settle

        async def counted(group: Any, *, repeated: bool) -> Any:
            settled.append(len(group))
            return await settle(group, repeated=repeated)

        worker._link.settle = counted  # type: ignore[method-assign]
        runs = await write.start_many([(n,) for n in range(40)])
        assert [len(await run.result(30)) for run in runs] == [1_000_000] * 40
    assert sum(settled) == 40
    assert max(settled) <= 10
