"""Make the parts of asyncio whose order is arbitrary deterministic on our loop. Other loops are not affected.

`as_completed` puts its arguments into a set, and so begins coroutines in the order of their addresses. Its code is
replaced in place, because other modules may have imported the function already. The future of a `gather` is hashed by
its address. `all_tasks` reads a set of weak references; the replacement asks our loop for its tasks instead.

Bare futures, `asyncio.Future()`, and bare tasks are implemented in C and hashed by address. `wait` returns sets of them
that iterate in the order of the arguments, or in the order in which the tasks were created.
"""

from __future__ import annotations

import asyncio
import inspect
from asyncio import events, tasks
from collections.abc import Iterable, Iterator, KeysView
from types import FunctionType
from typing import Any

from stepwell.model.errors import NotDurable
from stepwell.replay.calling import REGISTERED
from stepwell.replay.loop import Loop
from stepwell.replay.places import line_of_user

_MAKE_THEM = "Create them with asyncio.get_running_loop().create_future(), or pass a list."
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


class InOrder(set[Any]):
    """A set that iterates in insertion order, whatever the hashes of its members."""

    def __init__(self, members: Iterable[Any]) -> None:
        self._order = dict.fromkeys(members)
        super().__init__(self._order)

    def __iter__(self) -> Iterator[Any]:
        known = [each for each in self._order if each in self]
        return iter(known if len(known) == len(self) else [*known, *(set(set.__iter__(self)) - set(known))])

    def pop(self) -> Any:
        for each in self:
            self.discard(each)
            return each
        raise KeyError("pop from an empty set")


def _is_bare(future: Any) -> bool:
    return isinstance(future, asyncio.Future) and type(future).__hash__ is object.__hash__


def _order_of(given: Iterable[Any], loop: Loop) -> list[Any] | None:
    """Return the order for the results of `wait`; None if the hashes already determine it."""
    members = list(given)
    bare = [each for each in members if _is_bare(each)]
    if not bare:
        return None
    if not isinstance(given, set | frozenset | KeysView) or isinstance(given, InOrder) or len(bare) == 1:
        for each in bare:
            loop.number(each)
        return members
    numbers: dict[Any, Any] = {each: getattr(each, "_stepwell_seq", None) for each in bare}
    if None in numbers.values():
        raise NotDurable("a set of bare futures", line_of_user(), _MAKE_THEM)
    hashed = [each for each in members if not _is_bare(each)]
    return [*hashed, *sorted(bare, key=numbers.__getitem__)]


async def _wait_in_order(fs: Any, timeout: Any, return_when: Any) -> Any:
    loop = events._get_running_loop()
    if not isinstance(loop, Loop) or inspect.isawaitable(fs):
        return await _kept_wait(fs, timeout=timeout, return_when=return_when)
    if isinstance(fs, Iterator):
        fs = list(fs)
    order = _order_of(fs, loop)
    done, pending = await _kept_wait(fs, timeout=timeout, return_when=return_when)
    if order is None:
        return done, pending
    return InOrder(each for each in order if each in done), InOrder(each for each in order if each in pending)


def _kept(function: Any) -> Any:
    """Copy a function of asyncio before its code is replaced."""
    kept = FunctionType(function.__code__, function.__globals__, function.__name__, function.__defaults__)
    kept.__kwdefaults__ = function.__kwdefaults__
    return kept


_kept_wait = _kept(asyncio.wait)


def put_in_order() -> None:
    """Patch asyncio. A second call does nothing."""
    if hasattr(tasks, "_stepwell_as_completed"):
        return
    if not REGISTERED:
        _ask_our_loop()
    kept = _kept(_original)
    tasks._stepwell_as_completed = lambda fs, timeout: kept(_in_the_given_order(fs), timeout=timeout)  # type: ignore[attr-defined]  # named for the code below

    def as_completed(fs: Any, *, timeout: Any = None) -> Any:
        return _stepwell_as_completed(fs, timeout)  # type: ignore[name-defined]  # noqa: F821  # a global of asyncio's module

    _original.__code__ = as_completed.__code__
    tasks._stepwell_wait = _wait_in_order  # type: ignore[attr-defined]  # named for the code below

    async def wait(fs: Any, *, timeout: Any = None, return_when: Any = None) -> Any:
        return await _stepwell_wait(fs, timeout, return_when)  # type: ignore[name-defined]  # noqa: F821  # a global of asyncio's module

    asyncio.wait.__code__ = wait.__code__
    tasks._GatheringFuture.__hash__ = _hash_of_gather  # type: ignore[attr-defined]  # asyncio's own


def _ask_our_loop() -> None:
    kept = _kept(_all_tasks)

    def asked(loop: Any) -> Any:
        loop = loop or events._get_running_loop()
        if not isinstance(loop, Loop):
            return kept(loop)
        return InOrder(loop.tasks) if any(_is_bare(task) for task in loop.tasks) else set(loop.tasks)

    tasks._stepwell_all_tasks = asked  # type: ignore[attr-defined]  # named for the code below

    def all_tasks(loop: Any = None) -> Any:
        return _stepwell_all_tasks(loop)  # type: ignore[name-defined]  # noqa: F821  # a global of asyncio's module

    _all_tasks.__code__ = all_tasks.__code__
