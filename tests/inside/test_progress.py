"""Progress: the last word of each step, seen while the body runs, and never in its way."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from stepwell import App, InvalidSetting, NotEncodable, NotInARun, current
from stepwell.engine import notes
from stepwell.model.errors import Unavailable
from stepwell.model.notes import MOST_STEPS, StepNote
from stepwell.store.pool import Transaction
from tests.factory import claimed
from tests.inside import bodies
from tests.waiting_for import until


def told(seen: list[Any]) -> dict[str, tuple[float, float | None]]:
    return {each.step: (each.done, each.total) for each in seen}


async def test_progress_is_seen_while_the_body_runs_and_the_last_word_counts(app: App) -> None:
    go_on = asyncio.Event()

    @app.task
    async def work() -> None:
        for row in range(11):
            current.progress("rows", done=row, total=100, detail={"file": "a.csv"})
        current.progress("files", done=0.5)
        await go_on.wait()
        current.progress("rows", done=100, total=100)

    async with app.worker():
        run = await work.start()
        seen = await until(run.progress)
        assert (await run.info()).state == "running"
        assert told(seen) == {"rows": (10, 100), "files": (0.5, None)}
        rows = next(each for each in seen if each.step == "rows")
        assert (type(rows.done), rows.detail) == (int, {"file": "a.csv"})
        assert rows.at.tzinfo is not None
        go_on.set()
        await run.result(10)

        async def is_done() -> bool:
            return told(await run.progress())["rows"] == (100, 100)

        await until(is_done)


async def test_progress_of_a_thread_and_of_a_process_is_seen_live(app: App, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    tasks = [bodies.define(app, bodies.tells, executor=kind, name=kind) for kind in ("thread", "process")]
    async with app.worker():
        runs = [await task.start(str(gate)) for task in tasks]
        for run in runs:

            async def is_there(run: Any = run) -> bool:
                return told(await run.progress()) == {"rows": (3, 4)}

            await until(is_there)
            assert (await run.progress())[0].detail == {"file": "b.csv"}
            assert (await run.info()).state == "running"
        gate.touch()
        for run in runs:
            await run.result(20)


async def test_many_threads_may_tell_at_once(app: App) -> None:
    @app.task
    async def work() -> None:
        def tell(step: int) -> None:
            for done in range(200):
                current.progress(f"step {step}", done=done)

        await asyncio.gather(*(asyncio.to_thread(tell, step) for step in range(10)))

    async with app.worker():
        run = await work.start()
        await run.result(20)

        async def all_told() -> bool:
            return told(await run.progress()) == {f"step {step}": (199, None) for step in range(10)}

        await until(all_told)


async def test_a_database_that_is_away_neither_holds_the_body_up_nor_fails_it(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    database, is_away = app._opening.database, True
    rows = database.rows
    tried = asyncio.Event()

    async def away(name: str, /, **values: Any) -> Any:
        if name == "note_steps" and is_away:
            tried.set()
            raise Unavailable("away")
        return await rows(name, **values)

    monkeypatch.setattr(database, "rows", away)
    took: list[float] = []

    @app.task
    async def work() -> str:
        began = time.perf_counter()
        for row in range(1000):
            current.progress("rows", done=row)
        took.append(time.perf_counter() - began)
        async with asyncio.timeout(30):
            await tried.wait()
        return "ended"

    async with app.worker():
        run = await work.start()
        assert await run.result(10) == "ended"
        assert took[0] < 10
        assert await run.progress() == []
        is_away = False
        assert told(await until(run.progress)) == {"rows": (999, None)}


async def test_a_body_that_ends_is_told_of_before_its_time(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.worker.notes.EVERY", 60.0)

    @app.task
    async def work(n: int) -> None:
        current.progress("rows", done=n)

    async with app.worker():
        await (await work.start(0)).result(10)
        run = await work.start(1)
        await run.result(10)
        await until(run.progress)


async def test_what_is_left_to_say_is_said_when_the_worker_stops(app: App) -> None:
    @app.task
    async def work() -> None:
        current.progress("rows", done=1)

    async with app.worker():
        run = await work.start()
        await run.result(10)
    assert told(await run.progress()) == {"rows": (1, None)}


async def test_a_late_word_of_an_earlier_attempt_does_not_count(tx: Transaction) -> None:
    claim = await claimed(tx)

    def note(attempt: int, done: float) -> StepNote:
        return StepNote(claim.id, attempt, "rows", done, None, None, time.monotonic())

    await notes.write(tx, [note(2, 20)], [], now=time.monotonic())
    await notes.write(tx, [note(1, 99)], [], now=time.monotonic())
    assert told(await notes.progress(tx, claim.id)) == {"rows": (20, None)}
    await notes.write(tx, [note(2, 21)], [], now=time.monotonic())
    assert told(await notes.progress(tx, claim.id)) == {"rows": (21, None)}


async def test_the_steps_of_an_attempt_are_bounded(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def work() -> None:
        for step in range(MOST_STEPS + 50):
            current.progress(f"{step}", done=1)

    async with app.worker():
        run = await work.start()
        await run.result(10)
    assert len(await run.progress()) == MOST_STEPS
    assert "too many steps" in caplog.text


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ({"step": ""}, InvalidSetting),
        ({"step": "x" * 201}, InvalidSetting),
        ({"step": "a\nb"}, InvalidSetting),
        ({"done": float("nan")}, InvalidSetting),
        ({"done": "1"}, None),
        ({"done": "one"}, InvalidSetting),
        ({"done": True}, InvalidSetting),
        ({"done": 10**400}, InvalidSetting),
        ({"total": None}, None),
        ({"detail": {"x": object()}}, NotEncodable),
        ({"detail": "row 7"}, InvalidSetting),
        ({"detail": {"x": "y" * 10_001}}, NotEncodable),
    ],
)
async def test_a_wrong_word_is_refused_at_the_call(app: App, call: dict[str, Any], error: Any) -> None:
    raised: list[Any] = []

    @app.task
    async def work() -> None:
        try:
            given = {"step": "rows", "done": 1, **call}
            current.progress(given.pop("step"), **given)
        except Exception as caught:
            raised.append(type(caught))

    async with app.worker():
        await (await work.start()).result(10)
    assert raised == ([] if error is None else [error])


def test_there_is_no_progress_outside_of_a_run() -> None:
    with pytest.raises(NotInARun):
        current.progress("rows", done=1)
    with pytest.raises(NotInARun):
        current.heartbeat()


async def test_the_blocking_handle_tells_it_too(app: App) -> None:
    @app.task
    async def work() -> None:
        current.progress("rows", done=1)
        logging.getLogger("shop.inside").warning("half way")

    async with app.worker():
        run = await work.start()
        await run.result(10)
    seen, lines = await asyncio.to_thread(lambda: (run.sync.progress(), run.sync.logs(1)))
    assert told(seen) == {"rows": (1, None)}
    assert [each.message for each in lines] == ["half way"]
    await asyncio.to_thread(app.portal.close)
