"""The examination: every function of the user that a workflow can reach is read once, for findings."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from inspect import unwrap
from pathlib import Path
from typing import Any

from stepwell.cli.checking import rules
from stepwell.cli.checking.reader import decorators, has_timeout, is_timed_inside, read
from stepwell.cli.checking.rules import Rule, Verdict
from stepwell.cli.checking.source import Function, Source
from stepwell.cli.checking.sources import Sources


@dataclass(frozen=True, slots=True)
class Finding:
    file: str
    line: int
    column: int
    verdict: Verdict
    what: str
    instead: str
    workflow: str
    through: tuple[str, ...]
    """The functions between the workflow and this line, the last of which it is in."""


@dataclass(frozen=True, slots=True)
class CheckedWorkflow:
    name: str
    function: Function
    timed: bool
    """True if the workflow has a timeout for all of it."""


def in_file(path: Path, sources: Sources) -> list[CheckedWorkflow]:
    """The workflows that are written in a file, which is not imported for it."""
    source = sources.at(path)
    return (
        []
        if source is None
        else [
            CheckedWorkflow(
                f"{source.module}.{qualname}".replace(".<locals>", ""),
                Function(source, qualname, node),
                has_timeout(node),
            )
            for qualname, node in source.defs.items()
            if "workflow" in decorators(node)
        ]
    )


def of_function(name: str, fn: Callable[..., Any], sources: Sources, *, timed: bool = False) -> CheckedWorkflow | None:
    """A workflow by its function; None if its source is not there."""
    code = unwrap(fn).__code__
    source = sources.at(Path(code.co_filename))
    if source is None:
        return None
    for qualname, node in source.defs.items():
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
        if node.name == code.co_name and code.co_firstlineno in (first, node.lineno):
            return CheckedWorkflow(name, Function(source, qualname, node), timed)
    return None


def examine(workflows: Iterable[CheckedWorkflow], sources: Sources) -> list[Finding]:
    found: dict[tuple[str, int, int, str], Finding] = {}
    seen: set[tuple[Path, str]] = set()
    # What several of them call is read once: for those first that there is more to look for in.
    for workflow in sorted(workflows, key=lambda each: not each.timed):
        for finding in _of_workflow(workflow, sources, seen):
            found.setdefault((finding.file, finding.line, finding.column, finding.what), finding)
    return sorted(found.values(), key=lambda each: (each.file, each.line, each.column))


def _of_workflow(workflow: CheckedWorkflow, sources: Sources, seen: set[tuple[Path, str]]) -> Iterator[Finding]:
    also = rules.TIMED if workflow.timed and not is_timed_inside(workflow.function) else {}
    unread: deque[tuple[Function, tuple[str, ...]]] = deque([(workflow.function, ())])
    while unread:
        function, through = unread.popleft()
        place = function.source.path, function.qualname
        if place in seen:
            continue
        seen.add(place)
        told: list[tuple[ast.AST, Rule]] = []
        tell = partial(_tell, told)
        calls = read(function, sources, tell, also)
        unread += [(each, (*through, each.qualname)) for each in calls]
        for node, rule in told:
            if not _is_ignored(function.source, node):
                yield _finding(function.source, node, rule, workflow.name, through)


def _tell(told: list[tuple[ast.AST, Rule]], node: ast.AST, rule: Rule) -> None:
    told.append((node, rule))


def _finding(source: Source, node: ast.AST, rule: Rule, workflow: str, through: tuple[str, ...]) -> Finding:
    line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
    return Finding(_shown(source.path), line, column, rule.verdict, rule.what, rule.instead, workflow, through)


def _is_ignored(source: Source, node: ast.AST) -> bool:
    """Tell whether a comment on the first line or, of an expression, the last one, excuses it."""
    first = getattr(node, "lineno", 1)
    last = getattr(node, "end_lineno", first) if isinstance(node, ast.expr) else first
    return bool(source.ignored & {first, last})


def _shown(path: Path) -> str:
    """Return the path as the user would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
