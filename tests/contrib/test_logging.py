"""Which run a log record belongs to, and events as lines of JSON."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from stepwell import App, Retry, RunFailed, current, workflow
from stepwell.contrib.logging import JsonLines, RunFields

log = logging.getLogger("shop")


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[Any] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    handler.addFilter(RunFields())
    root = logging.getLogger()
    root.addHandler(handler)
    yield handler
    root.removeHandler(handler)


@pytest.mark.parametrize("where", ["inline", "thread"])
async def test_a_record_of_a_body_tells_its_run(app: App, kept: Kept, where: str) -> None:
    async def on_loop() -> None:
        log.warning("attempt %d", current.attempt)
        if current.attempt == 1:
            raise ValueError("again")

    def in_thread() -> None:
        log.warning("attempt %d", current.attempt)
        if current.attempt == 1:
            raise ValueError("again")

    task: Any = app.task(name="shop.charge", queue="cards", retry=Retry(delay=0))(
        on_loop if where == "inline" else in_thread
    )
    async with app.worker():
        run = await task.start()
        await run.result(timeout=30)
    log.warning("outside")
    told = [
        (each.getMessage(), each.run_id, each.run_name, each.attempt, each.queue)
        for each in kept.records
        if each.name == "shop"
    ]
    assert told == [
        ("attempt 1", str(run.id), "shop.charge", 1, "cards"),
        ("attempt 2", str(run.id), "shop.charge", 2, "cards"),
        ("outside", None, None, None, None),
    ]


async def test_a_record_of_a_workflow_tells_its_run(app: App, kept: Kept) -> None:
    @app.workflow(name="shop.order")
    async def order() -> None:
        log.warning("from %s", workflow.info().name)

    async with app.worker():
        run = await order.start()
        await run.result(timeout=30)
    (record,) = [each for each in kept.records if each.name == "shop"]
    assert (record.run_id, record.run_name, record.attempt) == (str(run.id), "shop.order", None)


async def test_the_log_of_failures_tells_the_run_that_failed(app: App, kept: Kept) -> None:
    @app.task(name="shop.charge", retry=Retry(attempts=1))
    async def charge() -> None:
        raise ValueError("no")

    async with app.worker():
        run = await charge.start()
        with pytest.raises(RunFailed):
            await run.result(timeout=30)
    (record,) = [each for each in kept.records if each.name == "stepwell.runs"]
    assert (record.run_id, record.run_name, record.attempt, record.queue) == (str(run.id), "shop.charge", 1, "default")


async def test_each_event_is_a_line_of_json_with_its_fields(app: App) -> None:
    stream = io.StringIO()
    app.on("run.failed", "run.retrying", "worker.stopped")(JsonLines(stream))

    @app.task(name="shop.charge", retry=Retry(attempts=2, delay=0), tags={"order": 7})
    async def charge() -> None:
        raise ValueError("no\nway")

    async with app.worker(name="here"):
        run = await charge.start()
        with pytest.raises(RunFailed):
            await run.result(timeout=30)
    retrying, failed, stopped = (json.loads(line) for line in stream.getvalue().splitlines())
    assert [each["type"] for each in (retrying, failed, stopped)] == ["run.retrying", "run.failed", "worker.stopped"]
    assert (failed["run_id"], failed["name"], failed["attempt"]) == (str(run.id), "shop.charge", 2)
    assert (failed["error"]["type"], failed["error"]["message"]) == ("ValueError", "no\nway")
    assert failed["tags"] == {"order": 7}
    assert retrying["next_at"].endswith("Z") or "+00:00" in retrying["next_at"]
    assert stopped["name"] == "here"
