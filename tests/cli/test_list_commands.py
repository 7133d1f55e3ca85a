"""What lists of runs show: what is blocked, what waits and for what, why a workflow failed, turns."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from stepwell import App, Retry, Run, workflow
from stepwell.cli.printing import error_in_words
from stepwell.model.errors import RunFailed, StepFailed
from tests.waiting_for import until

HERE = Path(__file__).parent


@pytest.fixture
async def flows(stepwell: Any) -> AsyncIterator[Any]:
    for name in ("flows", "flows_changed"):
        sys.modules.pop(name, None)
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    module = import_module("flows")
    async with module.app:
        yield module


class CardDeclined(Exception):
    pass


async def until_state(run: Run[Any], state: str) -> None:
    async def is_there() -> bool:
        return (await run.info()).state == state

    await until(is_there, within=15)


async def test_blocked_workflows_are_listed_with_where_their_code_does_not_fit(stepwell, flows):
    async with flows.app.worker():
        runs = [await flows.checkout.start(order) for order in (1, 2)]
        for run in runs:
            await until_state(run, "waiting")
        assert (await stepwell("runs", "--blocked", "--json")).json["items"] == []
    changed = import_module("flows_changed")
    async with changed.app, changed.app.worker():
        await runs[0].signal("pay", 1)

        async def is_blocked() -> bool:
            return len((await flows.app.runs(blocked=True)).items) == 1

        await until(is_blocked, within=15)
    (told,) = (await stepwell("runs", "--blocked", "--json")).json["items"]
    assert (told["id"], told["waits_for"]["blocked"]["idx"]) == (str(runs[0].id), 2)
    said = await stepwell("runs", "--blocked")
    assert "code that fits: event 2 is TaskScheduled flows.reserve(order), the code does" in said.out
    assert str(runs[1].id) not in said.out
    assert (await stepwell("runs", "--blocked", "--name", "other", "--json")).json["items"] == []
    assert (await stepwell("runs", "--blocked", "--state", "paused", "--json")).json["items"] == []


async def test_waiting_runs_are_listed_with_what_they_wait_for(stepwell, app):
    @app.task(name="remote", queue="nobody")
    async def remote() -> None: ...

    @app.workflow(name="for.signal")
    async def for_signal() -> None:
        await workflow.signal("pay")

    @app.workflow(name="for.timer")
    async def for_timer() -> None:
        await asyncio.sleep(3600)

    @app.workflow(name="for.child")
    async def for_child() -> None:
        await remote()

    async with app.worker(queues=["default"]):
        runs = [await each.start() for each in (for_signal, for_timer, for_child)]
        for run in runs:
            await until_state(run, "waiting")
        told = {
            each["name"]: each["waits_for"] for each in (await stepwell("runs", "--waiting", "--json")).json["items"]
        }
        lines = (await stepwell("runs", "--waiting")).out.splitlines()
    assert told["for.signal"] == {"signals": ["pay"], "runs": [], "until": None, "blocked": None}
    assert told["for.child"]["runs"] == ["remote"]
    assert told["for.timer"]["until"] is not None
    assert lines[0].split()[-2:] == ["WAITS", "FOR"]
    shown = {line.split()[2]: line for line in lines[1:]}
    assert shown["for.signal"].endswith("signal pay")
    assert "timer until 20" in shown["for.timer"]
    assert shown["for.child"].endswith("remote")
    assert (await stepwell("runs", "--waiting", "--state", "running")).code == 2


async def test_a_list_shows_the_cause_of_a_workflows_failure_first(stepwell, app):
    @app.task(name="shop.charge", retry=Retry(attempts=1))
    async def charge() -> None:
        raise CardDeclined("no money")

    @app.workflow(name="shop.pay")
    async def pay() -> None:
        await charge()

    @app.workflow(name="shop.order")
    async def order() -> None:
        await pay()

    async with app.worker():
        run = await order.start()
        await until_state(run, "failed")
    (line,) = [line for line in (await stepwell("runs")).out.splitlines() if str(run.id) in line]
    assert f"  {__name__}.CardDeclined: no money" in line  # first, and cut only behind


@pytest.mark.parametrize("wrap", [RunFailed, StepFailed])
def test_the_cause_is_found_however_deep_it_is(wrap: Callable[..., RunFailed]) -> None:
    run_id = uuid4()
    inner = wrap(run_id, "shop.charge", 3, "shop.CardDeclined", "no money:\nnone", "raised")
    assert error_in_words("stepwell." + type(inner).__name__, str(inner)) == (
        "shop.CardDeclined: no money:\nnone (in shop.charge)"
    )
    outer = RunFailed(run_id, "shop.pay", 1, "stepwell." + type(inner).__name__, str(inner), "gave_up")
    assert error_in_words("stepwell.RunFailed", str(outer)) == "shop.CardDeclined: no money:\nnone (in shop.charge)"
    assert error_in_words("ValueError", str(outer)) == f"ValueError: {outer}"
    assert error_in_words("stepwell.RunFailed", "by hand") == "stepwell.RunFailed: by hand"


async def test_what_counts_the_claims_of_a_workflow_calls_them_turns(stepwell, app: App):
    @app.workflow(name="shop.pay")
    async def pay() -> None:
        await workflow.signal("paid")

    @app.task(name="shop.add")
    async def add() -> None: ...

    async with app.worker():
        run, task = await pay.start(), await add.start()
        await task.result(10)
        await until_state(run, "waiting")
        await run.signal("paid")
        await run.result(10)
    shown = (await stepwell("show", run.id)).out
    assert "turns     2, of which 0 failed" in shown
    assert "\nturn 2: completed" in shown
    assert "attempt" not in shown
    assert ", in turn 2" in (await stepwell("explain", run.id)).out
    lines = {line.split()[2]: line for line in (await stepwell("runs")).out.splitlines()[1:]}
    assert "turn 2" in lines["shop.pay"]
    assert "turn" not in lines["shop.add"]
    assert "\nattempt 1: completed" in (await stepwell("show", task.id)).out
    assert ", at attempt 1" in (await stepwell("explain", task.id)).out
