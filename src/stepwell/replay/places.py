"""Where in the user's code something was asked."""

from __future__ import annotations

import asyncio
import sys
from types import CodeType, FrameType
from typing import Any

from stepwell.replay.frames import Whose, whose

Place = tuple[CodeType, int]

_GATE = "run_until_idle"
"""The function of ours that runs workflow code: the lines around it are the worker's."""


_known: dict[str, Whose] = {}
"""Whose the code of a file is, once it was asked for. By name: the hash of a code object is dear."""


def place_of_user() -> Place | None:
    """The innermost line of the user's own, or else of a package."""
    frame: FrameType | None = sys._getframe(1)
    package: Place | None = None
    while frame is not None:
        code = frame.f_code
        by = _known.get(code.co_filename) or _ask(code.co_filename)
        if by is Whose.USERS:
            return code, frame.f_lineno
        if by is Whose.INSTALLED:
            package = package or (code, frame.f_lineno)
        elif code.co_name == _GATE and by is Whose.OURS:
            break
        frame = frame.f_back
    return package


def _ask(file: str) -> Whose:
    by = Whose.LIBRARY if file == "<string>" else whose(file)  # which a dataclass makes
    _known[file] = by
    return by


def line_of_user() -> str:
    """`shop.py:42 in checkout`; where no line is the user's, the one that made this task, or else a package's."""
    place = place_of_user()
    if place is None or _known[place[0].co_filename] is not Whose.USERS:
        loop = asyncio.events._get_running_loop()
        place = _place_of(None if loop is None else asyncio.current_task(loop)) or place
    return _line(place)


def line_in(coro: Any) -> str:
    """The innermost line of the user's at which a suspended coroutine stands."""
    return _line(_place_in(coro))


def _place_in(coro: Any) -> Place | None:
    found: Place | None = None
    while coro is not None:
        frame = getattr(coro, "cr_frame", None) or getattr(coro, "ag_frame", None)
        if frame is not None and whose(frame.f_code.co_filename) is Whose.USERS:
            found = frame.f_code, frame.f_lineno
        coro = getattr(coro, "cr_await", None) or getattr(coro, "ag_await", None)
    return found


def line_of(where: Any) -> str:
    """A line that is known; or that at which a task stands, and if that is none of the user's, whoever made it. It is
    looked for only when someone asks: every command has one, and hardly any is ever told."""
    return where if isinstance(where, str) else _line(_place_of(where))


def _place_of(task: Any) -> Place | None:
    while task is not None:
        if (place := _place_in(task.get_coro())) is not None:
            return place
        task = getattr(task, "maker", None)
    return None


def _line(place: Place | None) -> str:
    return "an unknown line" if place is None else f"{place[0].co_filename}:{place[1]} in {place[0].co_name}"
