"""Failures reported by the real Sentry SDK, into a transport that keeps what it is given."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.transport import Transport

from stepwell import App, Retry, RunError, RunFailed, current, workflow
from stepwell.contrib.sentry import exceptions, install
from stepwell.model.run import Error, Reason
from tests.hooks import bodies

ONCE = Retry(attempts=1)


class Kept(Transport):
    """Keeps events, as they would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event: Any = envelope.get_event()
        if event is not None:
            self.events.append(event)


@pytest.fixture
def sent() -> Iterator[list[dict[str, Any]]]:
    kept = Kept()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(
            dsn="https://key@localhost/1", transport=kept, default_integrations=False,
            integrations=[LoggingIntegration()],
        )  # fmt: skip
        yield kept.events
    sentry_sdk.get_global_scope().set_client(None)


async def fails(task: Any, *args: Any) -> Any:
    run = await task.start(*args)
    with pytest.raises(RunFailed):
        await run.result(timeout=30)
    return run


async def test_a_final_failure_is_reported_once_with_its_traceback_and_tags(
    app: App, sent: list[dict[str, Any]]
) -> None:
    install(app)

    @app.task(name="shop.charge", queue="cards", retry=ONCE, tags={"order": 7})
    async def charge() -> None:
        try:
            raise KeyError("card")
        except KeyError as error:
            raise ValueError("declined") from error

    async with app.worker():
        run = await fails(charge)
    (event,) = sent  # and the log of failures, which Sentry hears too, is no second one
    cause, error = event["exception"]["values"]
    assert (cause["type"], cause["value"]) == ("KeyError", "'card'")
    assert (error["type"], error["value"]) == ("ValueError", "declined")
    frame = error["stacktrace"]["frames"][-1]
    assert (frame["filename"], frame["function"]) == ("test_sentry.py", "charge")
    assert frame["context_line"] == 'raise ValueError("declined") from error'
    assert event["tags"] == {
        "run_id": str(run.id), "run_name": "shop.charge", "queue": "cards", "attempt": "1", "reason": "raised",
    }  # fmt: skip
    assert event["fingerprint"] == ["shop.charge", "ValueError"]
    assert event["level"] == "error"
    assert event["contexts"]["stepwell"]["run_tags"] == {"order": 7}


@pytest.mark.parametrize("asked", [False, True], ids=["as it is", "asked for"])
async def test_an_attempt_that_will_be_tried_again_is_reported_only_if_asked(
    app: App, sent: list[dict[str, Any]], asked: bool
) -> None:
    install(app, retrying=asked)

    @app.task(retry=Retry(attempts=2, delay=0))
    async def refused() -> None:
        raise RunError("declined", code="CARD")

    async with app.worker():
        await fails(refused)
    assert [event["level"] for event in sent] == (["warning", "error"] if asked else ["error"])
    assert [event["tags"]["attempt"] for event in sent] == (["1", "2"] if asked else ["2"])
    assert {tuple(event["fingerprint"]) for event in sent} == {(refused.name, "CARD")}
    assert sent[-1]["tags"]["error_code"] == "CARD"


@pytest.mark.parametrize("where", ["inline", "thread"])
async def test_the_breadcrumbs_of_one_attempt_do_not_leak_into_another(
    app: App, sent: list[dict[str, Any]], where: str
) -> None:
    install(app)
    both = asyncio.Event()
    began: list[str] = []

    def say(name: str) -> None:
        sentry_sdk.add_breadcrumb(message=f"about {name}")
        sentry_sdk.set_tag("card", name)
        began.append(name)

    async def on_loop(name: str) -> None:
        say(name)
        if len(began) == 2:
            both.set()
        await both.wait()
        raise ValueError(name)

    def in_thread(name: str) -> None:
        say(name)
        raise ValueError(name)

    task: Any = app.task(retry=ONCE)(on_loop if where == "inline" else in_thread)
    async with app.worker():
        runs = [await task.start(name) for name in ("one", "two")]
        for run in runs:
            with pytest.raises(RunFailed):
                await run.result(timeout=30)
    told = {
        event["exception"]["values"][-1]["value"]: (
            [crumb["message"] for crumb in event["breadcrumbs"]["values"]],
            event["tags"]["card"],
        )
        for event in sent
    }
    assert told == {"one": (["about one"], "one"), "two": (["about two"], "two")}


async def test_what_a_body_reports_itself_has_the_tags_of_its_run(app: App, sent: list[dict[str, Any]]) -> None:
    install(app)
    log = logging.getLogger("shop")

    @app.task(name="shop.charge")
    async def charge() -> str:
        log.error("odd")
        return str(current.run_id)

    async with app.worker():
        run = await charge.start()
        await run.result(timeout=30)
    (event,) = sent
    assert event["logentry"]["message"] == "odd"
    assert event["tags"]["run_id"] == str(run.id)
    assert event["tags"]["run_name"] == "shop.charge"


async def test_a_failure_in_a_process_of_its_own_is_reported_as_well(app: App, sent: list[dict[str, Any]]) -> None:
    install(app)
    refused = app.task(executor="process", retry=ONCE)(bodies.refused)
    killed = app.task(executor="process", retry=ONCE)(bodies.killed)
    async with app.worker():
        await fails(refused)
        await fails(killed)
    one, two = (event["exception"]["values"][-1] for event in sent)
    assert (one["type"], one["stacktrace"]["frames"][-1]["function"]) == ("ValueError", "refused")
    assert (two["type"], two["value"]) == ("ProcessDied", "the process was killed by SIGKILL before it answered")


async def test_a_workflow_that_fails_is_reported(app: App, sent: list[dict[str, Any]]) -> None:
    install(app)

    @app.workflow(name="shop.order")
    async def order() -> None:
        await workflow.signal("go", timeout=0.01)
        raise ValueError("no")

    async with app.worker():
        await fails(order)
    (event,) = sent
    assert event["tags"]["run_name"] == "shop.order"
    assert event["contexts"]["stepwell"]["kind"] == "workflow"


def test_a_traceback_that_cannot_be_read_is_reported_as_text() -> None:
    (told,) = exceptions(Error("shop.Declined", "no", Reason.RAISED, traceback="???"))
    assert told == {"type": "Declined", "module": "shop", "value": "no"}


def test_without_the_sdk_the_error_says_how_to_install_it() -> None:
    script = """
import sys
sys.modules["sentry_sdk"] = None
from stepwell import App, WrongUse
from stepwell.contrib.sentry import install
try:
    install(App("postgresql://localhost/x"))
except WrongUse as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == "stepwell.contrib.sentry needs the Sentry SDK: pip install 'stepwell[sentry]'"
