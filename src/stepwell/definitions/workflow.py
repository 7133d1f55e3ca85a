"""Definitions of workflows and their steps, made by `@app.workflow` and `@app.step`."""

from __future__ import annotations

import ast
import asyncio
import inspect
import textwrap
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from types import CodeType
from typing import Any, Generic, ParamSpec, TypeVar

from stepwell.codec import Signature, encode
from stepwell.definitions.definition import FunctionDefinition, SyncFunction
from stepwell.definitions.mentions import Mentions, mentions
from stepwell.definitions.options import LONGEST_NAME, Handler, checked_text, positive
from stepwell.definitions.run import Run, SyncRun
from stepwell.model.duration import Duration
from stepwell.model.errors import WrongUse
from stepwell.model.keeping import Keeping
from stepwell.model.option_names import refuse_unknown_options
from stepwell.model.retry import Retry
from stepwell.replay.current_replay import here

P = ParamSpec("P")
R = TypeVar("R")


class Workflow(FunctionDefinition[P, R]):
    """A workflow: a function that survives its process. Made by `@app.workflow`.

    >>> @app.workflow
    ... async def order(id: int) -> str:
    ...     receipt = await charge(id, 1999)
    ...     return await ship(id, receipt)
    >>> run = await order.start(7)
    """

    kind = "workflow"
    executor = "turn"
    heartbeat = None

    @refuse_unknown_options
    def options(
        self,
        *,
        key: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        unique: bool | str | None = None,
        keep: Keeping | None = None,
        tags: Mapping[str, Any] | None = None,
        on_failure: Handler | None = None,
        pinned: bool | None = None,
        tx: object = None,
    ) -> Workflow[P, R]:
        """Return the same workflow with other options for the runs started through it. `timeout` limits the whole run.

        A `pinned` run is run only by workers that have this very version of the code. Without such a worker it waits.
        """
        given = {
            "key": key, "priority": priority, "delay": delay, "at": at, "queue": queue, "deadline": timeout,
            "expires": expires, "unique": unique, "keep": keep, "tags": tags, "on_failure": on_failure, "tx": tx,
        }  # fmt: skip
        changes = {name: value for name, value in given.items() if value is not None}
        if pinned is not None:
            changes["pin"] = self.version if pinned else None
        return Workflow(self._app, self.fn, name=self.name, options=self._changed(changes), signature=self.signature)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Start a child and await its result, in a workflow. Elsewhere, call the bare function here and now."""
        replay = here()
        return self._run_bare(*args, **kwargs) if replay is None else self._call_durably(replay, args, kwargs)

    async def _run_bare(self, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = await self.fn(*args, **kwargs)
        return result

    async def signal_or_start(self, name: str, value: Any = None, /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Send a signal to the run with this key, or to the unfinished run with this `unique`. If there is none, start
        one.

        The arguments after `value` are for the new run, which finds the signal waiting. Start and signal are stored
        together or not at all.

        >>> run = await cart.options(unique="cart-7").signal_or_start("add", item, customer)
        """
        if self._options.key is None and not self._options.unique:
            raise WrongUse("signal_or_start needs a key to find the run by: add .options(key=…) or .options(unique=…)")
        data = encode(value, where=f"signal {name!r}")
        checked_text("name", name, LONGEST_NAME)
        start = self._start(args, kwargs, self._options, self._options.terms(self.name, self.kind))
        whom = self._app.door.outside if self._options.tx is None else self._options.tx
        run = self._run(await whom.signal_or_start(start, name, data), start.key)
        self._app.doubt_signal(self.name, name)
        return run

    @property
    def sync(self) -> SyncWorkflow[P, R]:
        """The same verbs for blocking code."""
        return SyncWorkflow(self)

    # -- for its turns

    @cached_property
    def version(self) -> str:
        """Digest of the code, which tells it from other code of the same name."""
        return version_of(self.fn)

    @cached_property
    def mentions(self) -> Mentions | None:
        """The signals that its code waits for; None if reading the code cannot tell."""
        return mentions(self.fn)

    @property
    def has_timeout(self) -> bool:
        """True if its decorator sets a timeout for the whole run."""
        return self._options.deadline is not None

    async def coroutine(self, input: bytes) -> bytes:
        args, kwargs = self.signature.decode_input(input)
        return self.signature.encode_result(await self.fn(*args, **kwargs))

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.signature.encode_input(args, kwargs)


class SyncWorkflow(SyncFunction[P, R]):
    """The verbs of a workflow for blocking code."""

    def __init__(self, workflow: Workflow[P, R]) -> None:
        super().__init__(workflow)
        self._workflow = workflow

    def signal_or_start(self, name: str, value: Any = None, /, *args: P.args, **kwargs: P.kwargs) -> SyncRun[R]:
        """Send a signal to a run, or start one that finds it, as Workflow.signal_or_start does."""
        return SyncRun(self._caller.call(lambda: self._workflow.signal_or_start(name, value, *args, **kwargs)))


class Step(Generic[P, R]):
    """A step: a function that a workflow runs inline, and whose result is recorded. Made by `@app.step`.

    >>> @app.step(timeout="10s")
    ... def price_of(item: str) -> int: ...
    >>> @app.workflow
    ... async def order(item: str) -> int:
    ...     return await price_of(item)
    """

    def __init__(
        self,
        fn: Callable[P, Any],
        *,
        name: str,
        executor: str,
        retry: Retry,
        timeout: Duration | None = None,
        signature: Signature | None = None,
    ) -> None:
        self.fn = fn
        self.name = name
        self.executor = executor
        self.retry = retry
        self.timeout = None if timeout is None else positive("timeout", timeout).total_seconds()
        self.signature = signature or Signature(fn, name=name)
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn
        self.__module__, self.__qualname__ = fn.__module__, fn.__qualname__

    def __repr__(self) -> str:
        return f"<Step {self.name}>"

    @refuse_unknown_options
    def options(self, *, retry: Retry | None = None, timeout: Duration | None = None) -> Step[P, R]:
        """Return the same step with another retry policy or timeout."""
        return Step(
            self.fn, name=self.name, executor=self.executor, retry=retry or self.retry,
            timeout=self.timeout if timeout is None else timeout, signature=self.signature,
        )  # fmt: skip

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here, and record its result, in a workflow. Elsewhere, call the bare function."""
        replay = here()
        if replay is not None:
            data = await replay.step(self, self.signature.encode_input(args, kwargs))
            result: R = self.signature.decode_result(data)
        elif inspect.iscoroutinefunction(self.fn):
            result = await self.fn(*args, **kwargs)
        else:
            result = await asyncio.to_thread(self.fn, *args, **kwargs)
        return result


def version_of(fn: Callable[..., Any]) -> str:
    """Return a digest of a function's source, without comments and layout; if there is no source, of its bytecode."""
    fn = inspect.unwrap(fn)
    try:
        told = ast.dump(ast.parse(textwrap.dedent(inspect.getsource(fn)))).encode()
    except (OSError, TypeError, SyntaxError):
        told = repr(_facts(fn.__code__)).encode()
    return blake2b(told, digest_size=6).hexdigest()


def _facts(code: CodeType) -> tuple[Any, ...]:
    """Return what a function's bytecode does, without file and line numbers."""
    consts = [_facts(each) if isinstance(each, CodeType) else each for each in code.co_consts]
    return code.co_code, code.co_names, code.co_varnames, consts
