"""Definitions of tasks and workflows: a function, its signature and its default options.

A definition starts runs through the app that it was registered with. It never touches a database itself.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sized
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import UUID

import msgspec

from stepwell.codec import Signature, encode_call
from stepwell.definitions.options import LONGEST_NAME, Call, Handler, Options, checked_text, positive
from stepwell.definitions.run import Door, Opened, Run, StartedRun, SyncRun, TransactionDoor
from stepwell.model.duration import Duration
from stepwell.model.errors import DuplicateName, InvalidSetting, NotDecodable, NotDurable, UnknownName
from stepwell.model.events import EventType
from stepwell.model.ids import RunId, new_run_id, new_run_ids
from stepwell.model.keeping import Keeping
from stepwell.model.option_names import refuse_unknown_options
from stepwell.model.pins import claim_name
from stepwell.model.retry import Retry
from stepwell.model.start import Start, Terms
from stepwell.replay.calling import Calling
from stepwell.replay.current_replay import here
from stepwell.replay.places import line_of_user
from stepwell.replay.replay import Called, Replay
from stepwell.sync import Portal

P = ParamSpec("P")
R = TypeVar("R")


_A_FAILED_RUN = (
    b'{"*": [{"id": "00000000-0000-7000-8000-000000000000", "name": "a.task", "input": {}, "tags": {}, '
    b'"error": {"type": "ValueError", "message": "", "reason": "raised", "code": null, "traceback": null}}]}'
)
"""Sample input, to check that a failure handler takes a FailedRun."""


class Definition(Generic[R]):
    """A definition that can be started by its name."""

    kind = "task"

    def __init__(self, app: Opened, name: str, options: Options) -> None:
        self._app = app
        self.name = checked_text("name", name, LONGEST_NAME)
        self._options = options

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name}>"

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return encode_call(args, kwargs)

    def _run(self, run_id: Any, key: str | None) -> Run[R]:
        return Run(self._app, run_id, key=key)

    def _start(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options, terms: Terms, id: RunId | None = None
    ) -> Start:
        input = self._encode(args, kwargs)
        start = Start(id or new_run_id(), input, terms)
        if options.tells_apart:
            start.limit_key = options.limit_key(args, kwargs)
            if options.key is not None:
                start.key, start.digest = options.key, _digest(self.name, input)
            elif options.unique:
                by = _digest(self.name, input).hex() if options.unique is True else options.unique
                place = "unique_key" if options.debounce is None else "debounce_key"
                setattr(start, place, f"{self.name}:{by}")
        return start

    async def _start_one(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Run[R]:
        start = self._start(args, kwargs, self._options, self._options.terms(self.name, self.kind))
        if (replay := here()) is not None:
            return self._start_durably(replay, start)
        return self._run(await self._door.start(start), start.key)

    def _start_durably(self, replay: Replay, start: Start) -> Run[R]:
        """Start a run from inside a workflow: it starts with the write of the turn, and its end is an event of the
        workflow."""
        called = self._called(replay, start)
        return StartedRun(self._app, start.id, called, key=start.key, decode=self._decode)

    def _called(
        self, replay: Replay, start: Start, takes: tuple[str, ...] | None = None, by: Called | None = None
    ) -> Called:
        setting = self._options.leads_elsewhere
        if setting or start.unique_key or start.debounce_key:
            # Such a start may lead to a run that another caller started. Its end would never reach this workflow.
            setting = setting or ("unique" if start.unique_key else "debounce")
            raise NotDurable(
                f"{setting}= for runs it starts", line_of_user(), "Leave it out, or start the run in a step."
            )
        type = EventType.CHILD_STARTED if self.kind == "workflow" else EventType.TASK_SCHEDULED
        return replay.call(type, start, takes or _takes(start.input), by)

    def _decode(self, result: bytes) -> Any:
        return self._app.decode_result(self.name, result)

    @property
    def _door(self) -> Door | TransactionDoor:
        return self._app.door if self._options.tx is None else self._options.tx

    def _changed(self, changes: Mapping[str, Any]) -> Options:
        if changes.get("tx") is None:
            return self._options.changed(changes)
        return self._options.changed({**changes, "tx": self._app.within(changes["tx"])})

    async def start_many(self, calls: Iterable[tuple[Any, ...] | Call]) -> list[Run[R]]:
        """Start many runs, all or none, with a few statements. A call is a tuple of arguments, or a Call for keyword
        arguments and options.

        >>> runs = await charge.start_many([(7, 1999), Call((8, 250), options={"priority": 10})])
        """
        calls = calls if isinstance(calls, Sized) else list(calls)
        if (replay := here()) is not None:
            return [self._start_durably(replay, start) for start in list(self._starts(calls))]
        runs: list[Run[R]] = []
        elsewhere = await self._door.start_many(self._noted(self._starts(calls), runs), len(calls))
        return [self._run(elsewhere.get(RunId(run.id), run.id), run.key) for run in runs] if elsewhere else runs

    def _noted(self, starts: Iterator[Start], runs: list[Run[R]]) -> Iterator[Start]:
        """Make the handles on the way, while the database works on the starts before."""
        for start in starts:
            runs.append(self._run(start.id, start.key))
            yield start

    def _starts(self, calls: Iterable[tuple[Any, ...] | Call]) -> Iterator[Start]:
        options, terms = self._options, self._options.terms(self.name, self.kind)
        ids, encode, tells_apart = new_run_ids(), self._encode, options.tells_apart
        for call in calls:
            if isinstance(call, tuple):
                if tells_apart:
                    yield self._start(call, {}, options, terms)
                else:
                    yield Start(next(ids), encode(call, {}), terms)
            elif not isinstance(call, Call):
                raise InvalidSetting("start_many", call, "each call must be a tuple of arguments, or a Call")
            elif "tx" in call.options:
                raise InvalidSetting(
                    "tx", "in a Call", "all runs start in one transaction: use .options(tx=…).start_many(…)"
                )
            elif call.options:
                own = options.changed(call.options)
                yield self._start(call.args, dict(call.kwargs), own, own.terms(self.name, self.kind))
            else:
                yield self._start(call.args, dict(call.kwargs), options, terms)


class NamedDefinition(Definition[Any]):
    """A definition known by its name only, made by `app.definition(name)`. Its input is plain data, checked against the
    signature if the code is loaded here."""

    def __init__(
        self, app: Opened, name: str, options: Options, known: FunctionDefinition[..., Any] | None = None
    ) -> None:
        super().__init__(app, name, options)
        self._known = known
        if known is not None:
            self.kind = known.kind

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        input = encode_call(args, kwargs)
        if self._known is not None:
            self._known.signature.decode_input(input)
        return input

    def options(self, **changes: Any) -> NamedDefinition:
        """Return the same definition with other options for the runs started through it."""
        return NamedDefinition(self._app, self.name, self._changed(changes), self._known)

    async def start(self, *args: Any, **kwargs: Any) -> Run[Any]:
        """Start a run, and return its handle."""
        return await self._start_one(args, kwargs)


class FunctionDefinition(Definition[R], Generic[P, R]):
    """A definition whose function is here: typed, and callable."""

    executor: str
    heartbeat: timedelta | None

    def __init__(
        self, app: Opened, fn: Callable[P, Any], *, name: str, options: Options, signature: Signature | None = None
    ) -> None:
        super().__init__(app, name, options)
        self.fn = fn
        self._child_terms: Terms | None = None
        self._takes: dict[int, tuple[str, ...]] = {}
        """Parameter names of calls with so many positional arguments."""
        self.signature = signature or Signature(fn, name=name)
        self.__doc__ = fn.__doc__
        self.__wrapped__ = fn
        # Tools that look the definition up by module and name find it where its function was defined.
        self.__module__, self.__qualname__ = fn.__module__, fn.__qualname__

    async def start(self, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Start a run, and return its handle. When this returns the run is accepted: it will reach a finished state,
        whatever process dies.

        >>> run = await charge.start(7, 1999)
        >>> print(await run.result())
        """
        return await self._start_one(args, kwargs)

    def as_handler(self) -> bytes:
        """Return the terms with which it is started as a failure handler. Raise InvalidSetting if it cannot take a
        FailedRun."""
        try:
            self.signature.decode_input(_A_FAILED_RUN)
        except (NotDecodable, TypeError) as error:
            raise InvalidSetting(
                "on_failure", self.name, f"must take a FailedRun as its only required argument: {error}"
            ) from None
        return self._options.packed_terms(self.name, self.kind)

    def _call_durably(self, replay: Replay, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Calling[R]:
        """Call it from inside a workflow: start a run, and return its result once that is recorded."""
        return Calling(self, replay, args, kwargs)

    def _issue(self, replay: Replay, args: tuple[Any, ...], kwargs: dict[str, Any], by: Called | None) -> Called:
        start = self._start(args, kwargs, self._options, self._terms_for(replay), _OF_THE_COMMAND)
        takes = None if kwargs else self._takes.get(len(args))
        if takes is None and (takes := _takes(start.input)) and not kwargs and len(takes) == len(args):
            self._takes[len(args)] = takes
        return self._called(replay, start, takes, by)

    def _terms_for(self, replay: Replay) -> Terms:
        """Return the terms of runs that this workflow starts, computed once for all of them."""
        if self._child_terms is None or self._child_terms.parent_id != replay.about.id:
            self._child_terms = self._options.terms(self.name, self.kind)
        return self._child_terms

    def _decode(self, result: bytes) -> Any:
        return self.signature.decode_result(result)

    @property
    def version(self) -> str | None:
        """Version of the code, for definitions whose runs depend on it; None for a task."""
        return None

    @property
    def sync(self) -> SyncFunction[P, R]:
        """The same verbs for blocking code."""
        return SyncFunction(self)

    def _encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.signature.encode_input(args, kwargs)

    def _run(self, run_id: Any, key: str | None) -> Run[R]:
        return Run(self._app, run_id, key=key, decode=self.signature.decode_result)


class Task(FunctionDefinition[P, R]):
    """A task: a function that workers run. Made by `@app.task`.

    >>> @app.task
    ... async def charge(order: int, cents: int) -> str: ...
    >>> run = await charge.options(key="order-7", delay="10m").start(7, 1999)
    """

    def __init__(
        self,
        app: Opened,
        fn: Callable[P, Any],
        *,
        name: str,
        options: Options,
        executor: str,
        signature: Signature | None = None,
        heartbeat: Duration | None = None,
    ) -> None:
        super().__init__(app, fn, name=name, options=options, signature=signature)
        self.executor = executor
        self.heartbeat = None if heartbeat is None else positive("heartbeat", heartbeat)

    @refuse_unknown_options
    def options(
        self,
        *,
        key: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        deadline: Duration | None = None,
        unique: bool | str | None = None,
        debounce: Duration | None = None,
        keep: Keeping | None = None,
        tags: Mapping[str, Any] | None = None,
        on_failure: Handler | None = None,
        tx: object = None,
    ) -> Task[P, R]:
        """Return the same task with other options for the runs started through it.

        `tx` is a connection of yours: a run then exists if and only if its transaction commits.

        >>> await charge.options(key="order-7", tx=connection).start(7, 1999)
        """
        given = {
            "key": key, "priority": priority, "delay": delay, "at": at, "queue": queue, "retry": retry,
            "timeout": timeout, "expires": expires, "deadline": deadline, "unique": unique, "debounce": debounce,
            "keep": keep, "tags": tags, "on_failure": on_failure, "tx": tx,
        }  # fmt: skip
        changes = {name: value for name, value in given.items() if value is not None}
        return Task(
            self._app, self.fn, name=self.name, options=self._changed(changes), executor=self.executor,
            signature=self.signature, heartbeat=self.heartbeat,
        )  # fmt: skip

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        """Start a run and await its result, in a workflow. Elsewhere, call the bare function here and now."""
        replay = here()
        return self._run_bare(*args, **kwargs) if replay is None else self._call_durably(replay, args, kwargs)

    async def _run_bare(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if inspect.iscoroutinefunction(self.fn):
            result: R = await self.fn(*args, **kwargs)
        else:
            result = await asyncio.to_thread(self.fn, *args, **kwargs)
        return result


class SyncFunction(Generic[P, R]):
    """The verbs of a definition for blocking code.

    >>> run = charge.sync.start(7, 1999)
    >>> receipt = run.result()
    """

    def __init__(self, task: FunctionDefinition[P, R]) -> None:
        self._task = task
        self._portal = task._app.portal

    def start(self, *args: P.args, **kwargs: P.kwargs) -> SyncRun[R]:
        """Start a run, and return its handle."""
        return SyncRun(self._caller.call(lambda: self._task.start(*args, **kwargs)))

    def start_many(self, calls: Iterable[tuple[Any, ...] | Call]) -> list[SyncRun[R]]:
        """Start many runs, all or none."""
        return [SyncRun(run) for run in self._caller.call(lambda: self._task.start_many(calls))]

    @property
    def _caller(self) -> Portal | TransactionDoor:
        return self._portal if self._task._options.tx is None else self._task._options.tx


class Definitions:
    """The definitions of one app, by name."""

    def __init__(self) -> None:
        self._by_name: dict[str, FunctionDefinition[..., Any]] = {}

    def add(self, task: FunctionDefinition[..., Any]) -> None:
        other = self._by_name.get(task.name)
        if other is not None and not _same_function(other.fn, task.fn):
            raise DuplicateName(task.name, _place(other.fn), _place(task.fn))
        self._by_name[task.name] = task

    def get(self, name: str) -> FunctionDefinition[..., Any] | None:
        return self._by_name.get(name)

    def named(self, name: str) -> FunctionDefinition[..., Any]:
        """Return the definition of this name, or raise UnknownName."""
        if name in self._by_name:
            return self._by_name[name]
        raise UnknownName(name, f" Known are {', '.join(sorted(self._by_name))}." if self._by_name else "")

    @property
    def turns(self) -> frozenset[str]:
        """Names of workflows."""
        return frozenset(name for name, each in self._by_name.items() if each.kind == "workflow")

    @property
    def tasks(self) -> dict[str, FunctionDefinition[..., Any]]:
        return dict(self._by_name)

    @property
    def versions(self) -> dict[str, str]:
        """Version of the code of each workflow, by name."""
        return {name: each.version for name, each in self._by_name.items() if each.version is not None}

    @property
    def claimable(self) -> dict[str, FunctionDefinition[..., Any]]:
        """Definitions by every name under which their runs are claimed: plain, and pinned to a version."""
        pinned = {claim_name(name, version): self._by_name[name] for name, version in self.versions.items()}
        return self._by_name | pinned


_OF_THE_COMMAND = RunId(UUID(int=0))
"""Placeholder for an id that is derived from the command that starts the run."""


def _takes(input: bytes) -> tuple[str, ...]:
    """Return the parameter names that an input has, sorted."""
    return tuple(sorted(msgspec.json.decode(input, type=dict[str, msgspec.Raw])))


def _digest(name: str, input: bytes) -> bytes:
    """Return a digest of name and input. Equal inputs are equal JSON, in whatever order the keys came."""
    canonical = msgspec.json.encode(msgspec.json.decode(input), order="deterministic")
    return blake2b(name.encode() + b"\0" + canonical, digest_size=16).digest()


def _same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """True if it is the same function in a module that was imported twice, as `__main__` and under its name."""
    a, b = inspect.unwrap(one).__code__, inspect.unwrap(other).__code__
    return (a.co_filename, a.co_firstlineno, a.co_qualname) == (b.co_filename, b.co_firstlineno, b.co_qualname)


def _place(fn: Callable[..., Any]) -> str:
    code = inspect.unwrap(fn).__code__
    return f"{code.co_filename}:{code.co_firstlineno}"
