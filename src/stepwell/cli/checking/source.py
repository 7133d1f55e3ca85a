"""A source file of the user: its functions, and what its imports make names stand for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from stepwell.cli.checking.rules import BY_NAME

Def = ast.FunctionDef | ast.AsyncFunctionDef
_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
_IGNORE = re.compile(r"#\s*stepwell:\s*ignore\b")


@dataclass(eq=False, slots=True)
class Source:
    """A file. `names` says what a name at its top stands for: `t` for `time.time`."""

    path: Path
    module: str
    tree: ast.Module
    ignored: frozenset[int]
    names: dict[str, str] = field(default_factory=dict)
    defs: dict[str, Def] = field(default_factory=dict)
    classes: dict[str, ast.ClassDef] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Function:
    source: Source
    qualname: str
    node: Def

    @property
    def owner(self) -> str | None:
        """The class it is a method of."""
        owner = self.qualname.rpartition(".")[0]
        return owner if owner in self.source.classes else None


def parsed(path: Path) -> Source | None:
    """The file, if it can be read as Python."""
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError):
        return None
    ignored = frozenset(at for at, line in enumerate(text.splitlines(), 1) if _IGNORE.search(line))
    source = Source(path, module_at(path)[1], tree, ignored)
    _collect(source, tree.body, "")
    source.names |= imports(source, _outside_of_functions(tree))
    return source


def module_at(path: Path) -> tuple[Path, str]:
    """The directory a file is imported from, and the name of its module."""
    root, parts = path.parent, [] if path.stem == "__init__" else [path.stem]
    while (root / "__init__.py").exists():
        parts.insert(0, root.name)
        root = root.parent
    return root, ".".join(parts)


def imports(source: Source, nodes: Iterator[ast.AST]) -> dict[str, str]:
    """Return what the imports among these statements make names stand for."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(source, node)
            for alias in node.names:
                if alias.name == "*":
                    names |= _all_of(origin)
                else:
                    names[alias.asname or alias.name] = f"{origin}.{alias.name}"
    return names


def _origin(source: Source, node: ast.ImportFrom) -> str:
    """The module that is imported from: `from . import x` counts from where the file is."""
    if not node.level:
        return node.module or ""
    package = source.module.split(".")
    up = node.level - (1 if source.path.stem == "__init__" else 0)
    return joined(".".join(package[: len(package) - up]), node.module or "")


def _all_of(module: str) -> dict[str, str]:
    """`from time import *`: as much as the rules know of it."""
    return {name.rpartition(".")[2]: name for name in BY_NAME if name.rpartition(".")[0] == module}


def _collect(source: Source, body: list[ast.stmt], within: str) -> None:
    for node in body:
        if isinstance(node, _DEFS):
            source.defs[joined(within, node.name)] = node
            _collect(source, node.body, f"{joined(within, node.name)}.<locals>")
        elif isinstance(node, ast.ClassDef):
            source.classes[joined(within, node.name)] = node
            _collect(source, node.body, joined(within, node.name))
        else:
            for block in ("body", "orelse", "finalbody"):
                _collect(source, [each for each in getattr(node, block, ()) if isinstance(each, ast.stmt)], within)


def _outside_of_functions(tree: ast.Module) -> Iterator[ast.AST]:
    unseen: list[ast.AST] = [tree]
    while unseen:
        node = unseen.pop()
        yield node
        unseen += [each for each in ast.iter_child_nodes(node) if not isinstance(each, (*_DEFS, ast.Lambda))]


def joined(*parts: str) -> str:
    return ".".join(part for part in parts if part)
