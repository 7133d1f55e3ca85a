"""Log lines: what a body logs, kept for its attempt, bounded, and taken from nobody."""

from __future__ import annotations

import asyncio
import io
import logging
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

import pytest

from stepwell import App, InvalidSetting, Retry, current
from stepwell.context.log_capture import LINE, capturing, cut
from stepwell.model.errors import Unavailable
from stepwell.model.notes import MOST_BYTES, MOST_LINES
from stepwell.telemetry import log as our_log
from tests.inside import bodies
from tests.waiting_for import until

log = logging.getLogger("shop.inside")
log.setLevel(logging.INFO)


async def lines_of(run: Any, count: int = 1) -> list[Any]:
    """Once there are so many."""

    async def enough() -> list[Any]:
        lines = await run.logs()
        return lines if len(lines) >= count else []

    return list(await until(enough))


async def test_what_a_body_logs_is_kept_by_attempt(app: App) -> None:
    @app.task(retry=Retry(attempts=2, delay=0))
    async def work() -> None:
        log.info("attempt %d of %s", current.attempt, "two")
        logging.getLogger("another").warning("careful")
        log.debug("not this")
        await asyncio.sleep(0)
        if current.attempt == 1:
            raise ValueError("no")

    async with app.worker():
        run = await work.start()
        await run.result(10)
    lines = await run.logs()
    assert [(each.attempt, each.level, each.logger, each.message) for each in lines] == [
        (1, "INFO", "shop.inside", "attempt 1 of two"),
        (1, "WARNING", "another", "careful"),
        (2, "INFO", "shop.inside", "attempt 2 of two"),
        (2, "WARNING", "another", "careful"),
    ]
    assert [each.message for each in await run.logs(attempt=2)] == ["attempt 2 of two", "careful"]
    attempts = await run.attempts()
    assert [[line.message for line in each.logs] for each in attempts] == [
        ["attempt 1 of two", "careful"],
        ["attempt 2 of two", "careful"],
    ]
    assert all(each.started_at <= line.at for each in attempts for line in each.logs[:1])


async def test_runs_at_the_same_time_are_kept_apart(app: App) -> None:
    together = asyncio.Barrier(5)

    @app.task
    async def work(n: int) -> None:
        log.info("before %d", n)
        await together.wait()
        await asyncio.to_thread(log.info, "after %d", n)

    async with app.worker():
        runs = await work.start_many([(n,) for n in range(5)])
        for run in runs:
            await run.result(10)
    for n, run in enumerate(runs):
        assert [each.message for each in await run.logs()] == [f"before {n}", f"after {n}"]


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_threads_and_processes_are_heard_too(app: App, kind: str) -> None:
    task = bodies.define(app, bodies.logs, executor=kind)
    async with app.worker():
        run = await task.start(3)
        await run.result(20)
        lines = await lines_of(run, 3)
    assert [(each.logger, each.message) for each in lines] == [("shop.inside", f"line {n}") for n in range(3)]


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_a_body_of_many_threads_is_heard_whole(app: App, kind: str) -> None:
    task = bodies.define(app, bodies.talks_from_everywhere, executor=kind)
    async with app.worker():
        run = await task.start(8, 50)
        assert await run.result(30) == 8 * 5 + 1
    said = [each.message for each in await run.logs()]
    assert sorted(said) == sorted(f"{thread}/{line}" for thread in range(8) for line in range(50))
    for thread in range(8):
        own = [message for message in said if message.startswith(f"{thread}/")]
        assert own == [f"{thread}/{line}" for line in range(50)]
    assert {each.step: each.done for each in await run.progress()} == {f"thread {n}": 50 for n in range(8)}


async def test_the_last_words_of_a_process_that_dies_are_kept(app: App) -> None:
    task = bodies.define(app, bodies.logs_and_dies, retry=Retry(attempts=1))
    async with app.worker():
        run = await task.start()
        await asyncio.gather(run.result(20), return_exceptions=True)
        lines = await lines_of(run)
    assert [(each.level, each.message) for each in lines] == [("ERROR", "this is the end")]


async def test_what_a_process_says_after_its_call_is_nobodys(app: App) -> None:
    talking, quiet = (bodies.define(app, fn, queue="one") for fn in (bodies.logs_behind_its_back, bodies.burns))
    async with app.worker(queues=["one"], slots=1):
        await (await talking.start()).result(20)
        run = await quiet.start(0.3, 1)
        await run.result(20)
    assert await run.logs() == []
    assert await run.progress() == []


@pytest.mark.parametrize("kind", ["thread", "process"])
async def test_the_lines_of_an_attempt_are_bounded_and_the_last_says_how_many_are_missing(app: App, kind: str) -> None:
    task = bodies.define(app, bodies.logs, executor=kind)
    async with app.worker():
        run = await task.start(MOST_LINES + 234)
        await run.result(20)
    lines = await run.logs()
    assert len(lines) == MOST_LINES + 1
    assert lines[-2].message == f"line {MOST_LINES - 1}"
    assert lines[-1].logger == "stepwell"
    assert lines[-1].message.startswith("234 more lines were left out")


async def test_so_are_their_bytes_and_every_single_line(app: App) -> None:
    @app.task
    async def work() -> None:
        for _ in range(100):
            log.info("ü" * 5000)

    async with app.worker():
        run = await work.start()
        await run.result(10)
    *lines, last = await run.logs()
    assert all(len(each.message.encode()) <= LINE for each in lines)
    assert "bytes left out" in lines[0].message
    assert len(lines) == MOST_BYTES // LINE
    assert last.message.startswith(f"{100 - len(lines)} more lines")


@pytest.mark.parametrize("text", ["\x00", "\ud800", "\n", "x" * LINE, "ü" * LINE, "😀" * LINE], ids=ascii)
def test_a_line_is_cut_to_what_the_table_takes(text: str) -> None:
    made = cut(text, LINE)
    assert len(made.encode()) <= LINE
    assert "\x00" not in made


async def test_lines_that_no_table_takes_as_they_are_do_no_harm(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    # The handlers of the test runner would carry them on, to where they do harm.
    monkeypatch.setattr(logging.getLogger(), "handlers", [])

    class Bad:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    @app.task
    async def work() -> None:
        logging.getLogger("a\x00b").warning("nul \x00, half \ud800")
        with suppress(Exception):
            log.info("%s", Bad())
        try:
            raise KeyError("lost")
        except KeyError:
            log.exception("caught")

    raising, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        async with app.worker():
            run = await work.start()
            await run.result(10)
    finally:
        logging.raiseExceptions = raising
    first, second = await run.logs()
    assert (first.logger, first.message) == ("a\\x00b", "nul \\x00, half \\ud800")
    assert second.message.startswith("caught\nTraceback")
    assert second.message.endswith("KeyError: 'lost'")


async def test_our_own_lines_are_not_the_bodys(app: App) -> None:
    @app.task
    async def work() -> None:
        our_log.error("ours")
        logging.getLogger("stepwell.sub").error("ours too")
        logging.getLogger("stepwellish").error("theirs")

    async with app.worker():
        run = await work.start()
        await run.result(10)
    assert [each.message for each in await run.logs()] == ["theirs"]


@pytest.mark.parametrize(("level", "kept"), [("DEBUG", 3), ("warning", 1), (logging.INFO, 2), (None, 0)])
async def test_the_level_is_the_apps(dsn: str, level: Any, kept: int) -> None:
    app = App(dsn, lease=5, capture_logs=level)
    loud = logging.getLogger("shop.loud")
    loud.setLevel(logging.DEBUG)

    @app.task
    async def work() -> None:
        loud.debug("d")
        loud.info("i")
        loud.warning("w")

    async with app, app.worker():
        run = await work.start()
        await run.result(10)
        await app.run(run.id).info()
    async with app:
        assert len(await run.logs()) == kept


@pytest.mark.parametrize("level", ["LOUD", -1, True])
def test_a_level_that_there_is_not_is_refused(level: Any) -> None:
    with pytest.raises(InvalidSetting, match="capture_logs"):
        App("postgresql://nowhere", capture_logs=level)


async def test_the_users_own_handlers_hear_every_record_once(app: App) -> None:
    heard = io.StringIO()
    own = logging.StreamHandler(heard)
    logging.getLogger("shop").addHandler(own)

    @app.task
    async def work() -> None:
        log.info("once")

    try:
        async with app.worker(), app.worker():
            run = await work.start()
            await run.result(10)
    finally:
        logging.getLogger("shop").removeHandler(own)
    assert heard.getvalue() == "once\n"
    assert [each.message for each in await run.logs()] == ["once"]


async def test_nothing_is_left_on_the_root_logger_when_the_last_worker_is_gone(app: App) -> None:
    root = logging.getLogger()
    before = list(root.handlers), root.level

    async def is_there() -> bool:
        return len(root.handlers) == len(before[0]) + 1

    async with app.worker():
        await until(is_there)
        async with app.worker():
            pass
        assert await is_there()
    assert (list(root.handlers), root.level) == before


UNCONFIGURED = """
import logging
from stepwell.context.log_capture import capturing
with capturing(logging.INFO):
    assert logging.getLogger("shop").isEnabledFor(logging.INFO)
    logging.getLogger("shop").info("quiet")
    logging.getLogger("shop").warning("loud")
    alone = logging.getLogger("alone")
    alone.propagate = False
    alone.warning("also")
assert not logging.getLogger("shop").isEnabledFor(logging.INFO)
assert not logging.getLogger().handlers
logging.getLogger("shop").warning("after")
"""


def test_what_python_prints_when_nobody_set_up_logging_is_printed_all_the_same() -> None:
    done = subprocess.run([sys.executable, "-c", UNCONFIGURED], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr.splitlines()) == (0, ["loud", "also", "after"]), done.stderr


def test_outside_of_a_body_nothing_is_kept() -> None:
    with capturing(logging.INFO):
        log.warning("nobody's")


async def test_lines_wait_for_a_database_that_is_away(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    database, is_away = app._opening.database, True
    rows, tried = database.rows, asyncio.Event()

    async def away(name: str, /, **values: Any) -> Any:
        if name == "note_lines" and is_away:
            tried.set()
            raise Unavailable("away")
        return await rows(name, **values)

    monkeypatch.setattr(database, "rows", away)
    task = bodies.define(app, bodies.logs, executor="thread")
    async with app.worker():
        run = await task.start(MOST_LINES + 2)
        await run.result(10)
        async with asyncio.timeout(30):
            await tried.wait()
        is_away = False
        lines = await lines_of(run, MOST_LINES + 1)
    assert [each.message for each in lines[:2]] == ["line 0", "line 1"]
    assert lines[-1].message.startswith("2 more lines")


async def test_notes_that_are_refused_end_no_worker(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    database = app._opening.database
    rows, refused = database.rows, []

    async def refusing(name: str, /, **values: Any) -> Any:
        if name == "note_lines" and not refused:
            refused.append(name)
            raise ValueError("a mistake of ours")
        return await rows(name, **values)

    monkeypatch.setattr(database, "rows", refusing)
    task = bodies.define(app, bodies.logs, executor="thread")
    async with app.worker():
        await (await task.start(1)).result(10)

        async def was_refused() -> bool:
            return bool(refused)

        await until(was_refused)
        run = await task.start(1)
        await run.result(10)
        assert len(await lines_of(run)) == 1


async def test_a_thread_that_the_user_starts_has_no_run(app: App) -> None:
    @app.task
    def work() -> None:
        thread = threading.Thread(target=log.info, args=("alone",))
        thread.start()
        thread.join()
        log.info("here")

    async with app.worker():
        run = await work.start()
        await run.result(10)
    assert [each.message for each in await run.logs()] == ["here"]
