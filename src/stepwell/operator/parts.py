"""The parts that the app hands to its operator, which imports no other actor: the client is known by its protocols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from stepwell.config import Settings
from stepwell.definitions.definition import Definitions, NamedDefinition
from stepwell.definitions.queue import OpenedDesk
from stepwell.definitions.run import Opened
from stepwell.definitions.workflow import Workflow
from stepwell.model.events import Event
from stepwell.model.ids import RunId
from stepwell.model.queue import QueueInfo
from stepwell.model.run import Filter, Glimpse, Page, Waits
from stepwell.model.turn import OpenRun
from stepwell.model.worker import WorkerInfo
from stepwell.replay.code import Code
from stepwell.store.pool import Database

CodeOf = Callable[[Workflow[..., Any], bytes], Code]
"""Makes of a workflow and an input what a replay runs."""


class ManyVerbs(Protocol):
    """The client's verbs for many runs at once."""

    async def matching(self, which: Filter, *, finished: bool, limit: int, after: UUID) -> list[UUID]: ...
    async def cancel(self, ids: Sequence[UUID], *, force: bool = False) -> tuple[list[UUID], list[UUID]]: ...
    async def retry(self, ids: Sequence[UUID]) -> dict[UUID, RunId]: ...


class HistoryVerbs(Protocol):
    """The client's verbs that read the histories of open workflows."""

    async def open_runs(self, *, after: UUID, limit: int) -> list[OpenRun]: ...
    async def count_open(self) -> int: ...
    async def events(self, run_id: UUID, *, after: int) -> list[Event]: ...


class ClientVerbs(Protocol):
    """The client's verbs that only operators need: handles of runs and queues have the others."""

    @property
    def many(self) -> ManyVerbs: ...

    @property
    def outside(self) -> HistoryVerbs: ...

    async def runs(self, which: Filter, *, limit: int, after: UUID | None, within: timedelta | None = None) -> Page: ...

    async def id_by_key(self, key: str) -> UUID: ...
    async def glimpses(self, first: UUID, last: UUID, *, limit: int) -> list[Glimpse]: ...
    async def waits(self, ids: Sequence[UUID]) -> dict[UUID, Waits]: ...
    async def queues(self, name: str | None = None) -> list[QueueInfo]: ...
    async def workers(self, ids: Sequence[UUID] | None = None) -> list[WorkerInfo]: ...


class OpenedApp(Opened, OpenedDesk, Protocol):
    """The app, as its operator sees it."""

    settings: Settings
    definitions: Definitions

    def definition(self, name: str) -> NamedDefinition: ...


@dataclass(frozen=True, slots=True)
class Parts:
    """An app that is open on this event loop."""

    app: OpenedApp
    database: Database
    client: ClientVerbs
    code_of: CodeOf
