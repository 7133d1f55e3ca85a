"""The user's files, found by the names of their modules. Nothing is imported for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stepwell.cli.checking.scope import name_what_is_assigned
from stepwell.cli.checking.source import Function, Source, joined, module_at, parsed
from stepwell.replay.frames import Whose, whose

_FAR = 8
"""The number of times that a name is followed from module to module."""


class Sources:
    """Reads files, each once."""

    def __init__(self) -> None:
        self._by_path: dict[Path, Source | None] = {}
        self._by_module: dict[str, Path | None] = {}
        self._roots: list[Path] = [Path(each or ".").resolve() for each in sys.path if _is_users(each)]

    def at(self, path: Path) -> Source | None:
        """The file, if it can be read as Python."""
        path = path.resolve()
        if path not in self._by_path:
            self._by_path[path] = None
            self._by_path[path] = self._read(path)
        return self._by_path[path]

    def function(self, name: str) -> Function | None:
        """The user's function with this dotted name, also where it is imported from another module."""
        for _ in range(_FAR):
            found = self._module_of(name)
            if found is None:
                return None
            source, rest = found
            if (known := _in_source(source, rest)) is not None:
                return known
            first, _, more = rest.partition(".")
            if first not in source.names or (onward := joined(source.names[first], more)) == name:
                return None
            name = onward
        return None

    def is_users(self, root: str) -> bool:
        """Tell whether a top-level module or package is one of the user's."""
        return self._find(root) is not None or any((each / root).is_dir() for each in self._roots)

    def _module_of(self, name: str) -> tuple[Source, str] | None:
        parts = name.split(".")
        for length in range(len(parts) - 1, 0, -1):
            path = self._find(".".join(parts[:length]))
            source = None if path is None else self.at(path)
            if source is not None:
                return source, ".".join(parts[length:])
        return None

    def _find(self, module: str) -> Path | None:
        if module not in self._by_module:
            self._by_module[module] = self._look_for(module)
        return self._by_module[module]

    def _look_for(self, module: str) -> Path | None:
        loaded = getattr(sys.modules.get(module), "__file__", None)
        if loaded is not None:
            return Path(loaded) if whose(loaded) is Whose.USERS and loaded.endswith(".py") else None
        if not all(part.isidentifier() for part in module.split(".")):
            return None
        for root in self._roots:
            place = root.joinpath(*module.split("."))
            for path in (place.with_suffix(".py"), place / "__init__.py"):
                if path.is_file():
                    return path
        return None

    def _read(self, path: Path) -> Source | None:
        source = parsed(path)
        root, _ = module_at(path)
        if root not in self._roots:
            self._roots.insert(0, root)
            self._by_module.clear()
        if source is not None:
            name_what_is_assigned(source)
        return source


def _in_source(source: Source, qualname: str) -> Function | None:
    for name in (qualname, f"{qualname}.__init__"):
        if name in source.defs:
            return Function(source, name, source.defs[name])
    return None


def _is_users(entry: str) -> bool:
    place = os.path.join(os.path.abspath(entry or "."), "any.py")
    return os.path.isdir(entry or ".") and whose(place) is Whose.USERS
