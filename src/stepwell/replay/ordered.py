"""What asyncio itself does in no certain order, put in order for those who run on our loop, and for nobody else.

`as_completed` makes a set of what it is given, and so begins coroutines in the order of their addresses. It is
changed in place, since many a module has imported it before us. The future of a `gather` is hashed by its address.
`all_tasks` knows those that were registered, each in a set of weak references: it asks our loop, which knows its own.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import events, tasks
from types import FunctionType
from typing import Any

from stepwell.replay.calling import REGISTERED
from stepwell.replay.loop import Loop

_original = asyncio.as_completed
_all_tasks: Any = asyncio.all_tasks


def _in_the_given_order(fs: Any) -> Any:
    if not isinstance(events._get_running_loop(), Loop) or inspect.isawaitable(fs):
        return fs
    return [asyncio.ensure_future(each) for each in dict.fromkeys(fs)]


def _hash_of_gather(self: Any) -> int:
    loop = self.get_loop()
    if not isinstance(loop, Loop):
        return object.__hash__(self)
    seq: int | None = getattr(self, "seq", None)
    if seq is None:
        seq = self.seq = loop.next_seq()
    return seq


def put_in_order() -> None:
    """Once: the second time finds it done."""
    if hasattr(tasks, "_stepwell_as_completed"):
        return
    if not REGISTERED:
        _ask_our_loop()
    kept = FunctionType(_original.__code__, _original.__globals__, "as_completed", _original.__defaults__)
    kept.__kwdefaults__ = _original.__kwdefaults__
    tasks._stepwell_as_completed = lambda fs, timeout: kept(_in_the_given_order(fs), timeout=timeout)  # type: ignore[attr-defined]  # named for the code below

    def as_completed(fs: Any, *, timeout: Any = None) -> Any:
        return _stepwell_as_completed(fs, timeout)  # type: ignore[name-defined]  # noqa: F821  # it runs among asyncio's names

    _original.__code__ = as_completed.__code__
    tasks._GatheringFuture.__hash__ = _hash_of_gather  # type: ignore[attr-defined]  # asyncio's own


def _ask_our_loop() -> None:
    kept = FunctionType(_all_tasks.__code__, _all_tasks.__globals__, "all_tasks", _all_tasks.__defaults__)

    def asked(loop: Any) -> Any:
        loop = loop or events._get_running_loop()
        return set(loop.tasks) if isinstance(loop, Loop) else kept(loop)

    tasks._stepwell_all_tasks = asked  # type: ignore[attr-defined]  # named for the code below

    def all_tasks(loop: Any = None) -> Any:
        return _stepwell_all_tasks(loop)  # type: ignore[name-defined]  # noqa: F821  # it runs among asyncio's names

    _all_tasks.__code__ = all_tasks.__code__
