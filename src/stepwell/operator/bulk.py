"""Verbs for many runs at once: count first, then act in chunks, with the progress after each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal
from uuid import UUID

from stepwell.model.counting import whole
from stepwell.model.errors import InvalidSetting, NotFound
from stepwell.model.ids import new_run_id
from stepwell.model.run import Filter, RunInfo
from stepwell.model.states import FINISHED, LIVE, State
from stepwell.operator.parts import Parts

Action = Literal["cancel", "retry"]
CHUNK = 500
"""Runs of one statement."""
PAGE = 5_000
"""Ids that are gathered by one statement."""
MOST = 100_000
"""The limit up to which a dry run counts."""
SAMPLE = 5
NO_RUN = UUID(int=0)
LAST = UUID(int=2**128 - 1)


@dataclass(frozen=True, slots=True)
class Counted:
    """The answer of a dry run."""

    action: Action
    count: int
    more: bool
    """True if there are more than were counted."""
    sample: list[RunInfo]
    """The oldest of them."""
    upto: str
    """A mark for the verb that follows: it leaves out runs that were started after this count."""


@dataclass(frozen=True, slots=True)
class BulkProgress:
    """The progress of a bulk verb."""

    matched: int = 0
    """Runs that were tried so far."""
    done: int = 0
    asked: int = 0
    """Workflows that were only asked to end, and have not ended yet."""


class BulkVerbs:
    """Cancel or retry all runs that a filter finds, or many by their ids.

    Cancelling is for live runs. Retrying is for finished runs, and without a state in the filter for failed ones.
    """

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._many = parts.client.many

    async def count(self, which: Filter, action: Action, *, most: int = MOST) -> Counted:
        """Count the runs that `cancel` or `retry` would act on, and show a few. Nothing is changed."""
        whole("most", most)
        which, upto = _checked(which, action), new_run_id()
        ids: list[UUID] = []
        async for page in self._pages(which, action, LAST):
            ids += page
            if len(ids) > most:
                break
        mark = ids[-1] if ids and len(ids) <= most else upto
        sample = [info for run_id in ids[:SAMPLE] if (info := await self._info(run_id)) is not None]
        return Counted(action, min(len(ids), most), len(ids) > most, sample, mark.hex)

    async def matching(self, which: Filter, action: Action) -> list[UUID]:
        """The ids of all these runs, oldest first: give them to `cancel` or `retry` to act on exactly these."""
        return [run_id async for page in self._pages(_checked(which, action), action, LAST) for run_id in page]

    async def cancel(
        self, which: Filter | Sequence[UUID], *, upto: str | None = None, force: bool = False
    ) -> AsyncIterator[BulkProgress]:
        """Cancel runs. A workflow that has begun is asked, and may clean up first; `force` does not ask."""
        did = BulkProgress()
        async for ids in self._chunks(which, "cancel", upto):
            ended, asked = await self._many.cancel(ids, force=force)
            waiting = 0 if force else len(asked)
            did = BulkProgress(did.matched + len(ids), did.done + len(ended), did.asked + waiting)
            yield did

    async def retry(self, which: Filter | Sequence[UUID], *, upto: str | None = None) -> AsyncIterator[BulkProgress]:
        """Start finished runs again: new runs with the same input."""
        did = BulkProgress()
        async for ids in self._chunks(which, "retry", upto):
            started = await self._many.retry(ids)
            did = BulkProgress(did.matched + len(ids), did.done + len(started))
            yield did

    async def _chunks(
        self, which: Filter | Sequence[UUID], action: Action, upto: str | None
    ) -> AsyncIterator[Sequence[UUID]]:
        if not isinstance(which, Filter):
            for first in range(0, len(which), CHUNK):
                yield which[first : first + CHUNK]
            return
        # Without a mark it ends where it began: what it starts itself is not started once more.
        last = new_run_id() if upto is None else _mark(upto)
        async for page in self._pages(_checked(which, action), action, last):
            for first in range(0, len(page), CHUNK):
                yield page[first : first + CHUNK]

    async def _pages(self, which: Filter, action: Action, last: UUID) -> AsyncIterator[list[UUID]]:
        after = NO_RUN
        while True:
            page = await self._many.matching(which, finished=action == "retry", limit=PAGE, after=after)
            yield [run_id for run_id in page if run_id <= last]
            if len(page) < PAGE or page[-1] >= last:
                return
            after = page[-1]

    async def _info(self, run_id: UUID) -> RunInfo | None:
        with suppress(NotFound):  # its day was dropped meanwhile
            return await self._parts.app.door.info(run_id)
        return None


def _checked(which: Filter, action: Action) -> Filter:
    """The filter, if each part of it means something to this action: what was ignored would match too many."""
    allowed = FINISHED if action == "retry" else LIVE
    if which.blocked:
        raise InvalidSetting("blocked", True, "bulk verbs cannot select by it; list the runs, and give their ids")
    if action == "cancel" and which.error is not None:
        raise InvalidSetting("error", which.error, "only finished runs have an error, and these cannot be cancelled")
    wrong = [state.value for state in which.states or () if state not in allowed]
    if wrong:
        fitting = ", ".join(state.value for state in State if state in allowed)
        raise InvalidSetting("state", wrong, f"{action} is for runs in the states {fitting}")
    return replace(which, states=[State.FAILED]) if action == "retry" and not which.states else which


def _mark(upto: str) -> UUID:
    try:
        return UUID(hex=upto)
    except (ValueError, TypeError, AttributeError):
        raise InvalidSetting("upto", upto, "the mark that `bulk.count` gave") from None
