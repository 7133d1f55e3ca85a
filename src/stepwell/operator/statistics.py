"""Figures and lists that say what is going on now. Each is one statement, and none reads an input or a result."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from stepwell.definitions.options import positive
from stepwell.model.duration import Duration
from stepwell.model.queue import COUNTED, QueueInfo
from stepwell.model.states import State
from stepwell.model.worker import WorkerInfo
from stepwell.operator.parts import Parts

LATELY = timedelta(seconds=10)
MOST_STARTS = 100_000
"""Starts of the last seconds that are counted; of more it says no more than this."""
LONGEST = 10
"""Runs that are listed by default: those that run for the longest."""
MOST_MOVES = 500
"""Live runs that are followed; of more, nobody could read the lines."""
RECENT = 5000
"""Finished runs, the newest, among which those that just finished are looked for."""


@dataclass(frozen=True, slots=True)
class LongRunning:
    """A run that is running, and for how long."""

    id: UUID
    name: str
    kind: str
    queue: str
    attempt: int
    seconds: float
    worker: str | None


@dataclass(frozen=True, slots=True)
class Finishes:
    """The number of runs that had finished at one moment, by the server's own count."""

    at: float
    """Seconds since 1970, by the database's clock."""
    runs: int


class FinishRate:
    """The number of runs that finish per second, by the counts of the last seconds."""

    def __init__(self) -> None:
        self._looks: deque[Finishes] = deque()

    def after(self, now: Finishes) -> float | None:
        """The rate with this count; None at the first."""
        looks = self._looks
        looks.append(now)
        while len(looks) > 2 and looks[1].at <= now.at - LATELY.total_seconds():
            looks.popleft()
        since = looks[0]
        # A day that was dropped since takes its count along.
        return None if len(looks) == 1 else max(0.0, (now.runs - since.runs) / (now.at - since.at))


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything that is going on, for one screen."""

    queues: list[QueueInfo]
    workers: list[WorkerInfo]
    """The live ones."""
    running: list[LongRunning]
    starts_per_second: float
    finishes: Finishes

    @property
    def claims_per_second(self) -> float:
        """All workers together, as far as they have told it."""
        return sum(each.claims_per_second or 0.0 for each in self.workers)


@dataclass(frozen=True, slots=True)
class Move:
    """A run in the state in which a look found it."""

    id: UUID
    kind: str
    name: str
    state: str
    attempt: int
    seconds: float | None
    """The time from the last attempt's start to its end, when the run has finished."""
    failed: int | None
    """The last attempt that ended with an error, if that was the last to end; and the error's type and text."""
    error: str | None
    message: str | None
    due_in: float | None


class Statistics:
    """Read figures. A database that is away is Unavailable at once: a screen that looks again soon should say so."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._database = parts.database

    async def overview(self, *, longest: int = LONGEST) -> Overview:
        """Queues, live workers, rates, and what runs for the longest."""
        starts = await self.starts_lately()
        client = self._parts.client
        return Overview(
            queues=await client.queues(),
            workers=[each for each in await client.workers() if each.state == "live"],
            running=await self.longest_running(longest),
            starts_per_second=starts / LATELY.total_seconds(),
            finishes=await self.finishes(),
        )

    async def finishes(self) -> Finishes:
        """Count the runs that have finished so far; two of these make a rate."""
        (row,) = await self._database.rows("finishes_so_far")
        return Finishes(row["at"], row["runs"])

    async def starts_lately(self, since: Duration = LATELY) -> int:
        """Count the runs that were started in the last ten seconds, or as long as is said; up to 100,000."""
        (row,) = await self._database.rows("starts_lately", since=positive("since", since), most=MOST_STARTS)
        return int(row["runs"])

    async def longest_running(self, limit: int = LONGEST) -> list[LongRunning]:
        """The runs that run for the longest."""
        return [LongRunning(**dict(row)) for row in await self._database.rows("longest_running", limit=limit)]

    async def counts(self) -> dict[State, int]:
        """Count the runs in each state, up to 100,000 of the live and of the finished."""
        found = {row["state"]: row["runs"] for row in await self._database.rows("count_runs", most=COUNTED)}
        return {state: found[state.value] for state in State if state.value in found}

    async def moving(self, since: Duration) -> list[Move]:
        """Live runs, and those that finished lately: the newest 500 of each."""
        rows = await self._database.rows("moving_runs", since=positive("since", since), limit=MOST_MOVES, most=RECENT)
        return [Move(**dict(row)) for row in rows]
