"""`Queue`: a handle on one queue, to limit, pause and inspect it while it is in use."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from stepwell.model.counting import whole
from stepwell.model.keeping import Keeping, checked_keep
from stepwell.model.option_names import refuse_unknown_options
from stepwell.model.queue import Limits, QueueInfo
from stepwell.model.rate import Rate

AsItIs = Literal["as it is"]
AS_IT_IS: AsItIs = "as it is"


class Desk(Protocol):
    """The verbs that a queue's handle needs."""

    async def set_limits(self, queue: str, limits: Limits, sets: set[str]) -> None: ...
    async def pause_queue(self, queue: str, by: str) -> None: ...
    async def resume_queue(self, queue: str) -> bool: ...
    async def queues(self, name: str | None = None) -> list[QueueInfo]: ...


class OpenedDesk(Protocol):
    """An app that is open, as a queue's handle sees it."""

    @property
    def desk(self) -> Desk: ...


class Queue:
    """A handle on one queue, made by `app.queue(name)`. Settings apply to all workers, from their next claim on.

    >>> mail = app.queue("mail")
    >>> await mail.set(concurrency=10, rate="100/s")
    >>> await mail.pause(by="ann")
    """

    def __init__(self, app: OpenedDesk, name: str) -> None:
        self._app = app
        self.name = name

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    @refuse_unknown_options
    async def set(
        self,
        *,
        concurrency: int | AsItIs | None = AS_IT_IS,
        rate: str | None = AS_IT_IS,
        per_key: int | AsItIs | None = AS_IT_IS,
        keep: Keeping | AsItIs | None = AS_IT_IS,
    ) -> None:
        """Set limits of the queue; None lifts a limit, and an option that is left out stays as it is.

        `concurrency` limits how many of its runs are running, `rate` ("100/s", "500/min") how many begin in any such
        time, `per_key` how many with the same limit key are running: on all workers together. `keep` says how long its
        finished runs are kept: with "none" they are gone after an hour, with "forever" they stay.
        """
        given: dict[str, Any] = {"concurrency": concurrency, "rate": rate, "per_key": per_key, "keep": keep}
        sets = {name: value for name, value in given.items() if value != AS_IT_IS}
        for name in ("concurrency", "per_key"):
            if (value := sets.get(name)) is not None:
                whole(name, value, or_else=", or None for no limit; to stop it, pause it")
        checked_keep(sets.get("keep"))
        if sets.get("rate") is not None:
            sets["rate"] = Rate.of(sets["rate"])
        await self._app.desk.set_limits(self.name, Limits(**sets), set(sets))

    async def pause(self, by: str = "") -> None:
        """Pause the queue: no run of it is claimed any more. Runs that are running go on."""
        await self._app.desk.pause_queue(self.name, by)

    async def resume(self) -> bool:
        """Resume the queue. Return False if it was not paused."""
        return await self._app.desk.resume_queue(self.name)

    async def info(self) -> QueueInfo:
        """Return its settings and counts. A queue that was never used or set is an empty one."""
        found = await self._app.desk.queues(self.name)
        return found[0] if found else QueueInfo(self.name, Limits(), None, None, 0, 0, None, 0)
