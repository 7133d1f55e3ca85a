"""Calls of tasks and children from inside a workflow: a coroutine, and an asyncio task, without a frame for either.

`await send(order)` runs the call as any coroutine. `gather(*(send(order) for order in orders))`, a TaskGroup and
`create_task` make a task of each call. Such a task only issues a command and waits for its end, so a future can do its
work at a lower cost. It completes and is cancelled in the same order of callbacks as a task of asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import warnings
from collections.abc import Coroutine, Generator
from contextvars import Context, copy_context
from typing import Any, Generic, Protocol, TypeVar

from stepwell.replay.called import Called
from stepwell.replay.futures import EndsItself, MakesItsTask, name_of_task
from stepwell.replay.loop import Loop

R = TypeVar("R")

REGISTERED = not hasattr(asyncio.all_tasks, "__code__")
"""True if asyncio.all_tasks finds only registered tasks. Otherwise it asks our loop: see `ordered`."""

_AGAIN = "cannot reuse already awaited coroutine"


class Callee(Protocol):
    """The definition that is called."""

    name: str

    def _issue(self, replay: Any, args: tuple[Any, ...], kwargs: dict[str, Any], by: Called | None) -> Called:
        """Request a run with these arguments. If `by` is given, it receives the end."""
        ...

    def _decode(self, result: bytes) -> Any: ...


class Calling(Coroutine[Any, Any, R], MakesItsTask, Generic[R]):
    """A call that begins when it is awaited, like the coroutine of an `async def`."""

    __slots__ = ("_args", "_begun", "_callee", "_inner", "_kwargs", "_replay", "waits")

    def __init__(self, callee: Callee, replay: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._callee = callee
        self._replay = replay
        self._args = args
        self._kwargs = kwargs
        self._begun = False
        self._inner: Coroutine[Any, Any, R] | None = None
        self.waits = False
        """True while its task has issued the command and waits for the end."""

    def __await__(self) -> Generator[Any, Any, R]:
        return self._coroutine().__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine().throw(*error)

    def close(self) -> None:
        self._begun = True
        if self._inner is not None:
            self._inner.close()

    def make_task(self, loop: Loop, name: object, context: Context | None, *, eager: bool) -> CallTask[R]:
        if self._begun:
            raise RuntimeError(_AGAIN)
        self._begun = True
        return CallTask(self, loop, name, context, eager=eager)

    def issue(self, by: Called | None = None) -> Called:
        return self._callee._issue(self._replay, self._args, self._kwargs, by)

    def decode(self, result: bytes) -> R:
        decoded: R = self._callee._decode(result)
        return decoded

    def _coroutine(self) -> Coroutine[Any, Any, R]:
        if self._inner is None:
            if self._begun:
                raise RuntimeError(_AGAIN)
            self._begun, self._inner = True, self._run()
        return self._inner

    async def _run(self) -> R:
        return self.decode(await self.issue())

    cr_running = False  # with the next three attributes, inspect.getcoroutinestate works as for any coroutine

    @property
    def cr_suspended(self) -> bool:
        inner: Any = self._inner
        return self.waits if inner is None else inspect.getcoroutinestate(inner) == inspect.CORO_SUSPENDED

    @property
    def cr_frame(self) -> Any:
        return getattr(self._inner, "cr_frame", None)

    @property
    def cr_await(self) -> Any:
        return getattr(self._inner, "cr_await", None)

    def __repr__(self) -> str:
        return f"<call of {self._callee.name}>"

    def __del__(self) -> None:
        if not self._begun:
            warnings.warn(f"coroutine {self._callee.name!r} was never awaited", RuntimeWarning, stacklevel=2)


class CallTask(Called, EndsItself, Generic[R]):
    """The task of a call. It has the interface of an asyncio task, but no coroutine.

    The task is its own handle in the queue of callbacks: first to issue its command, and again after the answer, like a
    task that waits for a future.
    """

    __slots__ = (
        "_answer", "_begun", "_calling", "_cancelling", "_cancels", "_context", "_log_destroy_pending", "_named",
        "maker",
    )  # fmt: skip
    _cancelled = False
    _args = ()
    is_told_elsewhere = False

    def __init__(
        self, calling: Calling[R], loop: Loop, name: object, context: Context | None, *, eager: bool = False
    ) -> None:
        self.seq = loop.next_seq()
        asyncio.Future.__init__(self, loop=loop)
        self.issuer = None
        self.maker = loop.current_task()
        self._calling = calling
        self._context = copy_context() if context is None else context
        self._named = loop.name_task(name)
        self._begun = False
        """True if the command was issued and has no answer yet."""
        self._answer: bytes | BaseException | None = None
        self._cancelling = False
        """True if a cancellation was requested."""
        self._cancels = 0
        self._log_destroy_pending = True
        if REGISTERED:
            asyncio.tasks._register_task(self)  # type: ignore[arg-type]  # so that asyncio.all_tasks finds it
        if eager:
            self._context.run(self._callback)
        else:
            loop.ready(self)

    def _callback(self) -> None:
        """Issue the command, or deliver the answer. The loop calls this as the callback of the handle."""
        answer = self._answer
        self._calling.waits = False
        if self._cancelling:
            super(Called, self).cancel()
        elif answer is None:
            self._begin()
        elif isinstance(answer, BaseException):
            self._fail(answer)
        else:
            try:
                result = self._calling.decode(answer)
            except BaseException as error:
                self._fail(error)
            else:
                super().set_result(result)

    def _begin(self) -> None:
        try:
            self._calling.issue(self)
            self._begun = self._calling.waits = True
        except BaseException as error:
            self._fail(error)
        else:
            loop: Any = self.get_loop()
            loop.next_seq()  # counts the future that an asyncio task would create: sets keep the same order as with one

    def set_result(self, result: bytes) -> None:
        self._answered(result)

    def set_exception(self, exception: Any) -> None:
        self._answered(exception)

    def _answered(self, answer: bytes | BaseException) -> None:
        self._begun, self._answer = False, answer
        loop: Any = self.get_loop()
        loop.ready(self)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            super(Called, self).cancel()
            return
        super().set_exception(error)
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise error

    def cancel(self, msg: Any | None = None) -> bool:
        if self.done():
            return False
        self._cancels += 1
        self._cancelling = True
        if self._begun and self.issuer is not None:
            self._begun = False
            self.issuer.give_up(self)
            self.get_loop().call_soon(super(Called, self).cancel, msg, context=self._context)
        return True

    def end(self) -> None:
        super(Called, self).cancel()

    # -- as a task

    @property
    def _must_cancel(self) -> bool:
        return self._cancelling

    @property
    def _fut_waiter(self) -> asyncio.Future[Any] | None:
        """The awaited future, for anyio: None before the command is issued, and a done future once it was answered."""
        return self if self._begun else None if self._answer is None else _DONE

    def get_coro(self) -> Calling[R]:
        return self._calling

    def get_context(self) -> Context:
        return self._context

    def get_name(self) -> str:
        return name_of_task(self._named)

    def set_name(self, value: object) -> None:
        self._named = str(value)

    def cancelling(self) -> int:
        return self._cancels

    def uncancel(self) -> int:
        self._cancels = max(0, self._cancels - 1)
        return self._cancels

    def get_stack(self, *, limit: int | None = None) -> list[Any]:
        return []

    def print_stack(self, *, limit: int | None = None, file: Any = None) -> None:
        print(repr(self), file=file)


class _Done(asyncio.Future[Any]):
    def done(self) -> bool:
        return True


_DONE = _Done.__new__(_Done)
"""A done future that belongs to no loop."""
