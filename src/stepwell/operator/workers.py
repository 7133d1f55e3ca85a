"""The verbs for workers."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from stepwell.definitions.options import checked_ids
from stepwell.model.worker import WorkerInfo
from stepwell.operator.parts import Parts


class WorkerVerbs:
    """List workers, with samples of how they fare."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def list(self, ids: Sequence[UUID] | None = None, *, live: bool = False) -> list[WorkerInfo]:
        """Live workers first, then those that left or were lost in the last day; or those with these ids. `live`
        leaves out all that are not."""
        found = await self._parts.client.workers(None if ids is None else checked_ids("ids", ids))
        return [each for each in found if each.state == "live" or not live]
