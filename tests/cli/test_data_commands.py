from __future__ import annotations

import asyncio
import unicodedata
import uuid

import pytest
from click.testing import CliRunner

from stepwell import Fatal
from stepwell.cli import runs as commands
from stepwell.cli.main import COMMANDS, cli
from stepwell.engine import reads

NOBODY = "postgresql://ann:hunter2@127.0.0.1:1/tea"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    answer = CliRunner().invoke(cli, [name, "--help"])
    assert answer.exit_code == 0
    assert answer.output.startswith(f"Usage: cli {name}")


async def test_start_takes_arguments_as_json_and_prints_the_id(stepwell, client):
    said = await stepwell("start", "shop.add", "--input", "2", "--input", "b=3", "--queue", "q", "--priority", 7)
    info = await client.run(uuid.UUID(said.out.strip())).info()
    assert (info.input, info.queue, info.priority, info.state) == ({"*": [2], "b": 3}, "q", 7, "pending")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "missing a required argument: 'a'"),
        (("--input", "1", "--input", "2", "--input", "3"), "too many positional arguments"),
        (("--input", "1", "--input", "c=3"), "unexpected keyword argument 'c'"),
    ],
)
async def test_arguments_that_the_definition_does_not_take_are_told_and_nothing_is_started(
    stepwell, client, given, said
):
    answer = await stepwell("start", "shop.add", "--app", "shop:app", *given)
    assert answer.code == 2
    assert said in answer.err
    assert "Traceback" not in answer.err
    assert (await client.runs()).items == []


async def test_start_waits_for_a_result(stepwell, app):
    app.task(_double, name="double")
    async with app.worker():
        said = await stepwell("start", "double", "--input", "21", "--wait")
    assert (said.code, said.out) == (0, "42\n")


async def _double(n: int) -> int:
    return n * 2


async def test_the_same_key_leads_to_the_same_run_and_to_no_other_input(stepwell):
    first = await stepwell("start", "shop.add", "--input", "1", "--key", "k", "--json")
    again = await stepwell("start", "shop.add", "--input", "1", "--key", "k", "--json")
    assert first.json == again.json
    assert (await stepwell("start", "shop.add", "--input", "2", "--key", "k")).code == 2


async def test_with_the_app_its_definition_is_used(stepwell):
    assert (await stepwell("start", "shop.add", "--app", "shop.py", "--input", '"no number"')).code == 2
    assert (await stepwell("start", "shop.no_such", "--app", "shop.py")).code == 2
    assert (await stepwell("start", "shop.add", "--app", "shop.py", "--input", "1", "--delay", "1h")).code == 0
    page = (await stepwell("runs", "--json")).json
    assert [(item["state"], item["input"]) for item in page["items"]] == [("scheduled", {"a": 1})]


async def test_runs_are_listed_page_by_page(stepwell, client):
    started = [(await client.start("shop.add", n)).id for n in range(3)]
    first = (await stepwell("runs", "--limit", 2, "--json")).json
    rest = (await stepwell("runs", "--after", first["next"], "--json")).json
    assert [item["id"] for item in first["items"] + rest["items"]] == [str(each) for each in reversed(started)]
    assert (await stepwell("runs", "--name", "shop.other", "--json")).json == {"items": [], "next": None}
    assert (await stepwell("runs", "--state", "pending", "--state", "failed")).out.count("shop.add") == 3


async def test_a_list_that_hardly_any_run_is_in_ends_in_time_and_says_how_to_go_on(stepwell, client, monkeypatch):
    monkeypatch.setattr(reads, "LOOKED_AT", 2)
    rare = await client.start("shop.rare")
    others = [(await client.start("shop.add", n)).id for n in range(4)]
    said = await stepwell("runs", "--name", "shop.rare", "--json")
    assert ([item["id"] for item in said.json["items"]], said.json["next"], said.err) == ([str(rare.id)], None, "")
    monkeypatch.setattr(commands, "PATIENCE", 1e-6)
    said = await stepwell("runs", "--name", "shop.rare")
    assert f"found 0 in 0 s; there may be more. --since bounds it; to go on: --after {others[2]}" in said.err
    assert (await stepwell("runs", "--name", "shop.rare", "--after", others[0], "--json")).json["items"] != []


async def test_cancel_and_retry_do_what_they_can_and_say_what_they_cannot(stepwell, client):
    run = await client.definition("shop.add").options(key="k").start(1)
    assert (await stepwell("retry", run.id)).code == 1
    said = await stepwell("cancel", "k", "no-such-key", "--json")
    assert (said.code, said.out.count("\n")) == (3, 2)
    said = await stepwell("retry", run.id, "--json")
    assert (said.code, said.json["run"]) == (0, str(run.id))
    assert (await client.run(said.json["id"]).info()).retry_of == run.id


async def test_what_users_wrote_cannot_steer_the_terminal(stepwell, app):
    app.task(_break, name="break")
    async with app.worker():
        assert (
            await stepwell("start", "break", "--input", '"\\u001b]0;title\\u0007"', "--key", "k", "--wait")
        ).code == 1
    for command in (("show", "k"), ("show", "k", "--json"), ("runs",), ("runs", "--json")):
        said = await stepwell(*command)
        assert said.code == 0
        assert not [each for each in said.out if each != "\n" and unicodedata.category(each) in ("Cc", "Cf", "Zl")]
    error = (await stepwell("show", "k", "--json")).json["attempts"][0]["error"]
    assert error["message"] == "\x1b[31m \x9b2J \u202eturned\nsecond"
    assert "Traceback" in error["traceback"]


async def _break(text: str) -> None:
    raise Fatal("\x1b[31m \x9b2J \u202eturned\nsecond")


async def test_exit_codes(stepwell):
    codes = {
        ("show", "no-such-key"): 3,
        ("show", uuid.uuid4()): 3,
        ("runs", "--state", "asleep"): 2,
        ("runs", "--limit", 0): 2,
        ("start", "x", "--input", "no json"): 2,
        ("start", "x", "--delay", "soon"): 2,
        ("runs", "--schema", "Not A Schema"): 2,
        ("runs", "--dsn", "mysql://x"): 2,
        ("runs", "--dsn", "postgresql://ann:hun/ter2@h/db"): 2,
        ("no-such-command",): 2,
        ("runs", "--schema", "not_migrated"): 1,
        ("runs", "--dsn", NOBODY): 4,
        ("doctor", "--dsn", NOBODY): 4,
        ("migrate", "--dsn", NOBODY): 4,
    }
    said = {command: await stepwell(*command) for command in codes}
    assert {command: each.code for command, each in said.items()} == codes
    assert all(each.out == "" and each.err and "ter2" not in each.err for each in said.values())


async def test_a_database_that_is_not_there_is_named(stepwell, dsn):
    said = await stepwell("runs", "--dsn", dsn.replace("/test_", "/no_such_"))
    assert said.code == 4
    assert 'database "no_such_' in said.err


async def test_doctor_finds_work_that_nobody_takes(stepwell, client, app):
    await client.start("shop.add", 1)
    said = await stepwell("doctor", "--json")
    assert said.code == 1
    assert [each["subject"] for each in said.json["findings"] if each["verdict"] == "bad"] == ["workers"]
    ready = asyncio.Event()
    app.telemetry.listen(lambda name, _facts: ready.set() if name == "worker.ready" else None)
    async with app.worker():
        await ready.wait()
        assert (await stepwell("doctor")).code == 0
    assert (await stepwell("doctor", "--schema", "not_migrated")).code == 1
