"""`current.checkpoint`: state that a body saves, so that the next attempt at the same run need not begin anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, Protocol, TypeVar, overload

from stepwell.codec import Value, value_of
from stepwell.model.errors import InvalidSetting, NewerCheckpoint, WrongUse
from stepwell.model.notes import Saved
from stepwell.model.run import Claim

T = TypeVar("T")
H = TypeVar("H", contravariant=True)
"""An attempt under way."""

_PLAIN = frozenset({dict, list, str, int, float, bool, type(None)})
_LAST_SCHEMA = 2**31 - 1


class Shelf(Protocol[H]):
    """The storage of checkpoints, as a body sees it. Its verbs raise ClaimLost when the attempt has lost its claim."""

    async def save(self, here: H, state: bytes, schema: int) -> int: ...

    async def load(self, here: H) -> Saved | None: ...

    def wait_for(self, asked: Coroutine[Any, Any, T]) -> T:
        """Wait for a verb, for code that cannot await."""
        ...


class Checkpoint:
    """The state that a run's body saved last. An attempt that begins after a crash loads it, and goes on from there.

    >>> @app.task
    ... async def migrate(total: int) -> None:
    ...     done = await current.checkpoint.load(int, 0)
    ...     for page in range(done, total):
    ...         await copy(page)
    ...         await current.checkpoint.save(page + 1)

    `schema` is the version number of the state's shape. Raise it, here or as `__schema__` of the class, when older code
    could no longer read what is saved. Code with a lower number then gets NewerCheckpoint, and overwrites nothing.
    """

    __slots__ = ("_alive", "_claim", "_here", "_shelf")

    def __init__(self, shelf: Shelf[Any], here: Any, claim: Claim, *, alive: Callable[[], None]) -> None:
        self._shelf = shelf
        self._here = here
        self._claim = claim
        self._alive = alive

    async def save(self, state: Any, of: Any = None, *, schema: int | None = None) -> int:
        """Save `state` in place of what was saved before. Return how many times this run has saved.

        Give its type as `of` where its class is not enough to decode it by: `list[Order]`.
        """
        kind = of if of is not None else Any if type(state) in _PLAIN else type(state)
        data = _value(kind).encode(state, "the checkpoint")
        self._alive()
        try:
            return await self._shelf.save(self._here, data, _number(kind, schema))
        finally:
            self._alive()

    @overload
    async def load(self, of: type[T], default: T, *, schema: int | None = None) -> T: ...
    @overload
    async def load(self, of: type[T], default: None = None, *, schema: int | None = None) -> T | None: ...
    @overload
    async def load(self, of: Any = ..., default: Any = ..., *, schema: int | None = None) -> Any: ...
    async def load(self, of: Any = Any, default: Any = None, *, schema: int | None = None) -> Any:
        """Return what was saved last, by any attempt of this run; `default` if nothing was."""
        value, known = _value(of), _number(of, schema)
        self._alive()
        saved = await self._shelf.load(self._here)
        if saved is None:
            return default
        if saved.schema > known:
            raise NewerCheckpoint(self._claim.id, saved.schema, known)
        return value.decode(saved.state, "the checkpoint")

    @property
    def sync(self) -> SyncCheckpoint:
        """The same verbs for blocking code."""
        return SyncCheckpoint(self, self._shelf)


class SyncCheckpoint:
    """The verbs of a Checkpoint for `def` bodies.

    >>> current.checkpoint.sync.save(page + 1)
    """

    __slots__ = ("_checkpoint", "_shelf")

    def __init__(self, checkpoint: Checkpoint, shelf: Shelf[Any]) -> None:
        self._checkpoint = checkpoint
        self._shelf = shelf

    def save(self, state: Any, of: Any = None, *, schema: int | None = None) -> int:
        """Save `state` in place of what was saved before, as Checkpoint.save does."""
        _refuse_in_event_loop()
        return self._shelf.wait_for(self._checkpoint.save(state, of, schema=schema))

    @overload
    def load(self, of: type[T], default: T, *, schema: int | None = None) -> T: ...
    @overload
    def load(self, of: type[T], default: None = None, *, schema: int | None = None) -> T | None: ...
    @overload
    def load(self, of: Any = ..., default: Any = ..., *, schema: int | None = None) -> Any: ...
    def load(self, of: Any = Any, default: Any = None, *, schema: int | None = None) -> Any:
        """Return what was saved last, as Checkpoint.load does."""
        _refuse_in_event_loop()
        return self._shelf.wait_for(self._checkpoint.load(of, default, schema=schema))


def _refuse_in_event_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise WrongUse(
        "checkpoint.sync blocks, and would stop the event loop of this code: await checkpoint.save() or load()"
    )


def _value(kind: Any) -> Value:
    try:
        return _kept_value(kind)
    except TypeError:  # an annotation that cannot be hashed
        return value_of(kind, "the checkpoint")


@lru_cache(maxsize=256)
def _kept_value(kind: Any) -> Value:
    return value_of(kind, "the checkpoint")


def _number(kind: Any, given: int | None) -> int:
    schema = getattr(kind, "__schema__", 1) if given is None else given
    if not isinstance(schema, int) or isinstance(schema, bool) or not 1 <= schema <= _LAST_SCHEMA:
        raise InvalidSetting(
            "schema", schema, "a version number: an int from 1 on, raised with each new shape of the state"
        )
    return schema
