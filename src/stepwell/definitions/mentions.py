"""The signals that a workflow's code waits for, found by reading the code without running it.

The workflow's function is read, and the functions and classes that it names. If any of them computes the name of a
signal, or cannot be read, the answer is unknown: a wrong warning is worse than none.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import Any

from stepwell.context.workflow import WorkflowContext
from stepwell.model.wording import among, near

MOST = 200
"""Limit of functions that are read for one workflow."""
_NOBODYS = frozenset({*sys.stdlib_module_names, "stepwell"}) - {"__main__"}


@dataclass(frozen=True, slots=True)
class Mentions:
    """The signals and texts in the code of one workflow."""

    signals: frozenset[str]
    """Names of signals that the code waits for."""
    texts: frozenset[str]
    """Every text constant in the code."""

    def doubt(self, workflow: str, signal: str) -> str | None:
        """Return a warning if this code does not mention the signal; None if it does."""
        if signal in self.signals or signal in self.texts:
            return None
        meant = near(signal, self.signals)
        known = among([repr(each) for each in sorted(self.signals)]) or "none"
        hint = f"it waits for {known}." if meant is None else f"did you mean {meant!r}?"
        return f"the code of {workflow}, as it is here, does not mention the signal {signal!r}: {hint}"


class _Unknown(Exception):
    """The names cannot be found by reading."""


def mentions(fn: Callable[..., Any]) -> Mentions | None:
    """Return what the code of a workflow mentions; None if reading cannot tell."""
    signals: set[str] = set()
    texts: set[str] = set()
    try:
        for each in _reached(fn):
            signals |= set(_signals(each))
            texts |= {text for code in _codes(each.__code__) for text in _texts(code.co_consts)}
    except (_Unknown, OSError, TypeError, SyntaxError):
        return None
    return Mentions(frozenset(signals), frozenset(texts))


# -- which functions


def _reached(fn: Callable[..., Any]) -> list[FunctionType]:
    """Return the function, the functions that it names, and so on within its own package."""
    first = inspect.unwrap(fn)
    if not isinstance(first, FunctionType):
        raise _Unknown
    found, package = [first], _package(first)
    seen = {first.__code__}
    for each in found:
        if _package(each) != package:
            continue
        for named in _functions(each):
            if named.__code__ not in seen and _package(named) not in _NOBODYS:
                seen.add(named.__code__)
                found.append(named)
        if len(found) > MOST:
            raise _Unknown
    return found


def _package(fn: FunctionType) -> str:
    return fn.__module__.partition(".")[0]


def _functions(fn: FunctionType) -> Iterator[FunctionType]:
    names = {name for code in _codes(fn.__code__) for name in code.co_names}
    scope = _scope(fn)
    values = [scope[name] for name in names | set(fn.__code__.co_freevars) if name in scope]
    modules = [each for each in [*values, *map(sys.modules.get, names)] if isinstance(each, ModuleType)]
    ours = [each for each in modules if each.__name__.partition(".")[0] not in _NOBODYS]
    values += [vars(module)[name] for module in ours for name in names if name in vars(module)]
    for value in values:
        if isinstance(getattr(value, "__self__", None), WorkflowContext):
            raise _Unknown  # workflow.signal by another name
        yield from _functions_of(value)


def _functions_of(value: object) -> Iterator[FunctionType]:
    if isinstance(value, FunctionType):
        yield value
        return
    cls = value if isinstance(value, type) else type(value)
    if cls.__module__.partition(".")[0] in _NOBODYS:
        return
    for each in [each for base in cls.__mro__ for each in vars(base).values()]:
        function = getattr(each, "__func__", getattr(each, "fget", each))
        if isinstance(function, FunctionType):
            yield function


def _scope(fn: FunctionType) -> Mapping[str, Any]:
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    return {**fn.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_filled(cell)}}


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  # an empty one raises
    except ValueError:
        return False
    return True


# -- what stands in them


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _texts(constants: tuple[Any, ...] | frozenset[Any]) -> Iterator[str]:
    for each in constants:
        if isinstance(each, str):
            yield each
        elif isinstance(each, tuple | frozenset):
            yield from _texts(each)


def _signals(fn: FunctionType) -> Iterator[str]:
    """Yield the names in its calls of `….signal(name)`."""
    if not any("signal" in code.co_names for code in _codes(fn.__code__)):
        return
    tree, scope = ast.parse(textwrap.dedent(inspect.getsource(fn))), _scope(fn)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_signal(node.func)]
    if len(calls) < sum(_is_signal(node) for node in ast.walk(tree)):
        raise _Unknown  # `….signal` is passed on as a value, and called elsewhere
    for call in calls:
        given = call.args[:1] or [each.value for each in call.keywords if each.arg == "name"]
        name = _value(given[0], scope) if given else None
        if not isinstance(name, str):
            raise _Unknown
        yield str.__str__(name)  # the value, if it is a member of an enum


def _is_signal(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "signal"


def _value(node: ast.expr, scope: Mapping[str, Any]) -> object:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return scope.get(name)
        case ast.Attribute(value=ast.Name(id=name), attr=attribute):
            return vars(scope[name]).get(attribute) if isinstance(scope.get(name), ModuleType | type) else None
    return None
