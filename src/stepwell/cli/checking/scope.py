"""Scopes: what a name stands for at a place of a function: imports, aliases, and variables as far as can be told."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from stepwell.cli.checking.source import Def, Function, Source, imports

_SET = re.compile(r"(frozen)?set\(\)(\.(union|intersection|difference|symmetric_difference|copy)\(\))*")
_SETS = {"set", "frozenset", "typing.AbstractSet", "collections.abc.Set", "collections.abc.MutableSet"}
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


class Scope:
    """A dotted name says where a value comes from: `httpx.Client` is that class, `httpx.Client().get` what is got
    from one that it made."""

    def __init__(self, source: Source, local: dict[str, str | None] | None = None) -> None:
        self.source = source
        self._local = local or {}

    def inside(self, node: Def | ast.Lambda, owner: str | None = None) -> Scope:
        """The scope within this function."""
        inner = Scope(self.source, dict(self._local))
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        for place, arg in enumerate(each for each in every if each is not None):
            is_self = owner is not None and place == 0
            made = f"{self.source.module}.{owner}()" if is_self else self._annotated(arg.annotation)
            inner._local[arg.arg] = made
        if not isinstance(node, ast.Lambda):
            nodes = list(_own(node))
            inner._local |= imports(self.source, iter(nodes))
            inner._bind(nodes)
        return inner

    def dotted(self, node: ast.AST | None) -> str | None:
        match node:
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=value, attr=attribute):
                base = self.dotted(value)
                return None if base is None else f"{base}.{attribute}"
            case ast.Call(func=function):
                base = self.dotted(function)
                return None if base is None else f"{base}()"
            case ast.Await(value=value) | ast.NamedExpr(value=value):
                return self.dotted(value)
            case ast.Set() | ast.SetComp():
                return "set()"
            case ast.BinOp(op=ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub(), left=left, right=right):
                return "set()" if self.is_set(left) or self.is_set(right) else None
        return None

    def plain(self, node: ast.AST | None) -> str | None:
        """The dotted name of a function, whether it is asked of a class or of what the class made."""
        name = self.dotted(node)
        return None if name is None else name.replace("().", ".")

    def is_set(self, node: ast.AST) -> bool:
        name = self.dotted(node)
        return name is not None and _SET.fullmatch(name) is not None

    def _named(self, name: str) -> str | None:
        if name in self._local:
            return self._local[name]
        if name in self.source.names:
            return self.source.names[name]
        if name in self.source.defs or name in self.source.classes:
            return f"{self.source.module}.{name}"
        return name if hasattr(builtins, name) else None

    def _annotated(self, annotation: ast.AST | None) -> str | None:
        """Return the type that the annotation names; `X | None` is an X."""
        match annotation:
            case ast.BinOp(op=ast.BitOr(), left=left):
                return self._annotated(left)
            case ast.Subscript(value=value) if self.dotted(value) in _SETS:
                return "set()"
            case ast.Name() | ast.Attribute():
                name = self.dotted(annotation)
                return "set()" if name in _SETS else f"{name}()" if name is not None else None
        return None

    def _bind(self, nodes: list[ast.AST]) -> None:
        """Each variable by what is assigned to it; one that is assigned this and that is unknown."""
        bound: set[str] = set()
        for node in nodes:
            for target, value in _assignments(node):
                said = self._annotated(node.annotation) if isinstance(node, ast.AnnAssign) else None
                origin = said or self.dotted(value)
                if target in bound and self._local.get(target) != origin:
                    origin = None
                bound.add(target)
                self._local[target] = origin


def scope_of(function: Function) -> Scope:
    """The scope within a function, also one inside others."""
    source = function.source
    scope = Scope(source)
    parts = function.qualname.split(".<locals>.")
    for depth in range(1, len(parts)):
        outer = ".<locals>.".join(parts[:depth])
        if outer in source.defs:
            scope = scope.inside(source.defs[outer])
    return scope.inside(function.node, function.owner)


def name_what_is_assigned(source: Source) -> None:
    """`client = httpx.Client()` and `now = time.time`, at the top of a file."""
    scope = Scope(source)
    for node in source.tree.body:
        for target, value in _assignments(node):
            origin = scope.dotted(value)
            if origin is not None and target not in source.names:
                source.names[target] = origin


def _own(function: Def) -> Iterator[ast.AST]:
    """Every node of its own body, in order, and none of the functions inside."""
    unseen: list[ast.AST] = list(reversed(function.body))
    while unseen:
        node = unseen.pop()
        yield node
        if not isinstance(node, _NESTED):
            unseen += reversed(list(ast.iter_child_nodes(node)))


def _assignments(node: ast.AST) -> Iterator[tuple[str, ast.AST | None]]:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _targets(target, value)
        case ast.AnnAssign(target=target, value=value):
            yield from _targets(target, value)
        case ast.NamedExpr(target=target, value=value):
            yield from _targets(target, value)
        case ast.For(target=target) | ast.AsyncFor(target=target):
            yield from _targets(target, None)
        case ast.withitem(context_expr=value, optional_vars=ast.AST() as target):
            yield from _targets(target, value)
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, None


def _targets(target: ast.AST, value: ast.AST | None) -> Iterator[tuple[str, ast.AST | None]]:
    match target:
        case ast.Name(id=name):
            yield name, value
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _targets(part, None)
        case ast.Starred(value=inner):
            yield from _targets(inner, None)
