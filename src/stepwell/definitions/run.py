"""`Run`: a handle on one run, wherever it runs. It holds an id and a door, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast, overload
from uuid import UUID

from stepwell.codec import decode, encode, encode_call, value_of
from stepwell.definitions.options import LONGEST_NAME, checked_text
from stepwell.model.counting import whole
from stepwell.model.duration import Duration, duration
from stepwell.model.errors import RunCancelled, RunExpired, RunFailed, UpdateFailed, UpdateRejected, WrongUse
from stepwell.model.events import Event, EventType, HistoryEvent, Sent
from stepwell.model.explanation import Explanation
from stepwell.model.ids import RunId
from stepwell.model.notes import LogLine, Progress
from stepwell.model.run import Attempt, Finished, RunInfo
from stepwell.model.start import Start
from stepwell.model.states import State
from stepwell.sync import Portal

R = TypeVar("R")
T = TypeVar("T")
Decode = Callable[[bytes], Any]
Elsewhere = Mapping[RunId, RunId]
"""The ids of starts that led to a run that was there already, and its id."""


class Door(Protocol):
    """What a handle and a definition ask of the system."""

    @property
    def outside(self) -> WorkflowDoor: ...

    async def start(self, start: Start) -> RunId: ...
    async def start_many(self, starts: Iterator[Start], count: int) -> Elsewhere: ...
    async def wait(self, run_id: UUID) -> Finished: ...
    async def info(self, run_id: UUID) -> RunInfo: ...
    async def id_by_key(self, key: str) -> UUID: ...
    async def cancel(self, run_id: UUID, *, force: bool = False) -> None: ...
    async def retry(self, run_id: UUID) -> RunId: ...
    async def attempts(self, run_id: UUID) -> list[Attempt]: ...
    async def progress(self, run_id: UUID) -> list[Progress]: ...
    async def logs(self, run_id: UUID, *, attempt: int | None) -> list[LogLine]: ...
    async def explain(self, run_id: UUID) -> Explanation: ...


class WorkflowDoor(Protocol):
    """What a handle asks of a workflow."""

    async def send(self, run_id: UUID, type: EventType, name: str, value: bytes) -> Sent: ...
    async def signal_or_start(self, start: Start, name: str, value: bytes) -> RunId: ...
    async def answer(self, run_id: UUID, update: UUID) -> Event: ...
    async def state(self, run_id: UUID) -> bytes | None: ...
    async def history(self, run_id: UUID) -> list[HistoryEvent]: ...
    async def pause(self, run_id: UUID, *, by: str = "") -> None: ...
    async def resume(self, run_id: UUID) -> None: ...
    async def children(self, run_id: UUID) -> Sequence[RunId]: ...
    async def fork(self, run_id: UUID, at: int) -> RunId: ...


class TransactionDoor(Protocol):
    """The verbs that can be part of a transaction of the user's."""

    async def start(self, start: Start) -> RunId: ...
    async def start_many(self, starts: Iterator[Start], count: int) -> Elsewhere: ...
    async def id_by_key(self, key: str) -> UUID: ...
    async def cancel(self, run_id: UUID) -> None: ...
    async def signal(self, run_id: UUID, name: str, value: bytes) -> str: ...
    async def signal_or_start(self, start: Start, name: str, value: bytes) -> RunId: ...

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """For blocking code: the result of the verb that `make` makes, in the caller's thread."""
        ...


class Opened(Protocol):
    """An app, as its definitions and handles see it: open on this loop, or a UsageError."""

    @property
    def door(self) -> Door: ...

    @property
    def portal(self) -> Portal: ...

    def within(self, tx: object) -> TransactionDoor:
        """InvalidSetting if it is no connection that we know."""
        ...

    def decode_result(self, name: str, data: bytes) -> Any: ...

    def doubt_signal(self, workflow: str | None, signal: str) -> None:
        """Log a warning, once, if the code of this workflow is known here and does not mention this signal."""


class Run(Generic[R]):
    """One run. Its verbs ask the database each time: a handle never goes stale."""

    __slots__ = ("__weakref__", "_app", "_decode", "_id", "key")

    def __init__(
        self, app: Opened, run_id: UUID | None, *, key: str | None = None, decode: Decode | None = None
    ) -> None:
        self._app = app
        self._id = run_id
        self._decode = decode
        self.key = key

    def __repr__(self) -> str:
        return f"<Run {self._id or f'key={self.key!r}'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (self._id, self.key if self._id is None else None) == (
            other._id,
            other.key if other._id is None else None,
        )

    def __hash__(self) -> int:
        return hash(self._id or self.key)

    @property
    def id(self) -> UUID:
        if self._id is None:
            raise WrongUse(f"the id of the run with key {self.key!r} is not known yet: await run.info() first")
        return self._id

    @property
    def sync(self) -> SyncRun[R]:
        """The same handle for blocking code."""
        return SyncRun(self)

    async def result(self, timeout: Duration | None = None) -> R:
        """What the run gives, as soon as it has finished.

        Raises RunFailed, RunCancelled or RunExpired if that is how it finished, TimeoutError if it has not
        by then. The run itself goes on.
        """
        seconds = None if timeout is None else duration(timeout, setting="timeout").total_seconds()
        async with asyncio.timeout(seconds):
            finished = await self._app.door.wait(await self._known_id())
        return self._read(finished)

    async def info(self) -> RunInfo:
        return await self._app.door.info(await self._known_id())

    async def cancel(self, *, tx: object = None, force: bool = False) -> None:
        """Finish it as cancelled, now, or when the transaction `tx` commits. A body that is running is told, and its
        result refused. A workflow that has begun is asked, and may clean up first; `force` does not ask."""
        if tx is None:
            await self._app.door.cancel(await self._known_id(), force=force)
            return
        within = self._app.within(tx)
        await within.cancel(await self._id_within(within))

    async def retry(self) -> Run[R]:
        """A new run of the same definition with the same input. Only of a finished run. A workflow that failed goes on
        from its last good point: before the bad news upon which it failed, or before its end."""
        return Run(self._app, await self._app.door.retry(await self._known_id()), decode=self._decode)

    # -- of workflows

    async def signal(self, name: str, value: Any = None, *, tx: object = None) -> None:
        """Send it a signal. It is there, once, when this returns, or when the transaction `tx` commits: the workflow
        may wait for it sooner or later. A name that its code does not mention is sent, and logged as a warning once."""
        data = encode(value, where=f"signal {name!r}")
        checked_text("name", name, LONGEST_NAME)
        if tx is None:
            sent = await self._app.door.outside.send(await self._known_id(), EventType.SIGNAL_RECEIVED, name, data)
            self._app.doubt_signal(sent.workflow, name)
            return
        within = self._app.within(tx)
        self._app.doubt_signal(await within.signal(await self._id_within(within), name, data), name)

    async def update(self, name: str, *args: Any, timeout: Duration | None = None, **kwargs: Any) -> Any:
        """Ask its `@workflow.update` handler of this name, and wait for the answer. UpdateRejected if it is refused,
        UpdateFailed if it raised."""
        checked_text("name", name, LONGEST_NAME)
        outside, run_id = self._app.door.outside, await self._known_id()
        seconds = None if timeout is None else duration(timeout, setting="timeout").total_seconds()
        try:
            async with asyncio.timeout(seconds):
                sent = await outside.send(run_id, EventType.UPDATE_REQUESTED, name, encode_call(args, kwargs))
                answer = await outside.answer(run_id, sent.id)
        except TimeoutError:
            why = f"{name!r} was not answered in time: it stays, and is answered when a worker has the workflow"
            raise TimeoutError(why) from None
        if answer.error is None:
            return decode(answer.value or b"null")
        kind = UpdateRejected if answer.type is EventType.UPDATE_REJECTED else UpdateFailed
        raise kind(run_id, name, answer.error.type, answer.error.message)

    @overload
    async def state(self, type: type[T]) -> T | None: ...
    @overload
    async def state(self, type: Any = Any) -> Any: ...
    async def state(self, type: Any = Any) -> Any:
        """What it last published, worker or no worker; None if nothing yet."""
        data = await self._app.door.outside.state(await self._known_id())
        return None if data is None else value_of(type, "state").decode(data, "state")

    async def history(self) -> list[HistoryEvent]:
        """What happened to it, in order."""
        return await self._app.door.outside.history(await self._known_id())

    async def pause(self, by: str = "") -> None:
        """Let it rest where it is, until `resume`. A workflow that is in a turn rests after it."""
        await self._app.door.outside.pause(await self._known_id(), by=by)

    async def resume(self) -> None:
        await self._app.door.outside.resume(await self._known_id())

    async def fork(self, at: int) -> Run[R]:
        """A new run with its history up to the event `at`, and what was under way there started anew. In the middle of
        what its code did upon one event, it is before that event; 0 is the very beginning."""
        whole("at", at, least=0)
        new_id = await self._app.door.outside.fork(await self._known_id(), at)
        return Run(self._app, new_id, decode=self._decode)

    async def children(self) -> list[Run[Any]]:
        """Runs that it started, in their order."""
        ids = await self._app.door.outside.children(await self._known_id())
        return [Run(self._app, run_id) for run_id in ids]

    # -- of any run

    async def attempts(self) -> list[Attempt]:
        """Every attempt so far, the one under way included."""
        return await self._app.door.attempts(await self._known_id())

    async def progress(self) -> list[Progress]:
        """How far it is, step by step, as its body last said."""
        return await self._app.door.progress(await self._known_id())

    async def logs(self, attempt: int | None = None) -> list[LogLine]:
        """What its body wrote to its loggers, in one attempt or in all: the last 10,000 lines."""
        if attempt is not None:
            whole("attempt", attempt)
        return await self._app.door.logs(await self._known_id(), attempt=attempt)

    async def explain(self) -> Explanation:
        """Why it is where it is: what it waits for, who runs it, or how it ended."""
        return await self._app.door.explain(await self._known_id())

    async def _known_id(self) -> UUID:
        if self._id is None and self.key is not None:
            self._id = await self._app.door.id_by_key(self.key)
        return self.id

    async def _id_within(self, within: TransactionDoor) -> UUID:
        """Not remembered: a key that was taken in this transaction may yet be another's."""
        return self.id if self._id is not None or self.key is None else await within.id_by_key(self.key)

    def _read(self, finished: Finished) -> R:
        match finished.state:
            case State.COMPLETED if finished.result is not None:
                if self._decode is not None:
                    return cast(R, self._decode(finished.result))
                return cast(R, self._app.decode_result(finished.name, finished.result))
            case State.FAILED if (error := finished.error) is not None:
                raise RunFailed(
                    finished.id, finished.name, finished.attempt, error.type, error.message, error.reason.value,
                    error.code, error.traceback,
                )  # fmt: skip
            case State.EXPIRED:
                raise RunExpired(finished.id, finished.name)
            case _:
                raise RunCancelled(finished.id, finished.name)


class StartedRun(Run[R]):
    """A run that a workflow started, for its own code: the result can be awaited, now or later."""

    __slots__ = ("_called",)

    def __init__(self, app: Opened, run_id: UUID, called: Awaitable[bytes], *, key: str | None, decode: Decode) -> None:
        super().__init__(app, run_id, key=key, decode=decode)
        self._called = called

    async def result(self, timeout: Duration | None = None) -> R:
        """To stop waiting for it does not cancel it."""
        assert self._decode is not None
        seconds = None if timeout is None else duration(timeout, setting="timeout").total_seconds()
        async with asyncio.timeout(seconds):
            return cast(R, self._decode(await asyncio.shield(self._called)))


class SyncRun(Generic[R]):
    """A Run for blocking code."""

    def __init__(self, run: Run[R]) -> None:
        self._run = run
        self._portal = run._app.portal

    def __repr__(self) -> str:
        return repr(self._run)

    @property
    def id(self) -> UUID:
        return self._run.id

    @property
    def key(self) -> str | None:
        return self._run.key

    def result(self, timeout: Duration | None = None) -> R:
        return self._portal.call(lambda: self._run.result(timeout))

    def info(self) -> RunInfo:
        return self._portal.call(self._run.info)

    def cancel(self, *, tx: object = None, force: bool = False) -> None:
        self._in(tx)(lambda: self._run.cancel(tx=tx, force=force))

    def signal(self, name: str, value: Any = None, *, tx: object = None) -> None:
        self._in(tx)(lambda: self._run.signal(name, value, tx=tx))

    def update(self, name: str, *args: Any, timeout: Duration | None = None, **kwargs: Any) -> Any:
        return self._portal.call(lambda: self._run.update(name, *args, timeout=timeout, **kwargs))

    def state(self, type: Any = Any) -> Any:
        return self._portal.call(lambda: self._run.state(type))

    def history(self) -> list[HistoryEvent]:
        return self._portal.call(self._run.history)

    def pause(self, by: str = "") -> None:
        self._portal.call(lambda: self._run.pause(by))

    def resume(self) -> None:
        self._portal.call(self._run.resume)

    def fork(self, at: int) -> SyncRun[R]:
        return SyncRun(self._portal.call(lambda: self._run.fork(at)))

    def children(self) -> list[SyncRun[Any]]:
        return [SyncRun(child) for child in self._portal.call(self._run.children)]

    def retry(self) -> SyncRun[R]:
        return SyncRun(self._portal.call(self._run.retry))

    def attempts(self) -> list[Attempt]:
        return self._portal.call(self._run.attempts)

    def progress(self) -> list[Progress]:
        return self._portal.call(self._run.progress)

    def logs(self, attempt: int | None = None) -> list[LogLine]:
        return self._portal.call(lambda: self._run.logs(attempt))

    def explain(self) -> Explanation:
        return self._portal.call(self._run.explain)

    def _in(self, tx: object) -> Callable[[Callable[[], Coroutine[Any, Any, T]]], T]:
        return self._portal.call if tx is None else self._run._app.within(tx).call
