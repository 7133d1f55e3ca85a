"""Who hears of async generators: the workflow in which one began, else whoever heard of them before.

Python asks two hooks of the thread, and to set them for each event that a workflow is told is dear: everyone who audits
is told four times. These are set once for an event loop, stay, and tell apart who begins one.
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
    """A loop that has async generators of its own."""

    def begins(self, generator: Generator) -> None: ...

    def ends(self, generator: Generator) -> None:
        """Nobody has it any more."""


_of: dict[int, Hears] = {}
"""The identity of an async generator, and where it began. Of a workflow that has ended there is none."""


class Begins:
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
        _of.pop(id(generator), None)  # of one that had this place in memory before
        if self._outer is not None:
            self._outer(generator)


class _Ends:
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
            close_generator(generator)  # as Python does where nobody hears


def hear(kind: type[Any]) -> None:
    """From now on, in this thread, loops of this kind hear of what begins while they run. Once, as `Begins` tells."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(Begins(kind, hooks.firstiter), _Ends(hooks.finalizer))


def forget(identities: list[int], loop: Hears) -> None:
    """These began in this loop, which has ended."""
    for identity in identities:
        if _of.get(identity) is loop:
            _of.pop(identity, None)  # which another thread may have done just now, for one at the same place
