"""A call of a task or a child, from inside a workflow: a coroutine, and the task of one, without the frames of either.

`await send(order)` runs it as any coroutine. `gather(*(send(order) for order in orders))`, a TaskGroup and
`create_task` make a task of each, whose whole work is to issue a command and to wait for its end: that is a future, and
takes less. It is told and cancelled in the same order of callbacks as a task of asyncio's own.
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
"""Whether only what is registered is known to asyncio.all_tasks. Else it asks our loop: see `ordered`."""

_AGAIN = "cannot reuse already awaited coroutine"


class Callee(Protocol):
    """What is called: a definition."""

    name: str

    def _issue(self, replay: Any, args: tuple[Any, ...], kwargs: dict[str, Any], by: Called | None) -> Called:
        """Ask for a run, with these arguments. Its end is told to the last, if that is given."""
        ...

    def _decode(self, result: bytes) -> Any: ...


class Calling(Coroutine[Any, Any, R], MakesItsTask, Generic[R]):
    """A call that was made. It begins when it is awaited, as that of an `async def` does."""

    __slots__ = ("_args", "_begun", "_callee", "_inner", "_kwargs", "_replay", "waits")

    def __init__(self, callee: Callee, replay: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._callee = callee
        self._replay = replay
        self._args = args
        self._kwargs = kwargs
        self._begun = False
        self._inner: Coroutine[Any, Any, R] | None = None
        self.waits = False
        """Its task has issued it, and has not ended."""

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

    cr_running = False  # with the next three, inspect.getcoroutinestate tells of it as of any coroutine

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
    """The task of a call: what asyncio may ask of a task, without the coroutine.

    It stands in the line of callbacks itself, as its own handle: first to be issued, and again when it was answered, as
    a task does that waits for a future.
    """

    __slots__ = (
        "_asked", "_begun", "_calling", "_cancels", "_context", "_log_destroy_pending", "_named", "_told",
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
        """It was issued, and is not answered."""
        self._told: bytes | BaseException | None = None
        self._asked = False
        """It is to be cancelled."""
        self._cancels = 0
        self._log_destroy_pending = True
        if REGISTERED:
            asyncio.tasks._register_task(self)  # type: ignore[arg-type]  # as one, for asyncio.all_tasks
        if eager:
            self._context.run(self._callback)
        else:
            loop.ready(self)

    def _callback(self) -> None:
        """Its turn in the line has come."""
        told = self._told
        self._calling.waits = False
        if self._asked:
            super(Called, self).cancel()
        elif told is None:
            self._begin()
        elif isinstance(told, BaseException):
            self._fail(told)
        else:
            try:
                result = self._calling.decode(told)
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
            loop.next_seq()  # that of the future for which a task would wait: sets are walked as with one

    def set_result(self, result: bytes) -> None:
        self._answered(result)

    def set_exception(self, exception: Any) -> None:
        self._answered(exception)

    def _answered(self, told: bytes | BaseException) -> None:
        self._begun, self._told = False, told
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
        self._asked = True
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
        return self._asked

    @property
    def _fut_waiter(self) -> asyncio.Future[Any] | None:
        """What it waits for, as anyio asks: nothing before it is issued, and what is done once it was answered."""
        return self if self._begun else None if self._told is None else _DONE

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
"""A future that belongs to no loop, and is done."""
