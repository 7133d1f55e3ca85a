"""`docs/decisions/README.md` is the index of the decisions."""

from __future__ import annotations

import re
from pathlib import Path

DECISIONS = Path(__file__).parents[2] / "docs" / "decisions"


def test_the_index_lists_every_decision_by_its_title() -> None:
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\d{4})\]\((\S+?)\) \| (.+) \|$", index, re.MULTILINE)
    pages = sorted(DECISIONS.glob("0*.md"))
    titles = [page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ") for page in pages]
    assert [(f"{number} {title}", file) for number, file, title in listed] == [
        (title, page.name) for title, page in zip(titles, pages, strict=True)
    ]
