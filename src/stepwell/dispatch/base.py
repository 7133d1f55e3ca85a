"""The two parts of dispatch, as protocols: `Wakes` carries hints, `Claims` decides whose work is next.

A wake is a hint, never the truth. All of them may be lost, since every subscriber also polls. A claim is the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Protocol

from stepwell.model.outcome import Completed
from stepwell.model.run import Claim, Claimant, Claimed, Exchanged, Look, Order
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
    """Questions if a client waits for runs to finish (WHO), and the answer (WE), repeated every few seconds."""


class Wakes(Protocol):
    """Hints between processes: publish and subscribe."""

    @property
    def hears(self) -> bool:
        """True while announcements arrive. While they do not, subscribers poll more often."""
        ...

    def announce(self, channel: Channel, what: Iterable[str]) -> None:
        """Publish to all subscribers, soon, in a batch with other announcements. Never waits and never fails."""
        ...

    def word(self, channel: Channel, what: Sequence[str]) -> Word | None:
        """Return the same announcement for a statement to publish with its commit. If the answer is None, or the
        statement reports that it did not publish it, the caller announces it."""
        ...

    def answered(self, channel: Channel) -> None:
        """Count a reply to a word of this channel: a caller that waits for replies is no burst."""
        ...

    def subscribe(self, channel: Channel, hear: Hear) -> Callable[[], None]:
        """Call `hear` with every announcement; the answer is a function that ends the subscription."""
        ...


class Claims(Protocol):
    """The order of work: which runs a worker claims next."""

    async def claim(self, who: Claimant, look: Look) -> Claimed:
        """pending -> running: claim up to `look.limit` runs where `look` says."""
        ...

    async def exchange(
        self, who: Claimant, completed: Sequence[tuple[Claim, Completed]], order: Order, *, word: Word | None
    ) -> Exchanged:
        """running -> completed and pending -> running, in one step: both are done, or neither is. `word` is published
        with the commit; the answer says if it was."""
        ...


def words_of(after: Consequences) -> list[tuple[Channel, str]]:
    """Return the announcements that follow from a write."""
    words = [(Channel.PENDING, queue) for queue in sorted(after.wakes)]
    words += [(Channel.CANCELLED, run_id.hex) for run_id in after.cancelled]
    words += [(Channel.FINISHED, run_id.hex) for run_id in (*after.finished, *after.cancelled)]
    words += [(Channel.ARRIVED, run_id.hex) for run_id in after.heard]
    if after.soonest is not None:
        words.append((Channel.SCHEDULED, f"{after.soonest.total_seconds():.3f}"))
    return words


def tell_all(wakes: Wakes, after: Consequences) -> None:
    """Announce everything that follows from a write."""
    words: dict[Channel, list[str]] = {}
    for channel, word in words_of(after):
        words.setdefault(channel, []).append(word)
    for channel, what in words.items():
        wakes.announce(channel, what)
