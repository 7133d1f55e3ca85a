"""Attempts at bodies, without a worker or a database around them."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID, uuid4

from stepwell.codec import Signature
from stepwell.executors.inline import InlineExecutor
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.outcome import Completed, Failed, Outcome
from stepwell.model.run import Claim
from stepwell.worker.attempts import Attempts
from stepwell.worker.bodies import Bodies


class Written:
    """A body, as a definition would offer it."""

    executor = "inline"
    heartbeat = None

    def __init__(self, name: str, fn: Any) -> None:
        self.name, self.fn, self.signature = name, fn, Signature(fn, name=name)


class Desk:
    """Attempts at bodies given by name, without worker or database."""

    def __init__(self, *bodies: Any, slots: int = 10) -> None:
        written = {body.__name__: Written(body.__name__, body) for body in bodies}
        self.outcomes: dict[Claim, Outcome] = {}
        self.order: list[str] = []
        self.stirs = 0
        self.attempts = Attempts(
            Bodies(written, {"inline": InlineExecutor()}),
            slots=slots,
            settle=self._settle,
            ended=self._ended,
            apart=self._ended,
        )

    def _settle(self, claim: Claim, outcome: Outcome) -> None:
        self.outcomes[claim] = outcome
        self.order.append(claim.name)

    def _ended(self) -> None:
        self.stirs += 1

    def begin(self, *names: str) -> list[Claim]:
        claims = []
        for name in names:
            claim = Claim.bare(RunId(uuid4()), ClaimId(UUID(int=0)), "default", 1)
            claim.name = name
            claims.append(claim)
        self.attempts.begin(claims)
        return claims

    async def do(self, *names: str) -> list[Any]:
        """What came of these, each by its result or the type of its error."""
        claims = self.begin(*names)
        async with asyncio.timeout(10):
            await self.attempts.idle()
        return [told(self.outcomes[claim]) for claim in claims]


def told(outcome: Outcome) -> Any:
    match outcome:
        case Completed(result):
            return result.decode()
        case Failed(error):
            return error.type
        case _:
            return type(outcome).__name__
