"""The commands about workflows: history, signal, update, pause, resume, fork, retry, replay, preflight, show."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from stepwell import Run, workflow
from tests.waiting_for import until

HERE = Path(__file__).parent


@pytest.fixture
async def flows(stepwell: Any) -> AsyncIterator[Any]:
    """The module of the workflows, with an app that is open on the test's own database."""
    for name in ("flows", "flows_changed"):
        sys.modules.pop(name, None)
    if str(HERE) not in sys.path:
        sys.path.insert(0, str(HERE))
    module = import_module("flows")
    async with module.app:
        yield module


async def paying(flows: Any, order: int = 1) -> Run[int]:
    """A run that waits for its signal."""
    run: Run[int] = await flows.checkout.start(order)
    await until(run.state, within=15)

    async def is_waiting() -> bool:
        return (await run.info()).state == "waiting"

    await until(is_waiting, within=15)
    return run


async def test_history_lists_what_happened_and_what_was_asked_for(stepwell, flows):
    async with flows.app.worker():
        run = await paying(flows)
    said = await stepwell("history", run.id)
    assert said.code == 0
    assert said.out.splitlines()[0].split() == ["EVENT", "AT", "TYPE", "COMMAND", "WHAT", "DETAILS"]
    assert "TaskScheduled" in said.out
    assert "flows.reserve(order)" in said.out
    told = (await stepwell("history", run.id, "--json")).json
    assert [each["idx"] for each in told] == list(range(1, len(told) + 1))
    assert told[0]["type"] == "WorkflowStarted"
    assert told[0]["data"]["version"] == flows.checkout.version
    assert (await stepwell("history", run.id, "--json", "--tail", 1)).json == told[-1:]
    assert (await stepwell("history", "nobody")).code == 3


async def test_signal_update_pause_and_resume(stepwell, flows):
    async with flows.app.worker():
        run = await paying(flows)
        assert (await stepwell("update", run.id, "add", "3")).out == "3\n"
        assert (await stepwell("update", run.id, "add", "more=4", "--json")).json == {"update": "add", "answer": 7}
        refused = await stepwell("update", run.id, "add", "--timeout", "5s", "--", "-1")
        assert refused.code == 1
        assert "only more" in refused.err
        assert (await stepwell("pause", run.id, "--json")).json == {"id": str(run.id)}
        paused = await stepwell("explain", run.id, "--json")
        assert next(each["facts"]["by"] for each in paused.json["causes"] if each["code"] == "run_paused")
        assert (await stepwell("signal", run.id, "pay", "5")).out == f"{run.id} signal pay sent\n"
        assert (await run.info()).state == "paused"
        assert (await stepwell("resume", run.id)).code == 0
        assert await run.result(timeout=20) == 10 + 5 + 7 + 100
    assert (await stepwell("signal", run.id, "pay", "no json")).code == 2
    assert (await stepwell("signal", run.id, "pay", "1")).code == 1  # it is finished
    assert (await stepwell("signal", "nobody", "pay", "1")).code == 3
    assert (await stepwell("pause", "nobody")).code == 3


async def test_fork_and_retry(stepwell, flows):
    async with flows.app.worker():
        run = await paying(flows)
        at = len(await run.history())
        told = (await stepwell("fork", run.id, "--at", at, "--json")).json
        assert (told["id"], told["at"]) == (str(run.id), at)
        fork = flows.app.run(told["fork"])
        await fork.signal("pay", 1)
        assert await fork.result(timeout=20) == 111
        assert f"{run.id} forked at event {at} as " in (await stepwell("fork", run.id, "--at", at)).out
        assert (await stepwell("fork", run.id, "--at", 999)).code == 2
        assert (await stepwell("fork", run.id)).code == 2
        failing = await paying(flows, -1)
        await failing.signal("pay", 1)

        async def has_failed() -> bool:
            return (await failing.info()).state == "failed"

        await until(has_failed, within=15)
        said = await stepwell("retry", failing.id, "--json")
        again = flows.app.run(said.json["id"])
        assert (await again.info()).retry_of == failing.id
        assert [each.type for each in await again.history()].count("StepCompleted") == 1
        bulk = await stepwell("retry", "--state", "failed", "--kind", "workflow", "--yes", "--json")
        assert bulk.json["done"] >= 1


async def test_show_tells_of_the_history_the_children_the_state_and_what_it_waits_for(stepwell, flows):
    async with flows.app.worker():
        run = await paying(flows)
        shown = (await stepwell("show", run.id, "--json")).json
        assert shown["version"] == flows.checkout.version
        assert shown["published"] == {"held": 10}
        assert [each["name"] for each in shown["children"]] == ["flows.reserve"]
        assert shown["history"][-1]["type"] == "StatePublished"
        assert shown["events"] == len(await run.history())
        said = (await stepwell("show", run.id)).out
        for part in ("waits for the signal 'pay'", 'published {"held":10}', "children", "history", "flows.reserve"):
            assert part in said
        assert f"version   {flows.checkout.version}" in said
        versions = (await stepwell("workers", "--json")).json[0]["versions"]
        assert versions == {"flows.checkout": flows.checkout.version}


async def test_show_and_explain_tell_how_the_code_does_not_fit(stepwell, flows):
    async with flows.app.worker():
        run = await paying(flows)
    changed = import_module("flows_changed")
    async with changed.app, changed.app.worker():
        await run.signal("pay", 1)

        async def is_blocked() -> bool:
            return "blocked" in {cause.code for cause in (await run.explain()).causes}

        await until(is_blocked, within=15)
    for command in ("show", "explain"):
        said = (await stepwell(command, run.id)).out
        for part in ("flows.reserve(order)", "flows.hold(order)", f"{HERE / 'flows_changed.py'}:17 in checkout"):
            assert part in said
        (blocked,) = [
            each for each in (await stepwell(command, run.id, "--json")).json["causes"] if each["code"] == "blocked"
        ]
        assert blocked["facts"]["version"] == changed.checkout.version
        assert blocked["facts"]["idx"] == 2


async def test_an_update_that_nobody_answers_in_time_says_that_it_stays(stepwell, flows):
    async with flows.app.worker():
        run = await paying(flows)
    said = await stepwell("update", run.id, "add", "3", "--timeout", "0.1")
    assert said.code == 1
    assert "no answer to 'add' in time: the request is kept" in said.err


# -- replay


async def test_replay_of_a_stored_and_of_an_exported_history(stepwell, flows, tmp_path):
    async with flows.app.worker():
        run = await paying(flows)
    said = await stepwell("replay", run.id, "flows:app")
    assert said.code == 0, said.err
    assert "TaskScheduled flows.reserve(order)" in said.out
    assert f"({HERE / 'flows.py'}:" in said.out
    assert "it waits for signal pay" in said.out
    file = tmp_path / "history.json"
    assert (await stepwell("history", run.id, "--export", file)).code == 0
    exported = json.loads(file.read_text())
    assert (exported["format"], exported["version"]) == ("stepwell.history", 1)
    assert exported["run"]["id"] == str(run.id)
    told = (await stepwell("replay", file, "flows:app", "--json")).json
    assert told["fits"] is True
    lines = {each["what"]: str(each["line"]) for each in told["events"]}
    for what in ("TaskScheduled flows.reserve(order)", "StepCompleted flows.label", "StatePublished"):
        assert lines[what].startswith(f"{HERE / 'flows.py'}:"), lines
        assert lines[what].endswith(" in checkout")
    assert [each["idx"] for each in told["events"]] == list(range(1, len(exported["events"]) + 1))
    assert [
        each["idx"] for each in (await stepwell("replay", file, "flows:app", "--json", "--until", 2)).json["events"]
    ] == [1, 2]
    assert (await stepwell("replay", "nobody", "flows:app")).code == 3
    assert (await stepwell("replay", file, "shop:app")).code == 2


async def test_replay_stops_where_the_code_does_not_fit_and_names_the_line(stepwell, flows):
    async with flows.app.worker():
        run = await paying(flows)
    said = await stepwell("replay", run.id, "flows_changed:app")
    assert said.code == 1
    line = f"{HERE / 'flows_changed.py'}:17 in checkout"
    assert line in said.err
    assert "flows.reserve" in said.err
    told = await stepwell("replay", run.id, "flows_changed:app", "--json")
    assert told.code == 1
    assert [each["idx"] for each in told.json["events"]] == [1]
    assert told.json["mismatch"] == {
        "idx": 2, "recorded": "TaskScheduled flows.reserve(order)", "new": "TaskScheduled flows.hold(order)",
        "line": line,
    }  # fmt: skip


async def test_a_file_that_holds_no_history_is_told(stepwell, flows, tmp_path):
    file = tmp_path / "history.json"
    for text, reason in (
        ("no json", "no history"),
        ('{"format": "else", "version": 1, "run": {"id": "' + "0" * 32 + '", "name": "a", "input": {}}, "events": []}',
         "its format is 'else'"),
        ('{"format": "stepwell.history", "version": 99, "run": {"id": "' + "0" * 32
         + '", "name": "a", "input": {}}, "events": []}', "install a newer stepwell"),
    ):  # fmt: skip
        file.write_text(text)
        said = await stepwell("replay", file, "flows:app")
        assert said.code == 2
        assert reason in said.err


async def in_pdb(dsn: str, *arguments: str, say: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stepwell", "replay", *arguments, "--pdb"),
        cwd=HERE, env=os.environ | {"STEPWELL_DSN": dsn, "PYTHONDONTWRITEBYTECODE": "1"}, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(30):
        out, _ = await process.communicate(say.encode())
    assert process.returncode == 0, out.decode()
    return out.decode()


async def test_under_pdb_it_stops_at_the_users_line(dsn, stepwell, flows):
    async with flows.app.worker():
        run = await paying(flows)
    out = await in_pdb(dsn, str(run.id), "flows_changed:app", say="p ('order', order)\nquit\n")
    assert "flows_changed.py(17)checkout()" in out
    assert "('order', 1)" in out
    out = await in_pdb(dsn, str(run.id), "flows:app", "--until", "2", say="p ('order', order)\nquit\n")
    assert "flows.py(" in out
    assert "('order', 1)" in out


# -- preflight


async def test_preflight_lists_what_would_break_and_where(stepwell, flows):
    async with flows.app.worker():
        runs = [await paying(flows, order) for order in (1, 2, 3)]
        done = await paying(flows, 4)
        await done.signal("pay", 1)
        await done.result(timeout=20)
    fits = await stepwell("preflight", "flows:app")
    assert fits.code == 0, fits.err
    assert "3 open workflows: 3 fit, 0 do not" in fits.out
    broken = await stepwell("preflight", "flows_changed:app", "--json")
    assert broken.code == 1
    assert broken.json["checked"] == 3
    assert [each["id"] for each in broken.json["broken"]] == sorted(str(run.id) for run in runs)
    assert broken.json["broken"][0]["line"] == f"{HERE / 'flows_changed.py'}:17 in checkout"
    assert (await stepwell("preflight", "flows_changed:app", "--limit", 2, "--json")).json["checked"] == 2
    table = await stepwell("preflight", "flows_changed:app")
    assert table.code == 1
    assert str(runs[0].id) in table.out
    places = table.out.splitlines()[-3:]
    assert places[0].startswith(
        "3 runs of flows.checkout: where the history has TaskScheduled flows.reserve(order), the"
    )
    assert places[1].strip() == f"{HERE / 'flows_changed.py'}:17 in checkout"
    assert places[2] == "3 open workflows: 0 fit, 3 do not"
    other = await stepwell("preflight", "shop:app", "--json")
    assert (other.code, other.json["unknown"]) == (0, {"flows.checkout": 3})


async def test_what_is_pinned_to_another_version_does_not_concern_preflight(stepwell, flows):
    async with flows.app.worker():
        run = await flows.checkout.options(pinned=True).start(1)
        await until(run.state, within=15)
    told = await stepwell("preflight", "flows_changed:app", "--json")
    assert (told.code, told.json["pinned"], told.json["checked"]) == (0, {"flows.checkout": 1}, 0)
    assert (await stepwell("preflight", "flows:app", "--json")).json["checked"] == 1


@pytest.mark.parametrize("by", ["id", "filter"])
async def test_cancel_asks_a_workflow_and_with_force_it_asks_nobody(stepwell, flows, by):
    async with flows.app.worker():
        run = await paying(flows)
    named = [run.id] if by == "id" else ["--name", "flows.checkout", "--yes"]
    said = await stepwell("cancel", *named)
    assert said.code == 0
    assert "asked to end" in said.out
    assert (await run.info()).state == "pending"  # asked, and nobody is there to answer
    told = (await stepwell("cancel", *named, "--json")).json
    assert (told.get("done", 0), int(told["asked"])) == (0, 1)
    said = await stepwell("cancel", *named, "--force")
    assert said.code == 0
    assert "asked" not in said.out
    assert (await run.info()).state == "cancelled"


async def test_history_marks_what_a_rollback_did_and_nothing_else(stepwell, app):
    @app.task(name="shop.release")
    async def release(order: int) -> None: ...

    @app.step(name="shop.note")
    async def note(text: str) -> None: ...

    async def undo() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(note("undone"))
            group.create_task(asyncio.sleep(0.001))

    async def beside() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await note("left behind")

    @app.workflow(name="shop.order")
    async def order(number: int) -> None:
        await release(0)
        workflow.on_rollback(release, number)
        workflow.on_rollback(undo)
        left = asyncio.create_task(beside())
        await note("done")
        assert not left.done()
        raise ValueError("no")

    async with app.worker():
        run = await order.start(7)

        async def has_failed() -> bool:
            return (await run.info()).state == "failed"

        await until(has_failed, within=15)
    events = await run.history()
    marked = [(each.type, each.data.get("name")) for each in events if each.data.get("rollback")]
    assert sorted(marked, key=str) == [
        ("StepCompleted", "shop.note"), ("TaskScheduled", "shop.release"), ("TimerScheduled", None),
    ]  # fmt: skip
    rows = [line.split() for line in (await stepwell("history", run.id)).out.splitlines()[1:]]
    shown = [(row[3], row[5:7]) for row in rows if "rollback" in row]
    assert {kind for kind, _ in shown} == {
        "StepCompleted", "TaskScheduled", "TaskCompleted", "TimerScheduled", "TimerFired",
    }  # fmt: skip
    assert all(what[0] == "rollback" for _, what in shown)
    assert sum(row[3] == "StepCompleted" for row in rows) == 3  # of which one is the rollback's
    assert len(shown) == 5
    assert "rollback shop.release(order)" in (await stepwell("show", run.id)).out


async def test_signal_warns_of_a_name_that_the_code_does_not_mention_and_sends_it(stepwell, flows):
    async with flows.app.worker():
        run = await paying(flows)
        near = await stepwell("signal", run.id, "pya", "5")
        assert (near.code, near.out) == (0, f"{run.id} signal pya sent\n")
        assert near.err == (
            "stepwell: warning: flows.checkout waits for the signal 'pay', and not for 'pya': a typo? "
            "It was sent all the same.\n"
        )
        assert (await stepwell("signal", run.id, "refund", "5")).err == ""  # who knows what its code comes to
        told = await stepwell("signal", run.id, "refund", "5", "--app", "flows:app", "--json")
        assert told.json == {"id": str(run.id), "signal": "refund"}
        assert "does not mention the signal 'refund': it waits for 'pay'. It was sent all the same." in told.err
        assert (await stepwell("signal", run.id, "pay", "5", "--app", "flows:app")).err == ""
        assert await run.result(timeout=20) == 115
    assert [each.data["name"] for each in await run.history() if each.type == "SignalReceived"] == [
        "pya", "refund", "refund", "pay",
    ]  # fmt: skip
