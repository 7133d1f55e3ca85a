"""A preflight: does code fit every workflow that is under way?"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from uuid import UUID

import msgspec

from stepwell.definitions.definition import Definitions
from stepwell.definitions.workflow import Workflow
from stepwell.model.errors import Nondeterminism
from stepwell.model.turn import OpenRun
from stepwell.operator.exported import History
from stepwell.operator.parts import CodeOf, HistoryVerbs
from stepwell.operator.telling import tell
from stepwell.replay.code import About

PAGE = 200
NO_RUN = UUID(int=0)
Hear = Callable[[int, int], None]
"""Called with how many runs have been looked at, and how many there are."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """A run whose history the code does not fit, and where."""

    id: UUID
    name: str
    idx: int
    recorded: str
    new: str
    line: str


@dataclass(frozen=True, slots=True)
class Preflight:
    """The result of a preflight."""

    checked: int
    broken: list[Unfit]
    unknown: dict[str, int]
    """Runs of workflows that the code does not have, by name."""
    pinned: dict[str, int]
    """Runs that are pinned to another version, by name."""


class Checking:
    """The state of a preflight."""

    def __init__(self, outside: HistoryVerbs, code: Definitions, code_of: CodeOf) -> None:
        self._outside = outside
        self._code = code
        self._code_of = code_of
        self._checked = 0
        self._broken: list[Unfit] = []
        self._unknown: Counter[str] = Counter()
        self._pinned: Counter[str] = Counter()

    async def look(self, limit: int | None, hear: Hear | None) -> Preflight:
        """Replay the histories of the oldest `limit` open workflows, or of all."""
        count = await self._outside.count_open()
        total = count if limit is None else min(limit, count)
        if hear is not None:
            hear(0, total)
        looked = 0
        async for run in self._open_runs(limit):
            await self._check(run)
            looked += 1
            if hear is not None:
                hear(looked, total)
        return Preflight(self._checked, self._broken, dict(self._unknown), dict(self._pinned))

    async def _open_runs(self, limit: int | None) -> AsyncIterator[OpenRun]:
        after, left = NO_RUN, limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = await self._outside.open_runs(after=after, limit=size)
            for run in page:
                yield run
            if len(page) < size:
                return
            after, left = page[-1].id, None if left is None else left - len(page)

    async def _check(self, run: OpenRun) -> None:
        workflow = self._code.get(run.name)
        if not isinstance(workflow, Workflow):
            self._unknown[run.name] += 1
            return
        if run.pin is not None and run.pin != workflow.version:
            self._pinned[run.name] += 1
            return
        tags = MappingProxyType({} if run.tags is None else msgspec.json.decode(run.tags))
        about = About(run.id, run.name, run.key, run.queue, run.parent_id, run.root_id, tags)
        events = await self._outside.events(run.id, after=run.history_from - 1)
        self._checked += 1
        try:
            tell(History(about, run.input, events), partial(self._code_of, workflow)).evict()
        except Nondeterminism as error:
            self._broken.append(Unfit(run.id, run.name, error.idx, error.recorded, error.new, error.line))
