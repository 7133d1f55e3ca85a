"""`docs/tour.md` says where things are. This looks whether they are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from stepwell.store.statements import parse

ROOT = Path(__file__).parents[1]
TOUR = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
SEVEN = [
    "client/client.py",
    "engine/runs.py",
    "store/sql/claims.sql",
    "dispatch/postgres.py",
    "worker/worker.py",
    "worker/run_task.py",
    "engine/settle.py",
]
LINES = 1500


def stops() -> list[tuple[str, list[str]]]:
    """The files of the tour in its order, each with the names it shows there."""
    sections = re.split(r"^## \d\. `(.+?)`$", TOUR, flags=re.MULTILINE)
    return [
        (file, re.findall(r"^- `([\w.]+)`", text.split("\n## ")[0], re.MULTILINE))
        for file, text in zip(sections[1::2], sections[2::2], strict=True)
    ]


def names_in(path: Path) -> set[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".sql":
        return {statement.name for statement in parse(text)}
    names = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{each.name}" for each in node.body if hasattr(each, "name")}
    return names


def test_the_tour_goes_through_the_seven_files_in_order() -> None:
    assert [file for file, _ in stops()] == [f"src/stepwell/{file}" for file in SEVEN]


@pytest.mark.parametrize(("file", "names"), stops(), ids=[file for file, _ in stops()])
def test_everything_named_is_where_the_tour_says(file: str, names: list[str]) -> None:
    assert len(names) >= 2
    assert [name for name in names if name not in names_in(ROOT / file)] == []


def test_every_other_file_the_tour_mentions_exists() -> None:
    mentioned = set(re.findall(r"`([\w/]+\.(?:py|sql))`", TOUR)) | set(re.findall(r"`([\w/]+/)`", TOUR))
    places = (ROOT, ROOT / "src" / "stepwell")
    assert mentioned
    assert [name for name in sorted(mentioned) if not any((place / name).exists() for place in places)] == []


def test_the_tour_can_be_read_in_one_sitting() -> None:
    assert sum(len((ROOT / "src/stepwell" / file).read_text().splitlines()) for file in SEVEN) < LINES
