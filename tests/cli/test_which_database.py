"""Which database a command is for: flags, the environment, the app that is named, or one that is there already."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Command, Process

from stepwell import App
from stepwell.cli.loading import named_app
from stepwell.cli.options import chosen

Write = Callable[..., None]
HERE = "postgresql://h/here"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write files of a project, in whose directory `below` commands are given."""
    for name in ("STEPWELL_DSN", "STEPWELL_APP", "STEPWELL_HOME", "STEPWELL_SCHEMA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.path", list(sys.path))
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    before = set(sys.modules)

    def write(**files: str) -> None:
        for name, text in files.items():
            (tmp_path / name.replace("__", ".")).write_text(text)
        for module in set(sys.modules) - before:
            sys.modules.pop(module)

    yield write
    write()


def app_at(dsn: str, **options: str) -> str:
    return f"from stepwell import App\napp = App({dsn!r}, **{options!r})\n"


def points_at(reference: str) -> str:
    return f'[tool.other]\nx = 1\n[tool.stepwell]\napp = "{reference}"\n'


def found(**flags: str | None) -> tuple[str | None, str]:
    settings = chosen(flags.get("dsn"), flags.get("schema"), flags.get("home"))
    return settings.dsn, settings.schema


def test_a_command_asks_the_database_and_schema_of_the_app_that_the_project_names(project: Write) -> None:
    project(ours__py=app_at(HERE, schema="shop"), pyproject__toml=points_at("ours:app"))
    assert found() == (HERE, "shop")
    project(pyproject__toml=points_at("ours.py"))
    assert found() == (HERE, "shop"), "its path is from where the file is"


def test_what_is_said_nearer_wins(project: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    project(ours__py=app_at(HERE, schema="shop"), theirs__py=app_at("postgresql://h/theirs"))
    project(pyproject__toml=points_at("ours:app"))
    monkeypatch.syspath_prepend(str(Path.cwd().parent))
    monkeypatch.setenv("STEPWELL_APP", "theirs:app")
    assert found() == ("postgresql://h/theirs", "stepwell"), "STEPWELL_APP goes before the project"
    monkeypatch.delenv("STEPWELL_APP")
    monkeypatch.setenv("STEPWELL_DSN", "postgresql://h/env")
    assert found() == ("postgresql://h/env", "shop"), (
        "the DSN of the environment goes before the app's, with its schema"
    )
    monkeypatch.setenv("STEPWELL_SCHEMA", "mine")
    assert found() == ("postgresql://h/env", "mine")
    assert found(dsn="postgresql://h/flag", schema="flagged") == ("postgresql://h/flag", "flagged")
    assert found(home="/x")[0] is None, "a home asks for the embedded database in it"


async def test_the_option_goes_before_all_but_a_dsn(
    project: Write, dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepwell.cli.main import run

    project(ours__py=app_at(dsn), pyproject__toml=points_at("no_such:app"))
    async with App(dsn) as app:
        await app.start("x")
        import asyncio

        assert await asyncio.to_thread(run, ["--app", "../ours.py", "runs", "--json"]) == 0
        assert '"name":"x"' in capsys.readouterr().out
        assert await asyncio.to_thread(run, ["runs", "--dsn", dsn]) == 0, "the app is not even loaded"


def test_the_nearest_project_that_names_an_app_is_taken(project: Write) -> None:
    project(pyproject__toml=points_at("ours:app"))
    Path("pyproject.toml").write_text("[project]\nname = 'a part of it'\n")
    named = named_app()
    assert named is not None
    assert (named.reference, named.root) == ("ours:app", Path.cwd().parent)


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        (points_at("no_such:app"), "pyproject.toml): there is no module 'no_such'"),
        ("[tool.stepwell]\napp = 3\n", 'is a text: "module:app"'),
        ("[tool.stepwell]\nap = 'x:app'\n", "has one setting, app"),
        ("[tool.stepwell\n", "it cannot be read"),
    ],
)
async def test_an_app_that_cannot_be_loaded_is_told_with_the_place_that_names_it(
    project: Write, capsys: pytest.CaptureFixture[str], toml: str, says: str
) -> None:
    from stepwell.cli.main import run

    project(pyproject__toml=toml)
    assert run(["runs"]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said


async def test_workers_take_the_app_that_is_named(process: Process, dsn: str, client: App, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "ours.py").write_text(app_at(dsn) + "@app.task\nasync def add(a: int) -> int:\n    return a\n")
    (tmp_path / "pyproject.toml").write_text(points_at("ours.py:app"))
    run = await client.start("ours.add", 3)
    async with process("worker", "--processes", "2", cwd=tmp_path / "below") as worker:
        await worker.line("ready: worker")
        assert await run.result(timeout=20) == 3
    async with process("dev", cwd=tmp_path / "below") as dev:
        assert (await dev.line("watching (.*) for saves"))[1] == str(tmp_path)
        await dev.line("ready: worker")
    async with process("preflight", cwd=tmp_path / "below") as preflight:
        assert await preflight.exit_code() == 0
    async with process("--app", "../ours.py", "start", "ours.add", "--input", '"x"', cwd=tmp_path / "below") as start:
        assert await start.exit_code() == 2, "the definition refuses what is no number"


@pytest.mark.parametrize(
    "arguments",
    [
        ("runs",), ("queues",), ("show", "k"), ("explain", "k"), ("retry", "k", "--yes"), ("doctor",), ("migrate",),
        ("bench",), ("top", "--once"), ("start", "x"),
        ("start", "plain.x", "--app", "../plain.py"), ("worker", "../plain.py"),
        ("worker", "../plain.py", "--processes", "2"), ("preflight", "../plain.py"), ("--app", "../plain.py", "runs"),
    ],
    ids=" ".join,
)  # fmt: skip
async def test_no_command_makes_a_database_that_nobody_asked_for(
    process: Process, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "plain.py").write_text("from stepwell import App\napp = App()\n@app.task\nasync def x(): ...\n")
    async with process(*arguments, cwd=tmp_path / "below", STEPWELL_DSN="") as command:
        assert await command.exit_code() == 2
    for way in ("STEPWELL_DSN", "STEPWELL_APP", "--embedded", "pyproject.toml"):
        assert way in command.output
    assert "Traceback" not in command.output
    assert not (tmp_path / "below" / ".stepwell").exists()


async def test_a_database_that_is_there_or_asked_for_is_used(process: Process, tmp_path: Path) -> None:
    home = tmp_path / "home"
    for arguments, says in (
        (("migrate", "--embedded"), "making an embedded one"),
        (("runs", "--json"), ""),
        (("doctor",), "embedded"),
    ):
        async with process(*arguments, cwd=tmp_path, STEPWELL_DSN="", STEPWELL_HOME=str(home)) as command:
            assert await command.exit_code() == 0
        assert says in command.output
        assert not arguments[1:] or "--embedded" in arguments or "making" not in command.output


@pytest.mark.parametrize("command", ["worker", "dev", "preflight"])
async def test_a_command_without_an_app_says_how_to_name_one(stepwell: Command, command: str) -> None:
    said = await stepwell(command)
    assert said.code == 2
    assert "[tool.stepwell]" in said.err
