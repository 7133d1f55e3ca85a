"""`app.operator.runs`: the list of runs, and the verbs for one."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stepwell import (
    AmbiguousId,
    App,
    InvalidSetting,
    NotFinished,
    NotFound,
    Retry,
    RunFailed,
    State,
    WrongInput,
    WrongUse,
)
from tests.operator.answers import as_json


async def test_an_operator_is_of_an_open_app(dsn: str) -> None:
    with pytest.raises(WrongUse, match="not open"):
        App(dsn).operator  # noqa: B018


async def test_a_list_goes_on_page_by_page(app: App) -> None:
    runs = [await app.start("tests.task", n) for n in range(5)]
    await app.operator.runs.cancel(runs[0].id)
    first = await app.operator.runs.list(state="pending", limit=3)
    rest = await app.operator.runs.list(state=["pending"], limit=3, after=str(first.next))
    assert [info.id for info in (*first.items, *rest.items)] == [run.id for run in reversed(runs[1:])]
    assert rest.next is None
    assert as_json(first)["items"][0]["id"] == str(runs[4].id)
    with pytest.raises(InvalidSetting, match="1 to 1000"):
        await app.operator.runs.list(limit=1001)


async def test_a_run_is_found_by_id_by_key_and_by_the_beginning_of_its_id(app: App) -> None:
    run = await app.definition("tests.task").options(key="order-7").start(1)
    find = app.operator.runs.find
    assert {await find(run.id), await find(str(run.id)), await find("order-7"), await find(str(run.id)[:30])} == {
        run.id
    }
    with pytest.raises(NotFound, match="order-8"):
        await find("order-8")
    with pytest.raises(NotFound, match="00000000"):
        await find("00000000")


async def test_an_ambiguous_beginning_names_the_newest_five_runs(app: App) -> None:
    runs = await app.definition("tests.task").start_many([(n,) for n in range(7)])
    beginning = str(runs[0].id)[:13]
    assert all(str(run.id).startswith(beginning) for run in runs)
    with pytest.raises(AmbiguousId) as raised:
        await app.operator.runs.find(beginning)
    newest = [run.id for run in reversed(runs)]
    assert [each.id for each in raised.value.matches[:5]] == newest[:5]
    assert str(newest[4]) in str(raised.value)
    assert str(newest[5]) not in str(raised.value)
    assert str(raised.value).endswith("… and more")


async def test_the_detail_of_a_run_has_its_attempts_and_where_they_ran(app: App) -> None:
    @app.task(name="tests.fails", retry=Retry(attempts=1))
    async def fails() -> None:
        raise ValueError("no water")

    async with app.worker(name="here"):
        run = await fails.start()
        with pytest.raises(RunFailed):
            await run.result(timeout=10)
    detail = await app.operator.runs.detail(run.id)
    assert (detail.info.state, [each.outcome for each in detail.attempts]) == (State.FAILED, ["failed"])
    assert detail.workers[detail.attempts[0].worker].name == "here"
    assert detail.workflow is None
    told = as_json(detail)
    assert told["info"]["error"]["message"] == "no water"
    assert told["why"]["causes"][0]["code"] == "finished"


async def test_the_detail_of_a_workflow_has_what_it_waits_for_its_children_and_its_last_events(
    app: App, checkout: Any, until_it_waits: Any
) -> None:
    async with app.worker():
        run = await checkout.start(1)
        await until_it_waits(run, "pay")
        detail = await app.operator.runs.detail(run.id)
    assert detail.waits.signals == ("pay",)
    assert detail.workflow is not None
    assert (detail.workflow.published, detail.workflow.started) == ({"held": 10}, 1)
    assert [child.name for child in detail.workflow.children] == ["tests.boil"]
    assert [each.idx for each in detail.workflow.tail] == list(range(1, detail.workflow.events + 1))
    assert as_json(detail)["workflow"]["children"][0]["state"] == "completed"
    assert (await app.operator.runs.waits([run.id]))[run.id] == detail.waits


async def test_a_child_that_is_gone_is_left_out_of_the_detail(
    app: App, database: Any, checkout: Any, until_it_waits: Any
) -> None:
    async with app.worker():
        run = await checkout.start(1)
        await until_it_waits(run, "pay")
    (child,) = await run.children()
    connection = await database.connect()
    await connection.execute("delete from stepwell.finished_runs where id = $1", child.id)
    await connection.close()
    detail = await app.operator.runs.detail(run.id)
    assert detail.workflow is not None
    assert (detail.workflow.started, detail.workflow.children) == (1, [])


async def test_a_workflow_is_signalled_updated_and_forked(app: App, checkout: Any, until_it_waits: Any) -> None:
    runs = app.operator.runs
    async with app.worker():
        run = await checkout.start(2)
        await until_it_waits(run, "pay")
        assert await runs.update(run.id, "add", 5, timeout=10) == 7
        sent = await runs.signal(run.id, "pay", 3)
        assert (sent.id, sent.doubt) == (run.id, None)
        assert await runs.result(run.id, timeout=10) == 23
        history = await runs.history(run.id)
        assert (history.info.id, history.events[-1].type) == (run.id, "WorkflowCompleted")
        forked = await runs.fork(run.id, 0)
        assert forked.origin == run.id
        await until_it_waits(app.run(forked.id), "pay")
    as_json([sent, history, forked])


async def test_a_signal_that_the_code_does_not_mention_is_doubted_and_sent(
    app: App, checkout: Any, until_it_waits: Any
) -> None:
    async with app.worker():
        run = await checkout.start(2)
        await until_it_waits(run, "pay")
    sent = await app.operator.runs.signal(run.id, "pays", 3)
    assert sent.doubt is not None
    assert "'pays'" in sent.doubt
    async with App(app.dsn) as other:  # it knows no code: by what the run waits for
        doubt = (await other.operator.runs.signal(run.id, "pya", 3)).doubt
    assert doubt == "tests.checkout waits for the signal 'pay', and not for 'pya': a typo?"


async def test_a_run_is_started_by_name_with_options(app: App) -> None:
    started = await app.operator.runs.start("tests.task", [1], {"b": 2}, queue="mail", key="order-7")
    assert started.key == "order-7"
    info = await app.operator.runs.info("order-7")
    assert (info.id, info.queue, info.input["b"]) == (started.id, "mail", 2)
    as_json(started)


async def test_an_input_that_does_not_fit_the_function_is_refused_before_anything_is_written(app: App) -> None:
    @app.task(name="tests.add")
    async def add(a: int) -> int:
        return a

    with pytest.raises(WrongInput, match=r"tests\.add cannot be called with this input: .*'b'"):
        await app.operator.runs.start("tests.add", [1], {"b": 2})
    assert (await app.operator.runs.list()).items == []


async def test_a_run_is_cancelled_and_started_again(app: App) -> None:
    run = await app.start("tests.task", 1)
    with pytest.raises(NotFinished):
        await app.operator.runs.retry(run.id)
    cancelled = await app.operator.runs.cancel(str(run.id))
    assert (cancelled.id, cancelled.asked) == (run.id, False)
    again = await app.operator.runs.retry(run.id)
    assert (again.origin, (await app.run(again.id).info()).retry_of) == (run.id, run.id)
    as_json([cancelled, again])


async def test_a_workflow_that_has_begun_is_asked_to_end_unless_it_is_forced(
    app: App, checkout: Any, until_it_waits: Any
) -> None:
    async with app.worker():
        runs = [await checkout.start(n) for n in range(2)]
        for run in runs:
            await until_it_waits(run, "pay")
    # No worker is there to let it clean up.
    assert (await app.operator.runs.cancel(runs[0].id)).asked
    assert not (await app.operator.runs.cancel(runs[1].id, force=True)).asked
    assert [(await run.info()).state for run in runs] != [State.CANCELLED] * 2
    assert (await runs[1].info()).state is State.CANCELLED


async def test_a_run_is_paused_and_resumed_by_somebody(app: App) -> None:
    run = await app.start("tests.task", 1)
    assert await app.operator.runs.pause(run.id, by="ann") == run.id
    why = await app.operator.runs.explain(run.id)
    assert (why.state, "ann" in why.causes[0].text) == (State.PAUSED, True)
    assert await app.operator.runs.resume(run.id) == run.id
    assert (await run.info()).state is State.PENDING
    as_json(why)


async def test_the_logs_of_a_run_are_those_of_its_attempts(app: App) -> None:

    @app.task(name="tests.says")
    async def says() -> None:
        logging.getLogger("tests").warning("boo")

    async with app.worker():
        run = await says.start()
        await run.result(timeout=10)
    lines = await app.operator.runs.logs(run.id)
    assert [(line.attempt, line.message) for line in lines] == [(1, "boo")]
    assert await app.operator.runs.logs(run.id, 2) == []
    as_json(lines)
