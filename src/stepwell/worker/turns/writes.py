"""The writes of turns, as group commits. A write that lost its answer is looked up before it is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

from stepwell.concurrency.group_commit import GroupCommit, Later, Told
from stepwell.context.transaction import OwnTx
from stepwell.model.errors import ClaimLost, StepwellError, Unavailable
from stepwell.model.ids import ClaimId, RunId, new_claim_id
from stepwell.model.raised import Fatal
from stepwell.model.states import State
from stepwell.model.turn import Advance, Advanced, News, Written
from stepwell.telemetry import Telemetry, log
from stepwell.worker.ledger import Ledger
from stepwell.worker.link import DataRefused, NotRecorded
from stepwell.worker.turns.host import Claiming, TurnLink, WritePage, Wrote
from stepwell.worker.unrecorded import MOST, why

BUSY, PAUSE = 20, 0.008
"""A write that completes its run waits PAUSE seconds for others that do, while more than BUSY other writes are on their
way."""


Write = Callable[[Sequence[Advance], ClaimId], Coroutine[Any, Any, Written]]
"""Writes what turns wrote: the link, or a step's own transaction."""


class Writes:
    """Writes the events of turns, in groups."""

    def __init__(self, link: TurnLink, ledger: Ledger, telemetry: Telemetry) -> None:
        self._link = link
        self._telemetry = telemetry
        self._ledger = ledger
        self._refusals = ledger.refusals
        self._claiming: Claiming
        self._together: GroupCommit[Advance, Wrote] = GroupCommit(self._write_all)
        self._ends: GroupCommit[Advance, Wrote] = GroupCommit(self._write_all, pause=self._pause)
        """Writes that only complete a run. They have a statement of their own, which costs much more than one run."""

    def claim_by(self, claiming: Claiming) -> None:
        self._claiming = claiming

    def ask(self, page: WritePage, told: Told[Wrote]) -> None:
        advance = page.advance
        if page.tx is not None:
            self._together.ask_apart(self._write_with_step(advance, page.tx), told)
        elif advance.only == "completes":
            self._ends.ask(advance, told)
        else:
            self._together.ask(advance, told)

    def _pause(self) -> float:
        return PAUSE if len(self._together) > BUSY else 0.0

    async def answer(self, advance: Advance) -> Wrote:
        return await self._together.answer(advance)

    async def landed(self) -> None:
        """Wait until no write is on its way."""
        await self._together.landed()
        await self._ends.landed()

    def close(self) -> None:
        self._together.close()
        self._ends.close()

    async def _write_with_step(self, advance: Advance, tx: OwnTx) -> Wrote | BaseException:
        """Write all of it with the commit of a step's own transaction, or nothing: that cannot be repeated."""
        try:
            return (await self._advance_by(tx.advance, [advance]))[0]
        except Unavailable as error:
            log.warning("the transaction of a step of %s lost its answer: %s", advance.claim.name, error)
        except DataRefused as error:
            return _never_stored(error)
        except NotRecorded as error:
            try:
                # The step's writes are rolled back. Another turn runs the step again.
                await self._wait(advance, error.cause, before=advance.claim.attempt - 1)
            finally:
                self._refusals.forget(advance.claim)
        return await self._write_alone(advance, repeat=False)

    async def _write_all(self, advances: Sequence[Advance]) -> Sequence[Later[Wrote] | BaseException]:
        """Write by kind, at the same time: writes that only record events, or only complete runs, take one statement,
        and need not wait for the others."""
        apart: dict[str | None, list[Advance]] = {}
        for each in advances:
            apart.setdefault(each.only, []).append(each)
        groups = list(apart.values())
        if len(groups) == 1:
            return await self._write_group(advances)
        written = await asyncio.gather(*(self._write_group(group) for group in groups))
        answers = {each.claim: answer for group, got in zip(groups, written, strict=True)
                   for each, answer in zip(group, got, strict=True)}  # fmt: skip
        return [answers[each.claim] for each in advances]

    async def _write_group(self, advances: Sequence[Advance]) -> Sequence[Later[Wrote] | BaseException]:
        try:
            return await self._advance(advances)
        except Exception as error:
            log.info("writing %d turns together failed, going one by one: %s", len(advances), error)
            # One task for each: a run that a transaction holds locked may take long, and must not hold up others.
            return [asyncio.create_task(self._write_alone(each)) for each in advances]

    async def _advance(self, advances: Sequence[Advance]) -> list[Wrote | BaseException]:
        if advances[0].only == "records":
            recorded = (await self._link.advance(advances, _NO_CLAIM)).turns
            return [_lost(each) if (at := recorded.get(each.claim.id)) is None else (at, _NOTHING) for each in advances]
        return await self._advance_by(self._link.advance, advances)

    async def _advance_by(self, write: Write, advances: Sequence[Advance]) -> list[Wrote | BaseException]:
        claim_id, count = new_claim_id(), sum([len(each.here) for each in advances])
        if count:
            async with self._claiming.asking(claim_id, count):
                written = await write(advances, claim_id)
            self._claiming.begin(written.claims)
        else:
            written = await write(advances, claim_id)
        self._ledger.written([child for each in advances for child in each.children])
        elsewhere: set[RunId] = set()
        if len(written.claims) < count:
            elsewhere = {start.id for each in advances for start in each.here} - {each.id for each in written.claims}
        turns = written.turns
        if ended := [each for each in advances if each.ended is not None and each.claim.id in turns]:
            self._telemetry.tell("worker.advanced", advances=ended)
        return [(turns[each.claim.id], elsewhere) if each.claim.id in turns else _lost(each) for each in advances]

    async def _write_alone(self, advance: Advance, *, repeat: bool = True) -> Wrote | BaseException:
        """Look up a write that may have happened. If it did not, write it now, if it can be repeated."""
        try:
            return await self._until_written(advance, repeat=repeat)
        finally:
            self._refusals.forget(advance.claim)

    async def _wait(self, advance: Advance, error: Exception, *, before: int = 0) -> None:
        """Back off after a write that failed for another reason than its data. The claim is kept."""
        pause = self._refusals.add(advance.claim, error, before=before)
        log.error(
            "a turn of %s %s cannot be written, and is tried again in %g s: %s",
            advance.claim.name, advance.claim.id, pause, why(error),
        )  # fmt: skip
        await asyncio.sleep(pause)

    async def _until_written(self, advance: Advance, *, repeat: bool) -> Wrote | BaseException:
        claim = advance.claim
        refused: Exception | None = None
        while True:
            held: News | None = (await patiently(lambda: self._link.news([claim]))).get(claim.id)
            if held is not None and held.recorded == advance.recorded and advance.events:
                # The write happened, but the claims of the runs it started here are unknown: the watch finds them in
                # the table, and gives them back.
                self._ledger.written(advance.children)
                return Advanced(State.RUNNING, held.arrived), {start.id for start in advance.here}
            if held is None or not repeat:
                refused = ClaimLost(claim.id, claim.attempt)
            if refused is not None:
                # The ends of its children were written all or not at all: the ledger finds out when it settles them.
                for child, outcome in advance.children:
                    self._ledger.put(child, outcome)
                return refused
            try:
                return (await self._advance([advance]))[0]
            except Unavailable:
                continue
            except DataRefused as error:
                refused = _never_stored(error)
            except StepwellError as error:
                refused = error
            except Exception as error:
                await self._wait(advance, error)


_NOTHING: frozenset[RunId] = frozenset()
_NO_CLAIM = ClaimId(UUID(int=0))
"""The claim id of writes that start nothing here."""


def _never_stored(refused: DataRefused) -> Fatal:
    """The end of a turn that another turn could only repeat."""
    return Fatal(f"what the workflow asked for cannot be stored: {refused.why}")


def _lost(advance: Advance) -> ClaimLost:
    return ClaimLost(advance.claim.id, advance.claim.attempt)


async def patiently(ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Ask until there is an answer, whatever the database's error is. No run fails because of it; without a lease the
    turn is ended anyway."""
    pause = 0.05
    while True:
        try:
            return await ask()
        except Unavailable as error:
            log.warning("cannot read the news of workflows, will try again: %s", error)
            most = 1.0
        except StepwellError:
            raise
        except Exception as error:
            log.error("reading the news of workflows failed, will try again: %s", why(error))
            most = MOST
        await asyncio.sleep(pause)
        pause = min(pause * 2, most)
