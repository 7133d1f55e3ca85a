"""Detect calls of forbidden functions from the events of a profile function."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache
from importlib import import_module
from types import BuiltinFunctionType, FrameType, FunctionType
from typing import Any

from stepwell.replay.forbidden import INSTEAD, INSTEAD_OF_UNSEEDED, OF_LIBRARIES, STEP

_OF_DATES = {"now": "datetime.datetime.now", "utcnow": "datetime.datetime.utcnow", "today": "datetime.datetime.today"}
_OF_SOCKETS = frozenset({"connect", "read", "recv", "recv_into", "recvfrom", "send", "sendall", "sendto", "write"})
_SOCKETS = frozenset({("_socket", "socket"), ("socket", "socket"), ("_ssl", "_SSLSocket"), ("ssl", "SSLSocket")})


@dataclass(frozen=True, slots=True)
class Forbidden:
    """A forbidden function, and what to write instead."""

    what: str
    instead: str
    by_anyone: bool = False
    """True if it is refused whichever module calls it for the user's code, not only in the user's own lines."""
    by_packages: bool = False
    """True if it is refused in the user's own lines and in installed packages."""


_TALK = Forbidden("sockets", STEP, by_anyone=True)


_stand_ins: dict[int, Forbidden] = {}
"""Our replacements of forbidden functions, by the identity of their code."""


def stands_in(function: Any, name: str) -> None:
    """Register our replacement of a function. A package may call it; only a line of the user's own is refused."""
    _stand_ins[id(function.__code__)] = Forbidden(f"{name}()", INSTEAD[name])


@dataclass(frozen=True, slots=True)
class Known:
    """The forbidden functions: C functions keyed by themselves, Python functions by the identity of their code."""

    in_c: dict[Any, Forbidden]
    in_python: dict[int, Forbidden]
    of_random: frozenset[int]
    shared: Any
    """The shared generator behind the functions of the module `random`."""
    system: type


@cache
def known() -> Known:
    in_c: dict[Any, Forbidden] = {}
    in_python = dict(_stand_ins)
    for name, instead in INSTEAD.items():
        function = _named(name)
        function = getattr(function, "__wrapped__", function)  # the original, if a replacement is installed
        found = Forbidden(f"{name}()", instead, by_packages=name in OF_LIBRARIES)
        if isinstance(function, BuiltinFunctionType):
            in_c[function] = found
        elif isinstance(function, FunctionType):
            in_python[id(function.__code__)] = found
    numbers = import_module("random")
    generators = (numbers.Random, numbers.SystemRandom)
    codes = frozenset(id(code) for each in generators for code in _codes(each))
    return Known(in_c, in_python, codes, numbers._inst, numbers.SystemRandom)


def forbidden_call(frame: FrameType, event: str, function: Any) -> Forbidden | None:
    """Return why this call is forbidden, regardless of its caller; None if it is allowed.

    `event` is the event of a profile function.
    """
    if event == "call":
        code, all = id(frame.f_code), known()
        return _of_random(frame, all) if code in all.of_random else all.in_python.get(code)
    if event == "c_call":
        return known().in_c.get(function) or _by_name(function)
    return None


def _by_name(function: Any) -> Forbidden | None:
    """Detect methods, which exist once for every object and subclass, by their names."""
    name = function.__name__
    if name in _OF_DATES:
        of = function.__self__
        if isinstance(of, type) and issubclass(of, date):
            return Forbidden(f"{of.__name__}.{name}()", INSTEAD[_OF_DATES[name]], by_packages=True)
    elif name in _OF_SOCKETS:
        kind = type(function.__self__)
        if (kind.__module__, kind.__name__) in _SOCKETS:
            return _TALK
    return None


def _of_random(frame: FrameType, all: Known) -> Forbidden | None:
    """Detect the shared generator, the system's generator, and a new one without a seed. A seeded one is allowed."""
    name, given = frame.f_code.co_name, frame.f_locals
    generator = given.get("self")
    if isinstance(generator, all.system):
        return Forbidden("SystemRandom", INSTEAD["random.SystemRandom"])
    if generator is all.shared:
        return Forbidden(f"random.{name}()", INSTEAD.get(f"random.{name}", INSTEAD["random.SystemRandom"]))
    if name == "__init__" and given.get("x") is None:
        return Forbidden("Random() without a seed", INSTEAD_OF_UNSEEDED)
    return None


def _named(name: str) -> Any:
    module, *attributes = name.split(".")
    found: Any = import_module(module)
    for attribute in attributes:
        found = getattr(found, attribute, None)
    return found


def _codes(kind: type) -> Iterator[Any]:
    return (each.__code__ for each in vars(kind).values() if isinstance(each, FunctionType))
