"""`Run`: a handle on one run, wherever it runs. It holds the run's id, and asks everything else of the app."""

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
"""Ids of starts that led to an existing run, and the id of that run."""


class Door(Protocol):
    """The verbs that definitions and handles need."""

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
    """The verbs that handles on workflows need."""

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
        """Run a verb for blocking code, in the caller's thread."""
        ...


class Opened(Protocol):
    """An app, as its definitions and handles see it. Raises a UsageError if it is not open on this event loop."""

    @property
    def door(self) -> Door: ...

    @property
    def portal(self) -> Portal: ...

    def within(self, tx: object) -> TransactionDoor:
        """Return the verbs in this transaction. Raise InvalidSetting if `tx` is not a supported connection."""
        ...

    def decode_result(self, name: str, data: bytes) -> Any: ...

    def doubt_signal(self, workflow: str | None, signal: str) -> None:
        """Log a warning, once, if the code of this workflow is known here and does not mention this signal."""


class Run(Generic[R]):
    """A handle on one run. Every verb asks the database, so a handle never goes stale.

    >>> run = await charge.start(7, 1999)
    >>> await run.result(timeout="1m")
    >>> run = app.run(key="order-7")
    >>> print((await run.info()).state)
    """

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
        """Id of the run. A handle by key knows it after its first verb."""
        if self._id is None:
            raise WrongUse(f"the id of the run with key {self.key!r} is not known yet: `await run.info()` first")
        return self._id

    @property
    def sync(self) -> SyncRun[R]:
        """The same handle for blocking code."""
        return SyncRun(self)

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the run has finished, and return its result.

        Raises RunFailed, RunCancelled or RunExpired if that is how it finished, and TimeoutError if it has not finished
        within `timeout`. The run itself goes on then.
        """
        seconds = None if timeout is None else duration(timeout, setting="timeout").total_seconds()
        async with asyncio.timeout(seconds):
            finished = await self._app.door.wait(await self._known_id())
        return self._read(finished)

    async def info(self) -> RunInfo:
        """Return the run's state, times and settings."""
        return await self._app.door.info(await self._known_id())

    async def cancel(self, *, tx: object = None, force: bool = False) -> None:
        """Cancel the run now, or when the transaction `tx` commits.

        A running body is told, and its result is refused. A workflow that has begun is asked to end, and may clean up
        first; with `force` it is cancelled at once.
        """
        if tx is None:
            await self._app.door.cancel(await self._known_id(), force=force)
            return
        within = self._app.within(tx)
        await within.cancel(await self._id_within(within))

    async def retry(self) -> Run[R]:
        """Start a new run of the same definition with the same input. The old run must have finished.

        A workflow that failed goes on from its last good point: just before the event on which it failed, or before its
        end if it failed by itself. A workflow that was rolled back begins anew.
        """
        return Run(self._app, await self._app.door.retry(await self._known_id()), decode=self._decode)

    # -- of workflows

    async def signal(self, name: str, value: Any = None, *, tx: object = None) -> None:
        """Send a signal to a workflow. It is stored once, when this returns or when the transaction `tx` commits.

        The workflow may wait for it earlier or later. If its code does not mention the name, the signal is sent, and a
        warning is logged once.
        """
        data = encode(value, where=f"signal {name!r}")
        checked_text("name", name, LONGEST_NAME)
        if tx is None:
            sent = await self._app.door.outside.send(await self._known_id(), EventType.SIGNAL_RECEIVED, name, data)
            self._app.doubt_signal(sent.workflow, name)
            return
        within = self._app.within(tx)
        self._app.doubt_signal(await within.signal(await self._id_within(within), name, data), name)

    async def update(self, name: str, *args: Any, timeout: Duration | None = None, **kwargs: Any) -> Any:
        """Call the workflow's `@workflow.update` handler of this name, and return its answer.

        Raises UpdateRejected if the validator refused it, UpdateFailed if the handler raised, TimeoutError if there is
        no answer in time.
        """
        checked_text("name", name, LONGEST_NAME)
        outside, run_id = self._app.door.outside, await self._known_id()
        seconds = None if timeout is None else duration(timeout, setting="timeout").total_seconds()
        try:
            async with asyncio.timeout(seconds):
                sent = await outside.send(run_id, EventType.UPDATE_REQUESTED, name, encode_call(args, kwargs))
                answer = await outside.answer(run_id, sent.id)
        except TimeoutError:
            why = f"no answer to {name!r} in time: the request is kept, and answered when a worker runs the workflow"
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
        """Return the state that the workflow published last, also while no worker runs; None if it has published
        none."""
        data = await self._app.door.outside.state(await self._known_id())
        return None if data is None else value_of(type, "state").decode(data, "state")

    async def history(self) -> list[HistoryEvent]:
        """Return the events of the workflow, in order."""
        return await self._app.door.outside.history(await self._known_id())

    async def pause(self, by: str = "") -> None:
        """Pause the run until `resume`. A workflow that is in a turn pauses after it."""
        await self._app.door.outside.pause(await self._known_id(), by=by)

    async def resume(self) -> None:
        """Resume the paused run."""
        await self._app.door.outside.resume(await self._known_id())

    async def fork(self, at: int) -> Run[R]:
        """Start a new run with this workflow's history up to the event `at`. Commands that were open there are issued
        anew.

        If `at` lies among the commands that the code issued on one event, the fork begins before that event. 0 is the
        very beginning.
        """
        whole("at", at, least=0)
        new_id = await self._app.door.outside.fork(await self._known_id(), at)
        return Run(self._app, new_id, decode=self._decode)

    async def children(self) -> list[Run[Any]]:
        """Return the runs that this run started, in their order."""
        ids = await self._app.door.outside.children(await self._known_id())
        return [Run(self._app, run_id) for run_id in ids]

    # -- of any run

    async def attempts(self) -> list[Attempt]:
        """Return every attempt so far, with the one under way."""
        return await self._app.door.attempts(await self._known_id())

    async def progress(self) -> list[Progress]:
        """Return the last reported progress of each step of the body."""
        return await self._app.door.progress(await self._known_id())

    async def logs(self, attempt: int | None = None) -> list[LogLine]:
        """Return the last 10,000 lines that the body wrote to its loggers, in one attempt or in all."""
        if attempt is not None:
            whole("attempt", attempt)
        return await self._app.door.logs(await self._known_id(), attempt=attempt)

    async def explain(self) -> Explanation:
        """Explain the run's state: what it waits for, which worker runs it, or how it ended."""
        return await self._app.door.explain(await self._known_id())

    async def _known_id(self) -> UUID:
        if self._id is None and self.key is not None:
            self._id = await self._app.door.id_by_key(self.key)
        return self.id

    async def _id_within(self, within: TransactionDoor) -> UUID:
        """Return the id, read in this transaction. It is not remembered: the transaction may roll back, and the key may
        then become another run's."""
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
    """A run that a workflow started, as its own code sees it: the result can be awaited now or later."""

    __slots__ = ("_called",)

    def __init__(self, app: Opened, run_id: UUID, called: Awaitable[bytes], *, key: str | None, decode: Decode) -> None:
        super().__init__(app, run_id, key=key, decode=decode)
        self._called = called

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait for the result. The run goes on if its workflow stops waiting."""
        assert self._decode is not None
        seconds = None if timeout is None else duration(timeout, setting="timeout").total_seconds()
        async with asyncio.timeout(seconds):
            return cast(R, self._decode(await asyncio.shield(self._called)))


class SyncRun(Generic[R]):
    """The verbs of a Run for blocking code.

    >>> run = charge.sync.start(7, 1999)
    >>> receipt = run.result(timeout="1m")
    """

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
