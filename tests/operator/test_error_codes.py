"""One table says how a command and an HTTP request end by each error."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module
from pathlib import Path

import pytest

import stepwell
from stepwell.model.errors import StepwellError
from stepwell.operator.errors import CODES, codes_of

PACKAGE = Path(stepwell.__file__).parent
WITHOUT = {
    "StepwellError": "the base of all others, which nothing raises itself",
    "Unmeasured": "of `stepwell bench`, which no other door has",
}
STATUSES = {400, 401, 403, 404, 409, 422, 500, 503}


def error_classes() -> list[type[StepwellError]]:
    for module in pkgutil.walk_packages([str(PACKAGE)], "stepwell."):
        if not module.name.startswith(("stepwell.__main__", "stepwell.executors.child", "stepwell.cli.measuring.w")):
            import_module(module.name)
    found, unseen = [], [StepwellError]
    while unseen:
        found.append(unseen.pop())
        unseen += found[-1].__subclasses__()
    return sorted({each for each in found if each.__module__.startswith("stepwell")}, key=lambda each: each.__name__)


@pytest.mark.parametrize("kind", error_classes(), ids=lambda kind: kind.__name__)
def test_every_error_has_an_exit_code_and_a_status_of_its_own_kind(kind: type[StepwellError]) -> None:
    by, codes = next((known, codes) for known, codes in CODES if issubclass(kind, known))
    assert (by is StepwellError) == (kind.__name__ in WITHOUT)
    assert codes_of(kind.__new__(kind)) == codes


def test_no_entry_of_the_table_is_hidden_by_one_before_it() -> None:
    kinds = [kind for kind, _ in CODES]
    assert not [kind for place, kind in enumerate(kinds) if issubclass(kind, tuple(kinds[:place]))]
    assert {codes.http for _, codes in CODES} <= STATUSES


def test_an_error_that_is_a_bug_of_ours_has_no_codes_and_keeps_its_traceback() -> None:
    assert codes_of(KeyError("a")) is None


def test_the_guide_names_the_exit_codes_of_the_table() -> None:
    page = (PACKAGE.parents[1] / "docs" / "guide" / "command-line.md").read_text(encoding="utf-8")
    assert {int(code) for code in re.findall(r"^\| (\d) \|", page, re.MULTILINE)} >= {codes.exit for _, codes in CODES}
