"""A group commit for starts: starts that arrive together commit together, and each is answered after the commit.

A start that is alone leaves at once. A start that arrives while two groups are on their way leaves with the next group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from stepwell.concurrency.group_commit import GroupCommit
from stepwell.model.errors import Unavailable
from stepwell.model.start import Start


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    start: Start
    at: float


class StartBatches:
    """Gathers plain starts into groups, one transaction for each group."""

    def __init__(self, send: Callable[[Sequence[Start]], Awaitable[object]], *, patience: float) -> None:
        """`send` accepts plain starts, all or none, and returns after their commit. While the database is away, no
        caller waits longer than `patience` seconds for the groups before its own."""
        self._send = send
        self._patience = patience
        self._group: GroupCommit[_Asked, None] = GroupCommit(self._commit)

    async def start(self, start: Start) -> None:
        """Accept a plain start. Return after its commit."""
        await self._group.answer_at_once(_Asked(start, asyncio.get_running_loop().time()))

    async def _commit(self, asked: Sequence[_Asked]) -> Sequence[BaseException | None]:
        try:
            await self._send([each.start for each in asked])
        except Unavailable as error:
            late = asyncio.get_running_loop().time() - self._patience
            self._group.give_up(lambda each: each.at < late, error)
            raise
        except Exception as error:
            if len(asked) == 1:
                return [error]
            # The database refused one of them. Send each by itself, so that no other start fails for it.
            return [answer for each in asked for answer in await self._commit_alone(each)]
        return [None] * len(asked)

    async def _commit_alone(self, asked: _Asked) -> Sequence[BaseException | None]:
        try:
            return await self._commit([asked])
        except Unavailable as error:
            return [error]
