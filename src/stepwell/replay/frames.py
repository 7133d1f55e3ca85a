"""Classify the code of a frame: the user's, an installed package's, the standard library's or ours."""

from __future__ import annotations

import os
import sysconfig
from enum import Enum
from functools import cache
from pathlib import Path
from types import FrameType

# co_filename is the path by which a file was imported, which may contain a symbolic link.
_OURS = tuple({str(path.parent.parent) + os.sep for path in (Path(__file__), Path(__file__).resolve())})
_LIBRARY = tuple(
    {
        str(Path(each)) + os.sep
        for each in (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), os.path.dirname(os.__file__))
    }
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Whose(Enum):
    """The owner of a piece of code."""

    USERS = "the user's"
    INSTALLED = "an installed package's"
    LIBRARY = "the standard library's"
    OURS = "ours"


@cache
def whose(file: str) -> Whose:
    """Return the owner of code in this file. Generated code, such as a dataclass's `__init__`, counts as the user's."""
    if file.startswith(_OURS):
        return Whose.OURS
    if any(each in file for each in _INSTALLED):
        return Whose.INSTALLED
    return Whose.LIBRARY if file.startswith((*_LIBRARY, "<frozen ")) else Whose.USERS


def place_of(frame: FrameType) -> str:
    """Return `shop.py:42 in checkout`. For generated code, return the line that called it."""
    while frame.f_code.co_filename == "<string>" and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_name}"


def package_of(frame: FrameType) -> str:
    """Return the top-level package of the frame's module."""
    name = frame.f_globals.get("__name__")
    return name.partition(".")[0] if isinstance(name, str) else ""
