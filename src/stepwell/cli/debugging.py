"""A replay under pdb."""

from __future__ import annotations

import bdb
import pdb
import re
from functools import partial
from pathlib import Path
from typing import Any

from stepwell.definitions.workflow import Workflow
from stepwell.model.errors import Nondeterminism
from stepwell.operator.exported import History
from stepwell.operator.telling import tell
from stepwell.worker.turns.turns import RunCode

_LINE = re.compile(r"(.+):(\d+) in .+")


def debug(history: History, workflow: Workflow[..., Any], *, until: int | None = None) -> None:
    """Stop in pdb at the line where the code does not fit, or that issued the last command, or at its first.

    Replays twice: once to learn which line that is.
    """
    file, line = _first_line(workflow)
    code = partial(RunCode, workflow)
    lines: list[str] = []
    try:
        tell(history, code, lambda _event, line: lines.append(line), until=until).evict()
    except Nondeterminism as error:
        lines.append(str(error.line))
    if (until is not None or lines) and (
        found := _LINE.fullmatch(next((each for each in reversed(lines) if each), ""))
    ):
        file, line = found[1], int(found[2])
    debugger = pdb.Pdb(readrc=False)
    debugger.set_break(file, line)
    debugger.rcLines = ["continue"]  # from our own first line to theirs
    try:
        debugger.runcall(lambda: tell(history, code, until=until).evict())
    except (bdb.BdbQuit, Nondeterminism):
        if not debugger.quitting:  # as which quitting looks to the workflow, in whose code it was done
            raise


def _first_line(workflow: Workflow[..., Any]) -> tuple[str, int]:
    code = workflow.fn.__code__
    lines = sorted({line for _, _, line in code.co_lines() if line is not None})
    return str(Path(code.co_filename)), next((line for line in lines if line > code.co_firstlineno), lines[0])
