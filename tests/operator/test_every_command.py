"""Every command is a door to a verb of the operator, which other doors can have, too; and knows nothing below."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import stepwell
from stepwell import Operator
from stepwell.cli.main import COMMANDS
from stepwell.operator.bulk import BulkVerbs
from stepwell.operator.maintenance import Maintenance
from stepwell.operator.queues import QueueVerbs
from stepwell.operator.runs import RunVerbs
from stepwell.operator.statistics import Statistics
from stepwell.operator.workers import WorkerVerbs

CLI = Path(stepwell.__file__).parent / "cli"
ROOT = CLI.parents[2]
GROUPS = {
    "runs": RunVerbs, "bulk": BulkVerbs, "queues": QueueVerbs, "workers": WorkerVerbs, "statistics": Statistics,
    "maintenance": Maintenance, "operator": Operator,
}  # fmt: skip

# Command -> the verbs that it calls.
BACKED = {
    "cancel": {"runs.cancel", "bulk.matching", "bulk.cancel"},
    "doctor": {"maintenance.doctor"},
    "explain": {"runs.explain"},
    "fork": {"runs.fork"},
    "history": {"runs.history"},
    "logs": {"runs.info", "runs.logs"},
    "migrate": {"maintenance.migrate", "maintenance.schema"},
    "pause": {"runs.pause"},
    "preflight": {"operator.preflight"},
    "queue": {"queues.pause", "queues.resume", "queues.set"},
    "queues": {"queues.list"},
    "replay": {"runs.history"},
    "resume": {"runs.resume"},
    "retry": {"runs.retry", "bulk.matching", "bulk.retry"},
    "runs": {"runs.list", "runs.waits", "runs.info"},
    "show": {"runs.detail"},
    "signal": {"runs.signal"},
    "start": {"runs.start", "runs.result", "runs.info"},
    "top": {"statistics.overview"},
    "update": {"runs.update"},
    "workers": {"workers.list"},
}
EXCEPTIONS = {
    "bench": "a measuring tool, which speaks SQL by nature",
    "check": "reads source files, and no database",
    "dev": "starts worker processes, and watches files",
    "worker": "is a worker; its live lines are `statistics.moving` and `statistics.counts`",
}


def source_of(command: str) -> str:
    return inspect.getsource(import_module(COMMANDS[command].split(":")[0]))


def test_every_command_has_a_verb_or_a_reason_to_have_none() -> None:
    assert BACKED.keys() | EXCEPTIONS.keys() == COMMANDS.keys()
    assert not BACKED.keys() & EXCEPTIONS.keys()


@pytest.mark.parametrize("command", BACKED)
def test_a_command_calls_its_verbs(command: str) -> None:
    source = source_of(command)
    for each in BACKED[command]:
        group, verb = each.split(".")
        assert re.search(rf"\.{verb}\(", source), each
        found = inspect.getattr_static(GROUPS[group], verb)
        assert inspect.iscoroutinefunction(found) or inspect.isasyncgenfunction(found), f"{each} is not async"


@pytest.mark.parametrize("group", GROUPS)
def test_every_verb_is_async_typed_and_says_what_it_does(group: str) -> None:
    for name, verb in inspect.getmembers(GROUPS[group], inspect.isfunction):
        if name.startswith("_"):
            continue
        assert inspect.iscoroutinefunction(verb) or inspect.isasyncgenfunction(verb), name
        assert verb.__doc__, name
        signature = inspect.signature(verb)
        assert signature.return_annotation is not signature.empty, name
        assert all(each.annotation is not each.empty for each in list(signature.parameters.values())[1:]), name


def modules() -> list[Path]:
    return [path for path in CLI.rglob("*.py") if "measuring" not in path.parts]


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.stem)
def test_the_command_line_speaks_no_sql_and_casts_no_door(path: Path) -> None:
    called = {
        each.func.attr if isinstance(each.func, ast.Attribute) else getattr(each.func, "id", "")
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(each, ast.Call)
    }
    assert not called & {"rows", "fetch", "fetchval", "transaction", "cast"}
    assert ".door" not in path.read_text(encoding="utf-8")


def test_the_guide_names_every_verb_and_every_command() -> None:
    page = (ROOT / "docs" / "guide" / "operator.md").read_text(encoding="utf-8")
    for group, kind in GROUPS.items():
        for name, verb in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or verb.__qualname__.split(".")[0] != kind.__name__:
                continue
            spelled = name if group in ("operator", "maintenance") else f"{group}.{name}"
            assert f"`{spelled}" in page, spelled
    assert [command for command in COMMANDS if f"`{command}" not in page] == []
