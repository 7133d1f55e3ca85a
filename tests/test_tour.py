"""`docs/tour.md` says where things are. These tests compare it with the code."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from stepwell.store.statements import parse

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "stepwell"
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
MOST_FILES, MOST_LINES = 12, 1000
FLOORS = ("doors", "app", "actors", "truth", "thought", "words")


def stops() -> list[tuple[str, list[str]]]:
    """The files of the tour in its order, each with the names it shows there."""
    sections = re.split(r"^## \d+\. `(.+?)`$", TOUR, flags=re.MULTILINE)
    return [
        (file, re.findall(r"^- `([\w.]+)`", text.split("\n## ")[0], re.MULTILINE))
        for file, text in zip(sections[1::2], sections[2::2], strict=True)
    ]


def lines_of_names_in(path: Path) -> dict[str, int]:
    """What a file defines, each with its number of lines."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        return {statement.name: len(statement.sql.splitlines()) for statement in parse(text)}
    lines = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines[node.name] = (node.end_lineno or 0) - node.lineno + 1
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines[f"{node.name}.{each.name}"] = (each.end_lineno or 0) - each.lineno + 1
    return lines


def floors_drawn() -> dict[str, str]:
    """The drawing at the top: the text beside each floor."""
    return dict(re.findall(rf"^({'|'.join(FLOORS)})  +(.+)$", TOUR, re.MULTILINE))


def test_the_tour_goes_through_at_most_twelve_files_each_numbered_in_order() -> None:
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", TOUR, re.MULTILINE)]
    assert numbers == list(range(1, len(stops()) + 1))
    assert len(stops()) <= MOST_FILES


@pytest.mark.parametrize(("file", "names"), stops(), ids=[file for file, _ in stops()])
def test_everything_named_is_where_the_tour_says(file: str, names: list[str]) -> None:
    assert len(names) >= 2
    assert [name for name in names if name not in lines_of_names_in(ROOT / file)] == []


def test_every_other_file_the_tour_mentions_exists() -> None:
    mentioned = set(re.findall(r"`([\w/]+\.(?:py|sql))`", TOUR)) | set(re.findall(r"`([\w/]+/)`", TOUR))
    assert mentioned
    assert [name for name in sorted(mentioned) if not any((place / name).exists() for place in (ROOT, PACKAGE))] == []


def test_what_the_tour_names_can_be_read_in_one_sitting() -> None:
    lines = {(file, name): lines_of_names_in(ROOT / file)[name] for file, names in stops() for name in names}
    assert sum(lines.values()) < MOST_LINES


def test_the_six_floors_are_drawn_as_the_imports_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    floors = contracts[0]["layers"]
    assert len(floors) == len(FLOORS)
    drawn = floors_drawn()
    for name, packages in zip(FLOORS, floors, strict=True):
        missing = [each for each in re.findall(r"\w+", packages) if each not in re.findall(r"\w+", drawn[name])]
        assert [each for each in missing if each != "__main__"] == [], name
