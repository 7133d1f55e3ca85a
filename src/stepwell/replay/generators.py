"""Hooks for async generators: they notify the workflow in which a generator began, else the previous hooks.

Python has two such hooks per thread. Setting them for each event of a workflow is expensive, because every audit hook
is called four times. These hooks are therefore set once per event loop and stay; they check in which loop a generator
begins.
"""

from __future__ import annotations

import sys
from asyncio import events
from collections.abc import AsyncGenerator, Callable
from typing import Any, Protocol

from stepwell.replay.closing import close_generator

Generator = AsyncGenerator[Any, Any]
Hook = Callable[[Generator], Any]


class Hears(Protocol):
    """A loop that manages its own async generators."""

    def begins(self, generator: Generator) -> None: ...

    def ends(self, generator: Generator) -> None:
        """Handle a generator to which no reference is left."""


_of: dict[int, Hears] = {}
"""The loop in which each async generator began, by the generator's identity. Ended workflows have no entries."""


class Begins:
    """The hook for the first iteration of a generator."""

    __slots__ = ("_kind", "_outer")

    def __init__(self, kind: type[Any], outer: Hook | None) -> None:
        self._kind = kind
        self._outer = outer

    def __call__(self, generator: Generator) -> None:
        loop: Any = events._get_running_loop()
        if type(loop) is self._kind:
            _of[id(generator)] = loop
            loop.begins(generator)
            return
        _of.pop(id(generator), None)  # a stale entry: an earlier generator had the same address
        if self._outer is not None:
            self._outer(generator)


class _Ends:
    """The hook for the finalization of a generator."""

    __slots__ = ("_outer",)

    def __init__(self, outer: Hook | None) -> None:
        self._outer = outer

    def __call__(self, generator: Generator) -> None:
        loop = _of.pop(id(generator), None)
        if loop is not None:
            loop.ends(generator)
        elif self._outer is not None:
            self._outer(generator)
        else:
            close_generator(generator)  # as Python does without a hook


def hear(kind: type[Any]) -> None:
    """Set the hooks of this thread, so that loops of this class are notified of generators that begin in them.

    Call this once per thread: an installed `Begins` shows that the hooks are set.
    """
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(Begins(kind, hooks.firstiter), _Ends(hooks.finalizer))


def forget(identities: list[int], loop: Hears) -> None:
    """Remove the entries of generators that began in a loop which has ended."""
    for identity in identities:
        if _of.get(identity) is loop:
            _of.pop(identity, None)  # another thread may have removed it just now, for a generator at the same address
