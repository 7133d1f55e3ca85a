"""What a type checker says to a user: nothing about right uses, and something about every wrong one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOOD, BAD = HERE / "good.py", HERE / "bad.py"

Report = dict[str, dict[int, str]]
"""What was said, by file name and line."""


def mypy(place: Path) -> Report:
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary", "--show-error-codes",
               f"--cache-dir={place / 'mypy'}", str(GOOD), str(BAD)]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True)
    assert not said.stderr, said.stderr
    found = re.findall(r"^\S*?(\w+\.py):(\d+): error: (.*)$", said.stdout, re.MULTILINE)
    return _report((name, int(line), text) for name, line, text in found)


def basedpyright(place: Path) -> Report:
    config = place / "pyrightconfig.json"
    config.write_text(json.dumps({"typeCheckingMode": "strict", "include": [str(GOOD), str(BAD)]}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(config)]
    said = subprocess.run(command, capture_output=True, text=True)
    answer = json.loads(said.stdout)
    assert answer["summary"]["filesAnalyzed"] == 2, said.stdout
    return _report(
        (Path(each["file"]).name, each["range"]["start"]["line"] + 1, each["message"])
        for each in answer["generalDiagnostics"]
        if each["severity"] == "error"
    )


def _report(found: Iterable[tuple[str, int, str]]) -> Report:
    report: Report = {GOOD.name: {}, BAD.name: {}}
    for name, line, text in found:
        report[name][line] = text
    return report


@pytest.fixture(scope="module", params=[mypy, basedpyright], ids=lambda checker: checker.__name__)
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Report:
    checker: Callable[[Path], Report] = request.param
    return checker(tmp_path_factory.mktemp("types"))


def test_right_uses_are_accepted_with_the_types_they_should_have(report: Report) -> None:
    assert report[GOOD.name] == {}


def test_exactly_the_wrong_uses_are_refused(report: Report) -> None:
    lines = BAD.read_text().splitlines()
    marked = {number for number, line in enumerate(lines, 1) if "# E: " in line}
    said = report[BAD.name]
    accepted = [f"{number}: {lines[number - 1].strip()}" for number in sorted(marked - said.keys())]
    surplus = [f"{number}: {said[number]}" for number in sorted(said.keys() - marked)]
    assert marked
    assert (accepted, surplus) == ([], [])
