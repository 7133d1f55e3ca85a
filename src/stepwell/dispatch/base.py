"""What a dispatch is. A wake is a hint, never the truth: all of them may be lost, and polling goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Protocol

from stepwell.model.ids import ClaimId
from stepwell.model.run import Claimed, ClaimedLimited, Wanted
from stepwell.model.turn import Consequences
from stepwell.model.word import Word

WHO, WE = "?", "!"

Hear = Callable[[Sequence[str] | None], None]
"""Called with what was announced; with None when announcements may have been missed."""


class Channel(StrEnum):
    PENDING = "pending"
    """Queues that have work."""
    SCHEDULED = "scheduled"
    """Seconds until a run is due that was scheduled just now."""
    FINISHED = "finished"
    """Runs that have finished, by id."""
    CANCELLED = "cancelled"
    """Running runs that were cancelled, by id."""
    ARRIVED = "arrived"
    """Workflows in a turn for which something arrived, by id."""
    LIMITED = "limited"
    """Queues that got a limit just now."""
    AWAITED = "awaited"
    """Whether anyone waits for runs to finish: WHO asks, WE answers, and says so anew every few seconds."""


class Dispatch(Protocol):
    @property
    def hears(self) -> bool:
        """Whether announcements arrive at the moment; if not, who waits polls more often."""
        ...

    async def claim(self, wanted: Wanted, claim_id: ClaimId) -> Claimed: ...

    async def claim_from(self, queue: str, wanted: Wanted, claim_id: ClaimId) -> Claimed: ...

    async def claim_limited(self, wanted: Wanted, claim_id: ClaimId) -> ClaimedLimited: ...

    def announce(self, channel: Channel, what: Iterable[str]) -> None:
        """Tell everyone, soon, together with what else there is to tell. Never waits and never fails."""
        ...

    def word(self, channel: Channel, what: Sequence[str]) -> Word | None:
        """The same, for a statement to say, so that it is heard with its commit. If there is none, or the statement
        tells that it was not said, it is to be announced."""
        ...

    def answered(self, channel: Channel) -> None:
        """Count a reply to a word of this channel: a caller that waits for replies is no burst."""
        ...

    def subscribe(self, channel: Channel, hear: Hear) -> Callable[[], None]:
        """Hear what is announced; the answer is a function that ends it."""
        ...


def words_of(after: Consequences) -> list[tuple[Channel, str]]:
    """Everything that others should hear of what was written."""
    words = [(Channel.PENDING, queue) for queue in sorted(after.wakes)]
    words += [(Channel.CANCELLED, run_id.hex) for run_id in after.cancelled]
    words += [(Channel.FINISHED, run_id.hex) for run_id in (*after.finished, *after.cancelled)]
    words += [(Channel.ARRIVED, run_id.hex) for run_id in after.heard]
    if after.soonest is not None:
        words.append((Channel.SCHEDULED, f"{after.soonest.total_seconds():.3f}"))
    return words


def tell_all(dispatch: Dispatch, after: Consequences) -> None:
    """Everyone whom it concerns."""
    words: dict[Channel, list[str]] = {}
    for channel, word in words_of(after):
        words.setdefault(channel, []).append(word)
    for channel, what in words.items():
        dispatch.announce(channel, what)
