"""The ledger: every claim that is not settled, and its outcome on the way to the tables.

Completed runs, which are nearly all, leave with the next exchange for new claims. Everything else, and what an exchange
could not record, is settled by a group commit. An error of the database never drops an outcome: it is tried again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Collection, Mapping, Sequence

from msgspec import Struct

from stepwell.concurrency.background import in_background
from stepwell.concurrency.group_commit import GROUP, GroupCommit
from stepwell.model.errors import ClaimLost, Unavailable
from stepwell.model.ids import RunId
from stepwell.model.outcome import Completed, Failed, Move, Outcome, Released, Waiting
from stepwell.model.run import Claim, Error, Reason
from stepwell.telemetry import Telemetry, log
from stepwell.worker.link import Completion, DataRefused, Link, NotRecorded, Settlement
from stepwell.worker.run_task import CompletedWithin, failed
from stepwell.worker.unrecorded import MOST, Refusals, why

HEAVY = 64 * 1024
"""Bytes of a result from which on it is too long for an exchange."""
NOT_DECIDED: Mapping[Claim, Move] = {}
ASIDE = 1.0
"""Seconds between looks at outcomes whose run a transaction holds locked."""


class Refused(Failed, frozen=True, tag="Failed"):
    """A failure in place of an outcome whose data the database refuses. For the link it is a failure like any other."""


class Entry(Struct, eq=False):
    """An outcome that is to be settled."""

    claim: Claim
    outcome: Outcome
    repeated: bool = False
    """True if an earlier try may have recorded it, and lost its answer."""


def _weight(entry: Entry) -> int:
    return len(entry.outcome.result) if isinstance(entry.outcome, Completed) else 0


class Ledger:
    """Keeps every claim until it is settled, and takes outcomes to the tables."""

    def __init__(self, link: Link, telemetry: Telemetry, *, changed: asyncio.Event) -> None:
        """`changed` is set when there is something to exchange, or room for more claims."""
        self._link = link
        self._telemetry = telemetry
        self._changed = changed
        self.known: set[Claim] = set()
        """Claims of this worker that are not settled yet."""
        self.alone: set[Claim] = set()
        """Known claims that must run alone, until they are settled: if the process died before that, the outcome would
        be lost."""
        self.refusals = Refusals()
        """Outcomes and writes that the database refused, and that are tried again."""
        self._completed: deque[Completion] = deque()
        self._settling: GroupCommit[Entry, None] = GroupCommit(self._commit, flights=1, weigh=_weight)
        self._kept: list[Entry] = []
        """Outcomes of a group that failed by a mistake of ours: for `save`."""
        self._broken: asyncio.Future[None] | None = None
        self._recordings: set[asyncio.Task[None]] = set()
        self._aside: set[Claim] = set()
        """Claims whose run is locked by another transaction. They wait for it, and no other claim waits for them."""
        self._put_off: dict[float, list[Settlement]] = {}
        """Outcomes that were refused for a reason that may pass, by the seconds until the next try."""
        self._unsettled = 0
        self._exchanging = True
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        """Number of outcomes that the tables do not have yet."""
        return self._unsettled

    def expect(self, claims: Sequence[Claim]) -> None:
        """Know these claims until they are settled or forgotten."""
        self.known.update(claims)
        self.alone.update([claim for claim in claims if claim.alone])

    def forget(self, claims: Collection[Claim]) -> None:
        """Drop claims that are lost, or settled elsewhere."""
        self.known.difference_update(claims)
        if self.alone:
            self.alone.difference_update(claims)
        self._changed.set()

    def put(self, claim: Claim, outcome: Outcome) -> None:
        """Take an outcome to the tables."""
        self._unsettled += 1
        if (
            type(outcome) is Completed
            and self._exchanging
            and claim.usage is None
            and claim.node is None
            and len(outcome.result) <= HEAVY
        ):
            self._completed.append((claim, outcome))
            if len(self._completed) == 1:
                self._changed.set()
        elif isinstance(outcome, CompletedWithin):
            completing = outcome.tx.complete(claim, outcome.result)
            recording = asyncio.create_task(self._record(claim, outcome, completing))
            self._recordings.add(recording)
            recording.add_done_callback(self._recordings.discard)
        elif isinstance(outcome, Waiting):
            self.settled([(claim, outcome)], {claim.id} if outcome.lost else ())
            return
        else:
            self._ask(Entry(claim, outcome))
        if self._unsettled == 1:
            self._empty.clear()

    @property
    def completed(self) -> int:
        """Number of completed runs that wait for an exchange."""
        return len(self._completed)

    def take_completed(self) -> list[Completion]:
        """Take a group of completed runs for an exchange. It is then `settled` or `returned`."""
        completed = self._completed
        if len(completed) <= GROUP:
            taken = list(completed)
            completed.clear()
            return taken
        return [completed.popleft() for _ in range(GROUP)]

    def returned(self, group: Sequence[Settlement]) -> None:
        """Settle outcomes that an exchange could not record, or did record before its answer was lost."""
        for claim, outcome in group:
            self._ask(Entry(claim, outcome, repeated=True))

    def no_more_exchanges(self) -> None:
        """Settle every outcome here from now on."""
        self._exchanging = False
        completed, self._completed = self._completed, deque()
        for claim, outcome in completed:
            self._ask(Entry(claim, outcome))

    def settled(
        self, group: Sequence[Settlement], lost: Collection[RunId], moves: Mapping[Claim, Move] = NOT_DECIDED
    ) -> None:
        """Forget outcomes of `put` that the tables have now, or have refused."""
        self._unsettled -= len(group)
        self.written(group, lost, moves)
        if lost:
            log.warning("%d outcomes were refused: their claims are lost", len(lost))
        if not self._unsettled:
            self._empty.set()

    def written(
        self, group: Sequence[Settlement], lost: Collection[RunId] = (), moves: Mapping[Claim, Move] = NOT_DECIDED
    ) -> None:
        """Forget claims whose outcomes the tables have, or have refused. Turns also write the ends of their
        children."""
        if group:
            claims = [claim for claim, _ in group]
            self.refusals.forget_all(claims)
            self.forget(claims)
            self._telemetry.tell("worker.settled", settlements=group, lost=lost, moves=moves)

    async def drained(self) -> None:
        """Wait until the tables have everything that was added."""
        await self._empty.wait()

    async def save(self) -> None:
        """Wait until the tables have everything, even if `run` has failed."""
        if self._broken is None:
            async with in_background(self.run()):
                await self.drained()
        else:
            await self.drained()

    async def run(self) -> None:
        """Raise the error that keeps a group from being settled, which is a mistake of ours; never return."""
        self._broken = asyncio.get_running_loop().create_future()
        kept, self._kept = self._kept, []
        for entry in kept:
            self._ask(entry)
        try:
            await self._broken
        finally:
            self._broken = None

    async def close(self) -> None:
        """Give up what is still on its way."""
        self._settling.close()
        for recording in self._recordings:
            recording.cancel()
        await asyncio.gather(*self._recordings, return_exceptions=True)

    def _ask(self, entry: Entry) -> None:
        self._settling.ask(entry, lambda answer: self._answered(entry, answer))

    def _answered(self, entry: Entry, answer: BaseException | None) -> None:
        if isinstance(answer, Exception):
            if entry.claim in self.known:  # part of its group may be settled
                entry.repeated = True
                self._kept.append(entry)
            if self._broken is not None and not self._broken.done():
                self._broken.set_exception(answer)

    async def _commit(self, entries: Sequence[Entry]) -> Sequence[None]:
        group = [(entry.claim, entry.outcome) for entry in entries]
        await self._settle(group, repeated=any([entry.repeated for entry in entries]))
        return [None] * len(group)

    async def _record(self, claim: Claim, outcome: CompletedWithin, completing: Awaitable[None]) -> None:
        """Complete a run by the commit of its body's own transaction."""
        lost: set[RunId] = set()
        try:
            await completing
        except ClaimLost:
            lost.add(claim.id)
        except Unavailable as error:
            log.warning("the transaction of %s %s lost its answer: %s", claim.name, claim.id, error)
            self.returned([(claim, await self._looked_up(claim, outcome, error))])
            return
        except NotRecorded as error:
            # The body's writes are rolled back, and the body is not to blame. Another attempt does them again.
            self._try_later(claim, Released(), error.cause, before=claim.attempt - 1)
            return
        except Exception as error:
            self._ask(Entry(claim, failed(error)))
            return
        self.settled([(claim, outcome)], lost)

    async def _looked_up(self, claim: Claim, outcome: Completed, error: Unavailable) -> Outcome:
        """Look up whether a commit that lost its answer happened: it did if the claim is gone.

        A commit that is still on its way holds its locks. Whatever settles the claim waits for those locks, and then
        finds the run completed.
        """
        pause = 0.05
        while True:
            try:
                held = await self._link.held([claim.claim_id])
            except Exception as looking:
                log.warning(
                    "cannot look up whether %s %s was committed, will try again: %s", claim.name, claim.id, why(looking)
                )
                await asyncio.sleep(pause)
                pause = min(pause * 2, MOST)
            else:
                return failed(error) if claim.fence in {each.fence for each in held} else Completed(outcome.result)

    async def _settle(self, group: Sequence[Settlement], *, repeated: bool = False) -> None:
        """Settle a group, for as long as it takes. If the database refuses the group, settle its outcomes one by one,
        and retry later what is still refused."""
        pause = 0.05
        while True:
            try:
                sent = [(claim.as_of_now(), outcome) for claim, outcome in group]
                recorded = await self._link.settle(sent, repeated=repeated)
            except Unavailable as error:
                log.warning("%d outcomes wait for the database: %s", len(group), error)
                # The transaction may have committed before its answer was lost.
                repeated = True
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
            except Exception as error:
                return await self._apart(group, error)
            else:
                moves = {
                    claim: move for (claim, _), move in zip(group, recorded.moves, strict=True) if move is not None
                }
                return self.settled(self._without_blocked(group, recorded.blocked), recorded.lost, moves)

    def _without_blocked(self, group: Sequence[Settlement], blocked: Collection[RunId]) -> Sequence[Settlement]:
        """Select the outcomes that were settled. The others wait for a transaction that holds their run locked, and are
        tried again."""
        if not blocked and not self._aside:
            return group
        later = [each for each in group if each[0].id in blocked]
        for claim in {claim for claim, _ in later} - self._aside:
            log.warning("the outcome of %s %s waits: a transaction holds its run locked", claim.name, claim.id)
        self._aside.difference_update([claim for claim, _ in group])
        self._aside.update([claim for claim, _ in later])
        if later:
            asyncio.get_running_loop().call_later(ASIDE, self.returned, later)
        return [each for each in group if each[0].id not in blocked]

    async def _apart(self, group: Sequence[Settlement], cause: Exception) -> None:
        if len(group) > 1:
            log.warning("settling %d outcomes together failed, going one by one: %s", len(group), cause)
            for each in group:
                # The group may have committed, and only its answer was lost.
                await self._settle([each], repeated=True)
            return
        ((claim, outcome),) = group
        if isinstance(cause, DataRefused) and not isinstance(outcome, Released | Refused):
            log.error("the outcome of %s %s cannot be stored: %s", claim.name, claim.id, cause.why)
            error = Error(cause.type, f"the outcome cannot be stored: {cause}", Reason.GAVE_UP)
            await self._settle([(claim, Refused(error))], repeated=True)
        else:
            self._try_later(claim, outcome, cause)

    def _try_later(self, claim: Claim, outcome: Outcome, cause: Exception, *, before: int = 0) -> None:
        """Retry an outcome later, and keep its claim until then: the fault is ours, or the schema's."""
        pause = self.refusals.add(claim, cause, before=before)
        together = self._put_off.setdefault(pause, [])
        if not together:
            log.error(
                "the outcome of %s %s cannot be recorded, and is tried again in %g s: %s",
                claim.name, claim.id, pause, why(cause),
            )  # fmt: skip
            asyncio.get_running_loop().call_later(pause, lambda: self.returned(self._put_off.pop(pause)))
        together.append((claim, outcome))
