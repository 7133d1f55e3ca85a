"""Find the line of the user's code that issued a command or made a call."""

from __future__ import annotations

import asyncio
import sys
from types import CodeType, FrameType
from typing import Any

from stepwell.replay.frames import Whose, whose

Place = tuple[CodeType, int]

_GATE = "run_until_idle"
"""The name of our function that runs workflow code: frames outside of it are the worker's."""


_known: dict[str, Whose] = {}
"""A cache of the owner of each file's code. It is keyed by name, because hashing a code object is expensive."""


def place_of_user() -> Place | None:
    """Return the innermost line of the user's own code, or else of a package."""
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
    by = Whose.LIBRARY if file == "<string>" else whose(file)  # generated code, as of a dataclass
    _known[file] = by
    return by


def line_of_user() -> str:
    """Return `shop.py:42 in checkout`. If no frame is the user's, use the creator of this task or a package."""
    place = place_of_user()
    if place is None or _known[place[0].co_filename] is not Whose.USERS:
        loop = asyncio.events._get_running_loop()
        place = _place_of(None if loop is None else asyncio.current_task(loop)) or place
    return _line(place)


def line_in(coro: Any) -> str:
    """Return the innermost line of the user's code at which a coroutine is suspended."""
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
    """Return a known line, or the line at which a task is suspended, or else the line of the task that created it.

    The search is lazy: every command has a line, and hardly any is ever shown.
    """
    return where if isinstance(where, str) else _line(_place_of(where))


def _place_of(task: Any) -> Place | None:
    while task is not None:
        if (place := _place_in(task.get_coro())) is not None:
            return place
        task = getattr(task, "maker", None)
    return None


def _line(place: Place | None) -> str:
    return "an unknown line" if place is None else f"{place[0].co_filename}:{place[1]} in {place[0].co_name}"
