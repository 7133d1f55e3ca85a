"""`workflow`: verbs for the code of a workflow, beside plain asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from random import Random
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

from stepwell.codec import encode, value_of
from stepwell.model.duration import Duration, duration
from stepwell.model.errors import InvalidSetting, UsageError, WrongUse
from stepwell.replay.current_replay import here
from stepwell.replay.replay import About, ContinueAsNew, Replay

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_LONGEST = 200


class NotInAWorkflow(UsageError):
    """`workflow` works only inside a function with @app.workflow that a worker runs."""


class Update(Generic[P, R]):
    """A handler of updates, made by `@workflow.update`.

    >>> @workflow.update
    ... async def rename(name: str) -> str: ...
    >>> @rename.validator
    ... def check(name: str) -> None:
    ...     if not name:
    ...         raise ValueError("a name is required")
    """

    def __init__(self, fn: Callable[P, R], set_validator: Callable[[Callable[..., Any]], None]) -> None:
        self.fn = fn
        self._set_validator = set_validator

    def validator(self, fn: Callable[P, Any]) -> Callable[P, Any]:
        """Register a function that checks an update first, with the same arguments. If it raises, the update is
        rejected."""
        self._set_validator(fn)
        return fn


class WorkflowContext:
    """The workflow that this code belongs to. Outside of a workflow, every member raises NotInAWorkflow.

    >>> @app.workflow
    ... async def order(id: int) -> str:
    ...     paid = await workflow.signal("paid", bool, timeout="3d")
    ...     workflow.publish({"paid": paid})
    ...     return await ship(id)
    """

    def now(self) -> datetime:
        """Return the time of the last event of this workflow: the same time in every replay."""
        return _replay().now

    @property
    def random(self) -> Random:
        """Random numbers that are the same in every replay."""
        return _replay().random

    def uuid(self) -> UUID:
        """Return a random UUID that is the same in every replay."""
        return UUID(int=_replay().random.getrandbits(128), version=4)

    def info(self) -> About:
        """Return the workflow's id, name, queue and the like."""
        return _replay().about

    @property
    def replaying(self) -> bool:
        """True while the code is replayed. Use it to skip outside effects that were seen before, such as a log line."""
        return _replay().replaying

    @overload
    async def signal(self, name: str, type: type[T], *, timeout: Duration | None = None) -> T: ...
    @overload
    async def signal(self, name: str, type: Any = Any, *, timeout: Duration | None = None) -> Any: ...
    async def signal(self, name: str, type: Any = Any, *, timeout: Duration | None = None) -> Any:
        """Wait for the next signal of this name, and return its value. A signal that came earlier counts.

        Raises TimeoutError if none comes within `timeout`.
        """
        replay = _replay()
        _checked(name)
        seconds = None if timeout is None else duration(timeout, setting="timeout").total_seconds()
        value = value_of(type, f"signal {name!r}")
        waiting = replay.wait_for_signal(name, seconds)
        try:
            data = await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled() and waiting.exception() is None:
                replay.give_back(name, waiting)
            raise
        return value.decode(data, f"signal {name!r}")

    def publish(self, state: Any) -> None:
        """Publish a state for readers outside: `await run.state(Type)` and SQL read the last one, also while no worker
        runs."""
        _replay().publish(encode(state, where="publish(state)"))

    def patched(self, id: str) -> bool:
        """True if new code is to be taken here. A run that passed this place before the line was written gets False."""
        return _replay().patched(_checked(id))

    def on_rollback(self, fn: Callable[P, Awaitable[Any]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Register a compensation: if this workflow fails or is cancelled, `fn` is awaited with these arguments first.

        Compensations run in reverse order, the last one registered first.
        """
        if not callable(fn):
            raise InvalidSetting(
                "on_rollback", fn, "must be a task, a step or an async function, followed by its arguments"
            )
        _replay().on_rollback(lambda: fn(*args, **kwargs))

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Begin again with these arguments and an empty history. The run keeps its id."""
        raise ContinueAsNew(_replay().code.encode_input(args, kwargs))

    def update(self, fn: Callable[P, R]) -> Update[P, R]:
        """Register a function as the handler of `run.update(name, …)`, by its own name. It is a `def` or an `async def`
        inside the workflow's function."""
        if not hasattr(fn, "__code__"):
            raise WrongUse("@workflow.update takes a function: a def or an async def inside the workflow's function")
        handler = _replay().updates.register(fn.__name__, fn)

        def set_validator(check: Callable[..., Any]) -> None:
            handler.validate = check

        return Update(fn, set_validator)


def _replay() -> Replay:
    replay = here()
    if replay is None:
        raise NotInAWorkflow
    return replay


def _checked(name: str) -> str:
    if not isinstance(name, str) or not name or not name.isprintable() or len(name.encode()) > _LONGEST:
        raise InvalidSetting("name", name, f"must be printable text of 1 to {_LONGEST} bytes")
    return name


workflow = WorkflowContext()
