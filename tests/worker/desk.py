"""Attempts at bodies, without a worker or a database around them."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import UUID, uuid4

from stepwell.codec import Signature
from stepwell.executors.inline import InlineExecutor
from stepwell.model.ids import ClaimId, RunId
from stepwell.model.outcome import Completed, Failed, Outcome
from stepwell.model.run import Claim
from stepwell.telemetry import Telemetry
from stepwell.worker.attempts import Attempts
from stepwell.worker.bodies import Bodies
from stepwell.worker.ledger import Ledger
from stepwell.worker.link import Link
from stepwell.worker.notes import Notes
from stepwell.worker.turns.turns import Turns

NO_LINK = cast(Link, None)
"""Nothing here is taken to any table."""


class Written:
    """A body, as a definition would offer it."""

    executor, kind = "inline", "task"
    heartbeat = None

    def __init__(self, name: str, fn: Any) -> None:
        self.name, self.fn, self.signature = name, fn, Signature(fn, name=name)


class Put(Ledger):
    """A ledger that keeps what it is given."""

    def __init__(self, changed: asyncio.Event) -> None:
        super().__init__(NO_LINK, Telemetry(), changed=changed)
        self.outcomes: dict[Claim, Outcome] = {}

    def put(self, claim: Claim, outcome: Outcome) -> None:
        self.outcomes[claim] = outcome


class Counted(asyncio.Event):
    """An event that counts how often it was set."""

    times = 0

    def set(self) -> None:
        self.times += 1
        super().set()


class Desk:
    """Attempts at bodies given by name, without worker or database."""

    def __init__(self, *bodies: Any, slots: int = 10) -> None:
        written = {body.__name__: Written(body.__name__, body) for body in bodies}
        known = Bodies(written, {"inline": InlineExecutor()})
        self._changed = Counted()
        self._ledger = Put(self._changed)
        turns = Turns(NO_LINK, self._ledger, known, Telemetry())
        self.attempts = Attempts(
            known, self._ledger, turns, Notes(NO_LINK), telemetry=Telemetry(), slots=slots, changed=self._changed
        )

    @property
    def outcomes(self) -> dict[Claim, Outcome]:
        return self._ledger.outcomes

    @property
    def order(self) -> list[str]:
        return [claim.name for claim in self.outcomes]

    @property
    def stirs(self) -> int:
        return self._changed.times

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
