"""The verbs for one run, and the list of all. Each takes a run by its id, its key, or the beginning of its id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from stepwell.definitions.definition import Definitions
from stepwell.definitions.options import positive
from stepwell.definitions.run import Run
from stepwell.definitions.workflow import Workflow
from stepwell.model.counting import whole
from stepwell.model.duration import Duration
from stepwell.model.errors import InvalidSetting, NotFound
from stepwell.model.events import HistoryEvent
from stepwell.model.explanation import Explanation
from stepwell.model.notes import LogLine, Progress
from stepwell.model.run import Attempt, Kind, Page, RunInfo, Waits
from stepwell.model.wording import near
from stepwell.model.worker import WorkerInfo
from stepwell.operator.errors import WrongInput
from stepwell.operator.filters import States, filter_of, page_end
from stepwell.operator.finding import find
from stepwell.operator.parts import Parts

TAIL = 10
"""Events of a history that a detail has, the last ones."""
CHILDREN = 20
"""Children that a detail has, the last ones."""
Lines = list[LogLine]
Infos = list[RunInfo]


@dataclass(frozen=True, slots=True)
class WorkflowDetail:
    """The part of a detail that only a workflow has."""

    published: Any
    """The state that it published last."""
    events: int
    tail: list[HistoryEvent]
    rollbacks: frozenset[int]
    """The events of compensations."""
    started: int
    """The number of children that it has started."""
    children: list[RunInfo]
    """The last of them."""


@dataclass(frozen=True, slots=True)
class RunDetail:
    """A run with everything that is known of it."""

    info: RunInfo
    why: Explanation
    waits: Waits
    progress: list[Progress]
    attempts: list[Attempt]
    workers: dict[UUID, WorkerInfo]
    """The workers of its attempts, as far as they are still known."""
    workflow: WorkflowDetail | None = None


@dataclass(frozen=True, slots=True)
class RunHistory:
    """A run and its history, which only a workflow has."""

    info: RunInfo
    events: list[HistoryEvent]
    rollbacks: frozenset[int]
    """The events of compensations."""


@dataclass(frozen=True, slots=True)
class StartedId:
    """The run that a start led to."""

    id: UUID
    key: str | None


@dataclass(frozen=True, slots=True)
class CancelledId:
    """A run that was cancelled."""

    id: UUID
    asked: bool
    """The run was only asked to end, and has not ended yet."""


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run that was started from another."""

    origin: UUID
    id: UUID


@dataclass(frozen=True, slots=True)
class SentSignal:
    """A signal that was sent to a run."""

    id: UUID
    doubt: str | None
    """The reason why nobody may wait for a signal of this name; it was sent all the same."""


class RunVerbs:
    """Look at runs, and act on one."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._client = parts.client
        self._app = parts.app

    async def list(
        self,
        *,
        state: States = None,
        name: str | None = None,
        queue: str | None = None,
        kind: Kind | None = None,
        tags: Mapping[str, Any] | None = None,
        error: str | None = None,
        since: datetime | None = None,
        blocked: bool = False,
        limit: int = 50,
        after: UUID | str | None = None,
        within: Duration | None = None,
    ) -> Page:
        """Runs, newest first. `App.runs` is this verb."""
        if not 1 <= whole("limit", limit) <= 1000:
            raise InvalidSetting("limit", limit, "1 to 1000")
        which = filter_of(
            state=state, name=name, queue=queue, kind=kind, tags=tags, error=error, since=since, blocked=blocked
        )
        patience = None if within is None else positive("within", within)
        return await self._client.runs(which, limit=limit, after=page_end(after), within=patience)

    async def waits(self, ids: Sequence[UUID]) -> dict[UUID, Waits]:
        """List what the live ones of these runs wait for."""
        return await self._client.waits(ids)

    async def find(self, run: UUID | str) -> UUID:
        """The id of the run that this text names: an id, a key, or the beginning of an id (at least 8 digits).

        Raises AmbiguousId, with the newest five, if more than one id begins so. A whole id is not looked up.
        """
        return await find(self._client, run)

    async def info(self, run: UUID | str) -> RunInfo:
        """Everything the tables say about the run itself."""
        return await (await self._handle(run)).info()

    async def detail(self, run: UUID | str) -> RunDetail:
        """The run, why it is where it is, its attempts and where they ran; of a workflow its last events, too."""
        handle = await self._handle(run)
        info, why, progress = await handle.info(), await handle.explain(), await handle.progress()
        waits = (await self._client.waits([info.id])).get(info.id, Waits())
        attempts = await handle.attempts()
        seen = await self._client.workers(sorted({each.worker for each in attempts})) if attempts else []
        workflow = await self._workflow(handle) if info.kind == "workflow" else None
        return RunDetail(info, why, waits, progress, attempts, {each.id: each for each in seen}, workflow)

    async def explain(self, run: UUID | str) -> Explanation:
        """Explain why the run is where it is."""
        return await (await self._handle(run)).explain()

    async def logs(self, run: UUID | str, attempt: int | None = None) -> Lines:
        """List what its bodies wrote to their loggers, in one attempt or in all: the last 10,000 lines."""
        return await (await self._handle(run)).logs(attempt)

    async def history(self, run: UUID | str) -> RunHistory:
        """List what happened to a workflow, in order; nothing for any other run."""
        handle = await self._handle(run)
        info, events = await handle.info(), await handle.history()
        return RunHistory(info, events, _rollbacks(events))

    # -- acting

    async def start(
        self, name: str, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> StartedId:
        """Start a run by name, with the options that `.options(...)` takes. WrongInput where a call would be a
        TypeError."""
        values = dict(kwargs or {})
        definition: Any = self._app.definitions.get(name) or self._app.definition(name)
        try:
            definition._encode(tuple(args), values)
        except TypeError as error:  # one too few, too many, or of another name
            raise WrongInput(name, str(error)) from None
        started = await definition.options(**options).start(*args, **values)
        return StartedId(started.id, started.key)

    async def result(self, run: UUID | str, timeout: Duration | None = None) -> Any:
        """The result of the run, as soon as it has finished. Raises as `Run.result` does."""
        return await (await self._handle(run)).result(timeout)

    async def cancel(self, run: UUID | str, *, force: bool = False) -> CancelledId:
        """Finish the run as cancelled. A workflow that has begun is asked, and may clean up first; `force` does not
        ask."""
        handle = await self._handle(run)
        await handle.cancel(force=force)
        return CancelledId(handle.id, asked=not force and not (await handle.info()).state.finished)

    async def retry(self, run: UUID | str) -> NewRun:
        """Start a finished run again: a new run with the same input."""
        handle = await self._handle(run)
        return NewRun(handle.id, (await handle.retry()).id)

    async def pause(self, run: UUID | str, by: str = "") -> UUID:
        """Let the run rest where it is; its id."""
        handle = await self._handle(run)
        await handle.pause(by=by)
        return handle.id

    async def resume(self, run: UUID | str) -> UUID:
        """Let a paused run go on; its id."""
        handle = await self._handle(run)
        await handle.resume()
        return handle.id

    async def signal(
        self, run: UUID | str, name: str, value: Any = None, *, code: Definitions | None = None
    ) -> SentSignal:
        """Send a signal to a workflow. `code` is where its name is looked up: the app's own definitions if None."""
        handle = await self._handle(run)
        doubt = await self._doubt(handle, name, self._app.definitions if code is None else code)
        await handle.signal(name, value)
        return SentSignal(handle.id, doubt)

    async def update(
        self, run: UUID | str, name: str, /, *args: Any, timeout: Duration | None = None, **kwargs: Any
    ) -> Any:
        """Ask the update `name` of a workflow; its answer."""
        return await (await self._handle(run)).update(name, *args, timeout=timeout, **kwargs)

    async def fork(self, run: UUID | str, at: int) -> NewRun:
        """Start a new run with the history of a workflow up to the event `at`."""
        handle = await self._handle(run)
        return NewRun(handle.id, (await handle.fork(at)).id)

    # --

    async def _handle(self, run: UUID | str) -> Run[Any]:
        return Run(self._app, await self.find(run))

    async def _workflow(self, run: Run[Any]) -> WorkflowDetail:
        events, children = await run.history(), await run.children()
        shown: Infos = []
        for child in children[-CHILDREN:]:
            with suppress(NotFound):  # its day may have been dropped
                shown.append(await child.info())
        return WorkflowDetail(
            await run.state(), len(events), events[-TAIL:], _rollbacks(events), len(children), shown
        )  # fmt: skip

    async def _doubt(self, run: Run[Any], name: str, code: Definitions) -> str | None:
        """The reason why nobody may wait for a signal of this name: by the code, where it is known, or by what the run
        waits for."""
        info = await run.info()
        known = code.get(info.name)
        if isinstance(known, Workflow) and known.mentions is not None:
            return known.mentions.doubt(info.name, name)
        waits = (await self._client.waits([info.id])).get(info.id, Waits())
        meant = None if name in waits.signals else near(name, waits.signals)
        return None if meant is None else f"{info.name} waits for the signal {meant!r}, and not for {name!r}: a typo?"


def _rollbacks(events: Sequence[HistoryEvent]) -> frozenset[int]:
    """The events of compensations: what they asked for, and how it ended."""
    commands: set[Any] = set()
    found: set[int] = set()
    for event in events:
        if event.data.get("rollback"):
            commands.add(event.data["command"])
        if event.data.get("command") in commands:
            found.add(event.idx)
    return frozenset(found)
