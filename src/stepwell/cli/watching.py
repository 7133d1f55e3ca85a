"""A watch on source files: it polls their modification times, and needs nothing of the platform."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

Seen = dict[str, tuple[int, int]]
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages"})


def look(directory: Path) -> Seen:
    """The time and size of every Python file below a directory."""
    return dict(_files(str(directory)))


def changed(before: Seen, after: Seen) -> list[str]:
    """Files that were saved, made or removed in between."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


class SaveWatch:
    """Saves that two polls in a row have found: the first may be in the middle of a save."""

    def __init__(self, seen: Seen) -> None:
        self._told = self._last = seen

    def among(self, now: Seen) -> list[str]:
        settled, self._last = now == self._last, now
        if not settled:
            return []
        before, self._told = self._told, now
        return changed(before, now)


def forget_compiled(sources: Iterable[str]) -> None:
    """Python would run what it compiled from the last save, if this one is of the same second and size."""
    for source in sources:
        with suppress(OSError):
            os.unlink(cache_from_source(source))


def _files(directory: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = list(os.scandir(directory))
    except OSError:
        return  # removed while we looked
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                facts = entry.stat()
                yield entry.path, (facts.st_mtime_ns, facts.st_size)
        except OSError:
            continue
