"""What a worker logs of failing runs, when, and what it does not."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import App, Fatal, InvalidSetting, Retry, RunExpired, RunFailed, Snooze, current, workflow
from stepwell.cli.logs import AsJson, ForPeople
from stepwell.engine import ends, runs
from stepwell.hooks.failures import MESSAGE, one_line
from stepwell.model.ids import new_claim_id
from stepwell.model.run import Wanted
from stepwell.services.reaper import Reaper
from stepwell.testing import Clock
from tests.factory import a_worker, execute
from tests.hooks import bodies
from tests.waiting_for import until

ONCE = Retry(attempts=1)


def of(caplog: pytest.LogCaptureFixture, logger: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == logger]


def only(caplog: pytest.LogCaptureFixture, logger: str) -> logging.LogRecord:
    (record,) = of(caplog, logger)
    return record


async def fails(app: App, task: Any, *args: Any) -> Any:
    """The run, once it has failed."""
    run = await task.start(*args)
    with pytest.raises(RunFailed):
        await run.result(timeout=30)
    return run


async def logged(caplog: pytest.LogCaptureFixture, logger: str, count: int = 1) -> list[logging.LogRecord]:
    """The records, once there are so many: the caller of result() may hear of the end a little sooner."""

    async def there() -> bool:
        return len(of(caplog, logger)) >= count

    await until(there)
    return of(caplog, logger)


async def test_a_final_failure_is_logged_as_an_error_with_its_traceback(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="shop.charge", retry=ONCE)
    async def charge(card: str) -> None:
        raise ValueError("declined")

    async with app.worker():
        run = await fails(app, charge, "4111")
    record = only(caplog, "stepwell.runs")
    assert record.levelno == logging.ERROR
    assert record.getMessage() == f"shop.charge {run.id} failed at attempt 1 of 1 (raised): ValueError: declined"
    assert "Traceback (most recent call last)" in caplog.text
    assert 'raise ValueError("declined")' in caplog.text
    assert not of(caplog, "stepwell.attempts")


async def test_an_attempt_that_will_be_tried_again_is_a_warning_in_one_line(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="shop.flaky", retry=Retry(attempts=3, delay=0.01, jitter=0))
    async def flaky() -> None:
        if current.attempt == 1:
            raise ConnectionError("no\nroute")

    async with app.worker():
        run = await flaky.start()
        await run.result(timeout=30)
    record = only(caplog, "stepwell.attempts")
    assert record.levelno == logging.WARNING
    line = logging.Formatter().format(record)
    told = f"shop.flaky {run.id} failed at attempt 1 of 3 (raised): ConnectionError: no route; the next try is due in "
    assert line.startswith(told)
    assert "\n" not in line
    assert not of(caplog, "stepwell.runs")


async def test_attempts_that_did_not_fail_are_told_apart_from_those_that_did(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(retry=Retry(attempts=2, delay=0))
    async def later() -> None:
        if current.attempt == 1:
            raise Snooze(0.01)
        raise ValueError("no")

    async with app.worker():
        await fails(app, later)
    assert "attempt 2, failure 1 of 2" in only(caplog, "stepwell.attempts").getMessage()
    assert "attempt 3, failure 2 of 2" in only(caplog, "stepwell.runs").getMessage()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("killed", "(worker_lost): stepwell.executors.base.ProcessDied: the process was killed by SIGKILL"),
        ("refused", "(raised): ValueError: in a process of its own"),
        ("timed out", "(timed_out): TimeoutError: the attempt took longer than its timeout of 0.05 s"),
        ("gave up", "(gave_up): stepwell.Fatal: not for us"),
        ("thread", "(raised): ValueError: in a thread"),
        ("bad result", "(gave_up): stepwell.NotEncodable"),
    ],
)
async def test_every_kind_of_failure_is_logged(
    app: App, caplog: pytest.LogCaptureFixture, kind: str, told: str
) -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    async def gives_up() -> None:
        raise Fatal("not for us")

    def in_thread() -> None:
        raise ValueError("in a thread")

    async def bad_result() -> Any:
        return object()

    tasks: dict[str, Any] = {
        "killed": lambda: app.task(executor="process", retry=ONCE)(bodies.killed),
        "refused": lambda: app.task(executor="process", retry=ONCE)(bodies.refused),
        "timed out": lambda: app.task(timeout=0.05, retry=ONCE)(waits),
        "gave up": lambda: app.task(retry=Retry(attempts=5))(gives_up),
        "thread": lambda: app.task(retry=ONCE)(in_thread),
        "bad result": lambda: app.task(retry=ONCE)(bad_result),
    }
    task = tasks[kind]()
    async with app.worker():
        await fails(app, task)
    assert told in only(caplog, "stepwell.runs").getMessage()


async def test_a_run_whose_worker_was_lost_is_logged_by_the_reaper_that_settles_it(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="shop.lost", retry=ONCE)
    async def lost() -> None: ...

    database, wakes = app._opening.database, app._opening.wakes
    run = await lost.start()
    claim = await _claimed(app, "shop.lost")
    async with database.transaction() as tx:
        await execute(tx, "update stepwell.workers set lease_until = stepwell.now() - interval '1s'")
    await Reaper(database, wakes, app.telemetry, calm=timedelta(0)).run_once()
    assert claim.id == run.id
    message = only(caplog, "stepwell.runs").getMessage()
    assert message.startswith(f"shop.lost {run.id} failed at attempt 1 of 1 (worker_lost): WorkerLost: the worker that")


async def _claimed(app: App, name: str) -> Any:
    """The claim of a worker that is not there any more."""
    database = app._opening.database
    async with database.transaction() as tx:
        worker = await a_worker(tx)
        claimed = await runs.claim(tx, Wanted(worker, None, [name], 1, alone=True), new_claim_id())
    return claimed.claims[0]


async def test_a_run_past_its_deadline_and_one_that_expired_are_logged(
    app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="shop.slow", deadline="1h")
    async def slow() -> None: ...

    @app.task(name="shop.stale", expires="1h")
    async def stale() -> None: ...

    late, gone = await slow.options(delay="5h").start(), await stale.options(delay="5h").start()
    async with app.worker():
        await Clock(app.dsn).skip("2h")
        with pytest.raises(RunFailed):
            await late.result(timeout=30)
        with pytest.raises(RunExpired):
            await gone.result(timeout=30)
        records = await logged(caplog, "stepwell.runs", 2)
    assert sorted((record.levelname, record.getMessage()) for record in records) == [
        ("ERROR", f"shop.slow {late.id} failed before its first attempt (timed_out): DeadlineExceeded: "
                  "its deadline passed"),
        ("WARNING", f"shop.stale {gone.id} expired: no worker started it, or started it again, within its expires="),
    ]  # fmt: skip


async def test_a_workflows_failure_is_logged_with_its_cause(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="shop.charge", retry=ONCE)
    async def charge() -> None:
        raise ValueError("declined")

    @app.workflow(name="shop.inner")
    async def inner() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(charge())

    @app.workflow(name="shop.outer")
    async def outer() -> None:
        await inner()

    async with app.worker():
        run = await fails(app, outer)
    messages = [record.getMessage() for record in of(caplog, "stepwell.runs")]
    assert [message.split(" ")[0] for message in messages] == ["shop.charge", "shop.inner", "shop.outer"]
    assert all("ValueError: declined" in message for message in messages), messages
    assert messages[-1].startswith(f"shop.outer {run.id} failed (raised): stepwell.RunFailed: shop.inner")


async def test_a_blocked_workflow_is_logged_once_for_each_run_and_version(
    app: App, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    def define(here: App, name: str) -> Any:
        @here.task(name=name)
        async def part() -> None: ...

        @here.workflow(name="shop.order")
        async def order() -> None:
            await part()
            await workflow.signal("paid")

        return order

    first, second = App(dsn), App(dsn)
    order = define(first, "one")
    async with first, first.worker():
        run = await order.start()

        async def waits() -> bool:
            return any(event.type == "TaskCompleted" for event in await run.history())

        await until(waits)
    define(second, "two")
    async with second, second.worker() as worker:
        await second.run(run.id).signal("paid")
        (record,) = await logged(caplog, "stepwell.workflows")
        assert record.levelno == logging.ERROR
        assert record.getMessage().startswith("The code of shop.order does not fit the history of run")
        # A worker with other code wakes it now and then; the same code stops again, and has nothing new to say.
        settled = asyncio.Event()
        second.telemetry.listen(lambda name, facts: settled.set() if name == "worker.claimed" else None)
        async with second._opening.database.transaction() as tx:
            await execute(tx, "update stepwell.runs set state = 'pending', blocked = null, due_at = null")
        await settled.wait()

        async def is_blocked() -> bool:
            return "blocked" in {cause.code for cause in (await second.run(run.id).explain()).causes}

        await until(is_blocked)
        assert worker is not None
    assert len(of(caplog, "stepwell.workflows")) == 1


async def test_a_lost_claim_is_not_logged_as_a_failure(app: App, caplog: pytest.LogCaptureFixture) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task(retry=ONCE)
    async def refused() -> None:
        began.set()
        try:
            await go_on.wait()
        finally:
            raise ValueError("too late")

    lost: list[Any] = []
    app.telemetry.listen(lambda name, facts: lost.extend(facts["lost"]) if name == "worker.settled" else None)
    async with app.worker():
        run = await refused.start()
        await began.wait()
        await ends.cancel(app._opening.database, [run.id])  # and nobody tells the worker
        go_on.set()

        async def is_lost() -> bool:
            return bool(lost)

        await until(is_lost)
    assert not of(caplog, "stepwell.runs")
    assert not of(caplog, "stepwell.attempts")


async def test_a_failure_is_logged_after_it_was_committed(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """While the row is locked by someone else, nothing is recorded, and so nothing is logged."""
    began, go_on = asyncio.Event(), asyncio.Event()

    @app.task(retry=ONCE)
    async def refused() -> None:
        began.set()
        await go_on.wait()
        raise ValueError("no")

    async with app.worker():
        run = await refused.start()
        await began.wait()
        async with app._opening.database.transaction() as tx:
            await tx.rows("lock_run", id=run.id)
            go_on.set()
            await _until_someone_waits(app)
            assert not of(caplog, "stepwell.runs")
        with pytest.raises(RunFailed):
            await run.result(timeout=30)
        await logged(caplog, "stepwell.runs")


WAITING = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


async def _until_someone_waits(app: App) -> None:
    connection = await asyncpg.connect(app.dsn)
    try:

        async def waits() -> bool:
            return bool(await connection.fetchval(WAITING))

        await until(waits)
    finally:
        await connection.close()


async def test_inputs_and_results_are_never_logged(app: App, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    @app.task(retry=Retry(attempts=2, delay=0))
    async def charge(card: str) -> None:
        raise ValueError("declined")

    async with app.worker():
        await fails(app, charge, "4111-1111")
    assert of(caplog, "stepwell.runs")
    assert "4111" not in caplog.text


def test_a_long_message_keeps_its_head_and_its_end_in_one_printable_line() -> None:
    line = one_line("head\x1b[31m\n" + "x\n" * 100_000 + "the cause", MESSAGE)
    assert len(line) <= MESSAGE
    assert line.startswith("head�[31m x")
    assert line.endswith("the cause")
    assert "characters left out" in line
    assert line.isprintable()


async def test_failures_are_not_logged_where_the_app_says_so(
    app: App, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = App(dsn, log_failures=False)

    @quiet.task(retry=Retry(attempts=2, delay=0))
    async def refused() -> None:
        raise ValueError("no")

    async with quiet, quiet.worker():
        await fails(quiet, refused)
    assert not of(caplog, "stepwell.runs")
    assert not of(caplog, "stepwell.attempts")


def test_the_environment_decides_where_the_call_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_LOG_FAILURES", "no")
    assert App("postgresql://localhost/x").settings.log_failures is False
    assert App("postgresql://localhost/x", log_failures=True).settings.log_failures is True
    monkeypatch.setenv("STEPWELL_LOG_FAILURES", "")
    assert App("postgresql://localhost/x").settings.log_failures is True
    monkeypatch.setenv("STEPWELL_LOG_FAILURES", "loud")
    with pytest.raises(InvalidSetting, match="log_failures"):
        App("postgresql://localhost/x")


async def test_a_kind_of_failure_is_silenced_by_the_level_of_its_logger(
    app: App, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("stepwell.attempts"), "level", logging.ERROR)
    logging.getLogger("stepwell.attempts").manager._clear_cache()  # type: ignore[attr-defined]  # as setLevel does

    @app.task(retry=Retry(attempts=2, delay=0))
    async def refused() -> None:
        raise ValueError("no")

    async with app.worker():
        await fails(app, refused)
    logging.getLogger("stepwell.attempts").manager._clear_cache()  # type: ignore[attr-defined]  # likewise
    assert only(caplog, "stepwell.runs")
    assert not of(caplog, "stepwell.attempts")


async def test_a_burst_of_failures_costs_the_worker_a_line_each(app: App) -> None:
    """Of the time in which ten thousand failing runs are drained, the lines take a small part."""
    count, spent, lines = 10_000, 0.0, 0

    class Written(logging.StreamHandler[Any]):
        def emit(self, record: logging.LogRecord) -> None:
            nonlocal lines
            lines += 1
            self.format(record)

    @app.task(retry=ONCE)
    async def refused(n: int) -> None:
        raise ValueError(f"no {n}")

    (listener,) = app.telemetry._listeners

    def timed(name: str, facts: dict[str, Any]) -> None:
        nonlocal spent
        began = time.process_time()
        listener(name, facts)
        spent += time.process_time() - began

    app.telemetry._listeners[:] = [timed]
    logger, handler = logging.getLogger("stepwell.runs"), Written()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        await refused.start_many([(n,) for n in range(count)])
        began = time.process_time()
        async with app.worker():

            async def drained() -> bool:
                return lines >= count

            await until(drained, within=100)
        took = time.process_time() - began
    finally:
        logger.removeHandler(handler)
        logger.propagate = True
    assert lines == count
    print(f"{spent:.2f} s of {took:.2f} s")
    assert spent < took / 3, f"{spent:.2f} s of {took:.2f} s"


def test_the_command_line_shows_the_traceback_below_its_line_and_as_json() -> None:
    record = logging.getLogger("x").makeRecord("x", logging.ERROR, "f", 1, "failed", (), None)
    record.exc_text = "Traceback\n  \x1b[31mline"
    assert "failed\nTraceback\n" in ForPeople().format(record)
    assert "\x1b" not in ForPeople().format(record)
    assert '"traceback":"Traceback\\n' in AsJson().format(record)
