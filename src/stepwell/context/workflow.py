"""`workflow`: what a workflow's code may ask for, beside plain asyncio."""

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
    """`workflow` is only there inside a function with @app.workflow that a worker runs."""


class Update(Generic[P, R]):
    """A handler of updates. `@handler.validator` adds a check that may refuse one before anything happens."""

    def __init__(self, fn: Callable[P, R], set_validator: Callable[[Callable[..., Any]], None]) -> None:
        self.fn = fn
        self._set_validator = set_validator

    def validator(self, fn: Callable[P, Any]) -> Callable[P, Any]:
        """The function that is asked first, with the same arguments: what it raises refuses the update."""
        self._set_validator(fn)
        return fn


class WorkflowContext:
    """The workflow this code belongs to. Everything here raises NotInAWorkflow outside of one."""

    def now(self) -> datetime:
        """The time, as of the last thing that happened to this workflow: the same whenever it is told again."""
        return _replay().now

    @property
    def random(self) -> Random:
        """Random numbers that are the same whenever it is told again."""
        return _replay().random

    def uuid(self) -> UUID:
        """A random UUID that is the same whenever it is told again."""
        return UUID(int=_replay().random.getrandbits(128), version=4)

    def info(self) -> About:
        return _replay().about

    @property
    def replaying(self) -> bool:
        """Whether this was done before, and is only told again: for what is seen outside, such as a log line."""
        return _replay().replaying

    @overload
    async def signal(self, name: str, type: type[T], *, timeout: Duration | None = None) -> T: ...
    @overload
    async def signal(self, name: str, type: Any = Any, *, timeout: Duration | None = None) -> Any: ...
    async def signal(self, name: str, type: Any = Any, *, timeout: Duration | None = None) -> Any:
        """The next signal of this name, whether it has come or comes yet. TimeoutError if none does in time."""
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
        """Show this to those outside: `await run.state(Type)` and SQL read the last one, worker or no worker."""
        _replay().publish(encode(state, where="publish(state)"))

    def patched(self, id: str) -> bool:
        """Whether to go the new way. A run that went here before this line was written goes the old one."""
        return _replay().patched(_checked(id))

    def on_rollback(self, fn: Callable[P, Awaitable[Any]], *args: P.args, **kwargs: P.kwargs) -> None:
        """Should this workflow fail or be cancelled, await this first; what was added last, first of all."""
        if not callable(fn):
            raise InvalidSetting("on_rollback", fn, "a task, a step or an async function, and then its arguments")
        _replay().on_rollback(lambda: fn(*args, **kwargs))

    def continue_as_new(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Begin again with these arguments and an empty history. The same run, with the same id."""
        raise ContinueAsNew(_replay().code.encode_input(args, kwargs))

    def update(self, fn: Callable[P, R]) -> Update[P, R]:
        """Let this function answer `run.update(name, …)`, by its name. `def` or `async def`, inside the workflow's."""
        if not hasattr(fn, "__code__"):
            raise WrongUse("@workflow.update takes a function: def or async def, inside the workflow's")
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
        raise InvalidSetting("name", name, f"some printable text of up to {_LONGEST} bytes")
    return name


workflow = WorkflowContext()
