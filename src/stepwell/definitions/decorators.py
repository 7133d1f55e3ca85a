"""The decorators of an app: `@app.task`, `@app.workflow` and `@app.step`. They know no concrete part of the app."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

from stepwell.definitions.definition import Definitions, Task
from stepwell.definitions.options import LONGEST_NAME, Handler, LimitBy, Options, checked_text
from stepwell.definitions.run import Opened
from stepwell.definitions.workflow import Step, Workflow
from stepwell.executors.registry import Executors
from stepwell.model.duration import Duration
from stepwell.model.errors import InvalidSetting, WrongUse
from stepwell.model.keeping import Keeping
from stepwell.model.option_names import refuse_unknown_options
from stepwell.model.pins import pin_of
from stepwell.model.retry import DEFAULT, LOST_TURNS, Retry

P = ParamSpec("P")
R = TypeVar("R")

ONCE = Retry(attempts=1)
"""Retry policy of a step that was given none."""


class TaskDecorator(Protocol):
    """`@app.task(...)` with options, as type checkers see it."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Task[P, R]: ...


class WorkflowDecorator(Protocol):
    """`@app.workflow(...)` with options, as type checkers see it."""

    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...


class StepDecorator(Protocol):
    """`@app.step(...)` with options, as type checkers see it."""

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Step[P, R]: ...


class Registering:
    """The part of an app that registers tasks, workflows and steps."""

    definitions: Definitions
    executors: Executors

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, R]: ...
    @overload
    def task(self, fn: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 50,
        retry: Retry = DEFAULT,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        deadline: Duration | None = None,
        heartbeat: Duration | None = None,
        executor: str | None = None,
        limit_by: LimitBy | None = None,
        per_key: int | None = None,
        unique: bool | None = None,
        keep: Keeping | None = None,
        tags: Mapping[str, Any] | None = None,
        on_failure: Handler | None = None,
    ) -> TaskDecorator: ...
    @refuse_unknown_options
    def task(
        self,
        fn: Any = None,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 50,
        retry: Retry = DEFAULT,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        deadline: Duration | None = None,
        heartbeat: Duration | None = None,
        executor: str | None = None,
        limit_by: LimitBy | None = None,
        per_key: int | None = None,
        unique: bool | None = None,
        keep: Keeping | None = None,
        tags: Mapping[str, Any] | None = None,
        on_failure: Handler | None = None,
    ) -> Any:
        """Register a function as a task. An `async def` runs on the worker's event loop, a `def` in a thread.

        >>> @app.task(retry=Retry(attempts=5), timeout="30s")
        ... async def charge(order: int, cents: int) -> str: ...
        >>> run = await charge.start(7, 1999)
        >>> receipt = await run.result()
        """
        options = Options(
            queue=queue, priority=priority, retry=retry, timeout=timeout, expires=expires, deadline=deadline,
            limit_by=limit_by, per_key=per_key, unique=unique, keep=keep, tags=tags,
            on_failure=on_failure,
        )  # fmt: skip

        def register(fn: Callable[..., Any]) -> Task[..., Any]:
            _checked_function(fn, "task")
            place = self.executors.place_of(fn, executor)
            task: Task[..., Any] = Task(
                cast(Opened, self), fn, name=name or _name_of(fn), options=options, executor=place, heartbeat=heartbeat
            )
            self.definitions.add(task)
            return task

        return register if fn is None else register(fn)

    @overload
    def workflow(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
    @overload
    def workflow(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 50,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        unique: bool | None = None,
        keep: Keeping | None = None,
        tags: Mapping[str, Any] | None = None,
        on_failure: Handler | None = None,
    ) -> WorkflowDecorator: ...
    @refuse_unknown_options
    def workflow(
        self,
        fn: Any = None,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 50,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        unique: bool | None = None,
        keep: Keeping | None = None,
        tags: Mapping[str, Any] | None = None,
        on_failure: Handler | None = None,
    ) -> Any:
        """Register an `async def` as a workflow: code that survives its process. `timeout` limits the whole run, from
        its start on.

        >>> @app.workflow
        ... async def order(id: int) -> str:
        ...     receipt = await charge(id, 1999)
        ...     await asyncio.sleep(3 * 24 * 3600)
        ...     return await ship(id, receipt)
        """
        options = Options(
            queue=queue, priority=priority, retry=LOST_TURNS, deadline=timeout, expires=expires, unique=unique,
            keep=keep, tags=tags, on_failure=on_failure,
        )  # fmt: skip

        def register(fn: Callable[..., Any]) -> Workflow[..., Any]:
            _checked_function(fn, "workflow")
            if not inspect.iscoroutinefunction(fn):
                raise WrongUse(
                    f"{fn.__qualname__} is a plain def: a workflow must be an async def, so that it can await its tasks"
                )
            if pin_of(name or "") is not None:
                raise InvalidSetting(
                    "name", name, "must not end with @ and a version, which is how pinned runs are named"
                )
            workflow: Workflow[..., Any] = Workflow(cast(Opened, self), fn, name=name or _name_of(fn), options=options)
            self.definitions.add(workflow)
            return workflow

        return register if fn is None else register(fn)

    @overload
    def step(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Step[P, R]: ...
    @overload
    def step(self, fn: Callable[P, R], /) -> Step[P, R]: ...
    @overload
    def step(
        self,
        *,
        name: str | None = None,
        retry: Retry = ONCE,
        timeout: Duration | None = None,
        executor: str | None = None,
    ) -> StepDecorator: ...
    @refuse_unknown_options
    def step(
        self,
        fn: Any = None,
        *,
        name: str | None = None,
        retry: Retry = ONCE,
        timeout: Duration | None = None,
        executor: str | None = None,
    ) -> Any:
        """Register a function as a step: a workflow runs it inline, in its own worker, and its result is recorded.

        >>> @app.step
        ... def price_of(item: str) -> int: ...
        """

        def register(fn: Callable[..., Any]) -> Step[..., Any]:
            _checked_function(fn, "step")
            place = self.executors.place_of(fn, executor)
            step: Step[..., Any] = Step(
                fn, name=checked_text("name", name or _name_of(fn), LONGEST_NAME), retry=retry, timeout=timeout,
                executor=place,
            )  # fmt: skip
            return step

        return register if fn is None else register(fn)


def _name_of(fn: Callable[..., Any]) -> str:
    """Return `module.function`. A script run as `__main__` gets the name that it would have if it were imported."""
    module = fn.__module__
    if module in ("__main__", "__mp_main__", "__stepwell_main__"):
        main = sys.modules.get(module)
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(path).stem if path else module
    return f"{module}.{fn.__qualname__}".replace(".<locals>", "")


def _checked_function(fn: Any, kind: str) -> None:
    if not callable(fn) or not hasattr(fn, "__code__"):
        raise WrongUse(f"@app.{kind} takes a function (async def or def), not {fn!r}")
    if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise WrongUse(f"{fn.__qualname__} is a generator: a {kind} must return its result, not yield")
    if inspect.ismethod(fn) or _takes_self(fn):
        raise WrongUse(
            f"{fn.__qualname__} is a method: a worker has no object to call it on. Make the {kind} a function at "
            "the top level of its module, and pass it what it needs as arguments"
        )


def _takes_self(fn: Callable[..., Any]) -> bool:
    """True if this function is defined in a class, and takes the object or class first."""
    around, _, _ = fn.__qualname__.rpartition(".")
    first = next(iter(inspect.signature(fn).parameters), None)
    return bool(around) and not around.endswith("<locals>") and first in ("self", "cls")
