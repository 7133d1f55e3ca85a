"""`Run`: a handle on one run, wherever it runs. It holds an id and a door, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, TypeVar, cast
from uuid import UUID

from stepwell.model.duration import Duration, duration
from stepwell.model.errors import RunCancelled, RunExpired, RunFailed, WrongUse
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


class Door(Protocol):
    """What a handle and a definition ask of the system."""

    async def start(self, start: Start) -> RunId: ...
    async def start_many(self, starts: Iterator[Start], count: int) -> list[tuple[Start, RunId]]: ...
    async def wait(self, run_id: UUID) -> Finished: ...
    async def info(self, run_id: UUID) -> RunInfo: ...
    async def id_by_key(self, key: str) -> UUID: ...
    async def cancel(self, run_id: UUID) -> None: ...
    async def retry(self, run_id: UUID) -> RunId: ...
    async def attempts(self, run_id: UUID) -> list[Attempt]: ...
    async def progress(self, run_id: UUID) -> list[Progress]: ...
    async def logs(self, run_id: UUID, *, attempt: int | None) -> list[LogLine]: ...
    async def explain(self, run_id: UUID) -> Explanation: ...


class Within(Protocol):
    """The verbs that can be part of a transaction of the user's."""

    async def start(self, start: Start) -> RunId: ...
    async def start_many(self, starts: Iterator[Start], count: int) -> list[tuple[Start, RunId]]: ...
    async def id_by_key(self, key: str) -> UUID: ...
    async def cancel(self, run_id: UUID) -> None: ...

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """For blocking code: the result of the verb that `make` makes, in the caller's thread."""
        ...


class Opened(Protocol):
    """An app, as its definitions and handles see it: open on this loop, or a UsageError."""

    @property
    def door(self) -> Door: ...

    @property
    def portal(self) -> Portal: ...

    def within(self, tx: object) -> Within:
        """InvalidSetting if it is no connection that we know."""
        ...

    def decode_result(self, name: str, data: bytes) -> Any: ...


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

    async def cancel(self, *, tx: object = None) -> None:
        """Finish it as cancelled, now, or when the transaction `tx` commits. A body that is running is told, and its
        result refused."""
        if tx is None:
            await self._app.door.cancel(await self._known_id())
            return
        within = self._app.within(tx)
        # Not remembered: a key that was taken in this transaction may yet be another's.
        await within.cancel(self.id if self._id is not None or self.key is None else await within.id_by_key(self.key))

    async def retry(self) -> Run[R]:
        """A new run of the same definition with the same input. Only of a finished run."""
        return Run(self._app, await self._app.door.retry(await self._known_id()), decode=self._decode)

    async def attempts(self) -> list[Attempt]:
        """Every attempt so far, the one under way included."""
        return await self._app.door.attempts(await self._known_id())

    async def progress(self) -> list[Progress]:
        """How far it is, step by step, as its body last said."""
        return await self._app.door.progress(await self._known_id())

    async def logs(self, attempt: int | None = None) -> list[LogLine]:
        """What its body wrote to its loggers, in one attempt or in all: the last 10,000 lines."""
        return await self._app.door.logs(await self._known_id(), attempt=attempt)

    async def explain(self) -> Explanation:
        """Why it is where it is: what it waits for, who runs it, or how it ended."""
        return await self._app.door.explain(await self._known_id())

    async def _known_id(self) -> UUID:
        if self._id is None and self.key is not None:
            self._id = await self._app.door.id_by_key(self.key)
        return self.id

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

    def cancel(self, *, tx: object = None) -> None:
        call = self._portal.call if tx is None else self._run._app.within(tx).call
        call(lambda: self._run.cancel(tx=tx))

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
