"""The verbs for queues. Each answers with the queue as it is then."""

from __future__ import annotations

from stepwell.definitions.options import checked_text
from stepwell.definitions.queue import AS_IT_IS, AsItIs, Queue
from stepwell.model.keeping import Keeping
from stepwell.model.queue import QueueInfo
from stepwell.operator.parts import Parts


class QueueVerbs:
    """List queues, limit them, pause them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def list(self) -> list[QueueInfo]:
        """Every queue that has settings or live runs."""
        return await self._parts.client.queues()

    async def one(self, name: str) -> QueueInfo:
        """Return a queue. A queue that nobody has used or set is an empty one."""
        return await self._handle(name).info()

    async def set(
        self,
        name: str,
        *,
        concurrency: int | AsItIs | None = AS_IT_IS,
        rate: str | None = AS_IT_IS,
        per_key: int | AsItIs | None = AS_IT_IS,
        keep: Keeping | AsItIs | None = AS_IT_IS,
    ) -> QueueInfo:
        """Limit a queue, as `Queue.set` does; None lifts a limit, and what is not given stays."""
        queue = self._handle(name)
        await queue.set(concurrency=concurrency, rate=rate, per_key=per_key, keep=keep)
        return await queue.info()

    async def pause(self, name: str, by: str = "") -> QueueInfo:
        """Claim nothing more from a queue. What is running goes on."""
        queue = self._handle(name)
        await queue.pause(by=by)
        return await queue.info()

    async def resume(self, name: str) -> QueueInfo:
        """Claim from a queue again."""
        queue = self._handle(name)
        await queue.resume()
        return await queue.info()

    def _handle(self, name: str) -> Queue:
        return Queue(self._parts.app, checked_text("queue", name, 100))
