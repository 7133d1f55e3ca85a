"""The workflows of a worker: those in a turn, those kept alive between turns, and what their turns write together."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol
from uuid import UUID

import msgspec

from stepwell.context import Running
from stepwell.executors.base import Executor
from stepwell.model.commands import Command
from stepwell.model.errors import ClaimLost, Nondeterminism, Unavailable
from stepwell.model.events import Event, EventType
from stepwell.model.ids import ClaimId, RunId, new_claim_id
from stepwell.model.outcome import Outcome, Released, Waiting
from stepwell.model.run import Claim, Error
from stepwell.model.start import Start
from stepwell.model.states import State
from stepwell.model.turn import Advance, Advanced, News, Written
from stepwell.replay.replay import About, Replay
from stepwell.telemetry import log
from stepwell.worker.run_task import failed
from stepwell.worker.run_turn import Turn
from stepwell.worker.together import Later, Together

KEPT = 1_000
"""Workflows that are kept alive between their turns. The others are told their history again."""


Wrote = tuple[Advanced, Sequence[RunId]]
"""Where a write left a run, and what it started that runs here."""


FRESH = 1.0
"""Seconds for which news are kept for a turn that waits for a slot."""


class Host(Protocol):
    """The worker, as its turns see it."""

    @property
    def free(self) -> int:
        """Slots that nobody has or has been promised."""
        ...

    def serves(self, start: Start) -> bool:
        """Whether this worker may claim such a run."""
        ...

    def asking(self, claim_id: ClaimId | None, limit: int) -> AbstractAsyncContextManager[None]: ...

    def begin(self, claims: Sequence[Claim]) -> None: ...

    def rest(self, attempt: Running, rests: bool) -> None: ...

    def settle(self, claim: Claim, outcome: Outcome) -> None: ...

    def settled(self, group: Sequence[tuple[Claim, Outcome]]) -> None: ...


class TurnLink(Protocol):
    """The verbs of a link that turns need."""

    async def news(self, claims: Sequence[Claim]) -> dict[UUID, News]: ...

    async def history(self, run_id: UUID, *, after: int) -> list[Event]: ...

    async def advance(self, advances: Sequence[Advance], claim_id: ClaimId) -> Written: ...


class WorkflowBody(Protocol):
    """What a definition of a workflow offers to its turns."""

    @property
    def version(self) -> str: ...

    def coroutine(self, input: bytes) -> Coroutine[Any, Any, bytes]: ...

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes: ...


@dataclass(frozen=True, slots=True)
class RunCode:
    """The code of one run: its definition, and its input."""

    workflow: WorkflowBody
    input: bytes

    def body(self, input: bytes | None) -> Coroutine[Any, Any, bytes]:
        return self.workflow.coroutine(self.input if input is None else input)

    def encode_input(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        return self.workflow.encode_input(args, kwargs)

    def describe(self, error: BaseException) -> Error:
        return failed(error).error


class Turns:
    def __init__(
        self, link: TurnLink, executors: Mapping[str, Executor], names: Container[str], *, keep: int = KEPT
    ) -> None:
        """`names` are those of the tasks that can be run here."""
        self._link = link
        self._host: Host
        self._names = names
        self.executors = executors
        self._keep = keep
        self._kept: OrderedDict[UUID, tuple[Replay, int]] = OrderedDict()
        self._under_way: dict[UUID, Turn] = {}
        self._begun_anew: dict[UUID, list[Command]] = {}
        self._expected: dict[Claim, tuple[asyncio.Task[list[News | BaseException]], int]] = {}
        self._asking: set[asyncio.Task[list[News | BaseException]]] = set()
        self._news: Together[Claim, News] = Together(self._ask_news)
        self._writes: Together[Advance, Wrote] = Together(self._write_all)

    def live_in(self, host: Host) -> None:
        self._host = host

    async def run_turn(self, attempt: Running, workflow: WorkflowBody) -> Outcome:
        """One turn. It is written when this returns, or was refused."""
        claim = attempt.claim
        replay: Replay | None = None
        turn: Turn | None = None
        try:
            news = await self.news(claim)
            replay, history_from = await self._replay(claim, workflow, news)
            turn = Turn(self, attempt, replay, news, history_from, workflow.version, self._begun_anew.pop(claim.id, ()))
            self._under_way[claim.id] = turn
            advanced = await turn.run()
        except ClaimLost:
            _evict(replay)
            return Released()  # should it be ours all the same
        except Nondeterminism as error:
            _evict(replay)
            return await self._block(claim, news, error, workflow.version, turn.written if turn else None)
        except BaseException:
            _evict(replay)
            raise
        finally:
            self._under_way.pop(claim.id, None)
        if replay.ended is None and advanced.state in (State.WAITING, State.PENDING):
            self._keep_alive(claim.id, replay, history_from)
        else:
            _evict(replay)
        return Waiting()

    def heard(self, ids: Container[str] | None) -> None:
        """Something arrived for these, or for any."""
        for run_id, turn in self._under_way.items():
            if ids is None or run_id.hex in ids:
                turn.hear()

    def takes(self, claim: Claim, outcome: Outcome) -> bool:
        """Whether the end of a run is written by the turn of the workflow that started it, which waits for it here."""
        turn = self._under_way.get(claim.parent_id) if claim.parent_id is not None else None
        return turn is not None and turn.takes(claim, outcome)

    async def landed(self) -> None:
        """Wait until nothing that was to be written is on its way."""
        await self._writes.landed()

    def close(self) -> None:
        for asking in self._asking:
            asking.cancel()
        self._news.close()
        self._writes.close()
        for replay, _ in self._kept.values():
            replay.evict()
        self._kept.clear()

    def expect(self, claims: Sequence[Claim]) -> None:
        """These turns were claimed together, and begin soon: what there is for them is asked at once."""
        asking = asyncio.create_task(self._ask_news(claims))
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)
        for place, claim in enumerate(claims):
            self._expected[claim] = asking, place
        asking.add_done_callback(lambda _: asyncio.get_running_loop().call_later(FRESH, self._forget, claims))

    def _forget(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._expected.pop(claim, None)

    # -- what turns ask

    async def news(self, claim: Claim) -> News:
        """As of now, or of the moment at which it was claimed: what came later is heard of."""
        expected = self._expected.pop(claim, None)
        if expected is None:
            return await self._news.answer(claim)
        asking, place = expected
        answer = (await asyncio.shield(asking))[place]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def write(self, advance: Advance) -> tuple[Advanced, Sequence[RunId]]:
        if advance.tx is None:
            return await self._writes.answer(advance)
        return await self._write_with_step(advance)

    async def _write_with_step(self, advance: Advance) -> Wrote:
        """All of it with the commit of a step's own transaction, or nothing: that cannot be repeated."""
        try:
            wrote = (await self._advance([advance]))[0]
        except Unavailable as error:
            log.warning("the transaction of a step of %s lost its answer: %s", advance.claim.name, error)
            wrote = await self._write_alone(advance, repeat=False)
        if isinstance(wrote, BaseException):
            raise wrote
        return wrote

    def can_run(self, starts: Sequence[Start], *, slots: int) -> list[Start]:
        room = max(0, self._host.free) + slots
        return [each for each in starts if each.terms.name in self._names and self._host.serves(each)][:room]

    def rest(self, attempt: Running, rests: bool) -> None:
        self._host.rest(attempt, rests)

    def settle(self, claim: Claim, outcome: Outcome) -> None:
        self._host.settle(claim, outcome)

    async def _ask_news(self, claims: Sequence[Claim]) -> list[News | BaseException]:
        news = await _patiently(lambda: self._link.news(claims))
        return [news.get(claim.id) or ClaimLost(claim.id, claim.attempt) for claim in claims]

    async def _write_all(self, advances: Sequence[Advance]) -> Sequence[Later[Wrote] | BaseException]:
        """Those that only record something, which takes one statement, do not wait for the others."""
        apart: dict[bool, list[Advance]] = {True: [], False: []}
        for each in advances:
            apart[each.only_records].append(each)
        groups = [group for group in apart.values() if group]
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
            # Each by itself: one whose run someone holds locked may take long, and nobody else waits for it.
            return [asyncio.create_task(self._write_alone(each)) for each in advances]

    async def _advance(self, advances: Sequence[Advance]) -> list[Wrote | BaseException]:
        claim_id, count = new_claim_id(), sum([len(each.here) for each in advances])
        if count:
            async with self._host.asking(claim_id, count):
                written = await self._link.advance(advances, claim_id)
            self._host.begin(written.claims)
        else:
            written = await self._link.advance(advances, claim_id)
        self._host.settled([child for each in advances for child in each.children])
        begun = {claim.id for claim in written.claims}
        return [
            (written.turns[each.claim.id], [start.id for start in each.here if start.id in begun])
            if each.claim.id in written.turns
            else ClaimLost(each.claim.id, each.claim.attempt)
            for each in advances
        ]

    async def _write_alone(self, advance: Advance, *, repeat: bool = True) -> Wrote | BaseException:
        """A write that may have happened, and if not happens now, if it can be repeated."""
        claim = advance.claim
        refused: Exception | None = None
        while True:
            held: News | None = (await _patiently(lambda: self._link.news([claim]))).get(claim.id)
            if held is not None and held.recorded == advance.recorded and advance.events:
                # What it started here is not known to us: the watch will find it, and give it back.
                self._host.settled(advance.children)
                return Advanced(State.RUNNING, held.arrived), []
            if held is None or not repeat:
                refused = ClaimLost(claim.id, claim.attempt)
            if refused is not None:
                # Of the runs it had taken along nothing was written, or all of it: who settles them finds out.
                for child, outcome in advance.children:
                    self._host.settle(child, outcome)
                return refused
            try:
                return (await self._advance([advance]))[0]
            except Unavailable:
                continue
            except Exception as error:
                refused = error

    # -- the code

    async def _replay(self, claim: Claim, workflow: WorkflowBody, news: News) -> tuple[Replay, int]:
        """The code where its history left it: kept alive here, or told again."""
        kept = self._kept.pop(claim.id, None)
        if kept is not None:
            if kept[0].idx == news.recorded:
                return kept
            kept[0].evict()
        history = await self._history(claim, news)
        tags = MappingProxyType({} if claim.tags is None else msgspec.json.decode(claim.tags))
        about = About(claim.id, claim.name, claim.key, claim.queue, news.parent_id, claim.root_id, tags)
        replay = Replay(about, RunCode(workflow, claim.input))
        try:
            if len(history) == 1 and history[0].type is EventType.CONTINUED_AS_NEW:
                # Its code begins only now: what it issues is new.
                self._begun_anew[claim.id] = replay.delivered(history[0])
            else:
                replay.recorded(history)
        except BaseException:
            replay.evict()
            raise
        return replay, news.history_from

    async def _history(self, claim: Claim, news: News) -> list[Event]:
        if not news.recorded:
            return []
        history: list[Event] = await _patiently(lambda: self._link.history(claim.id, after=news.history_from - 1))
        return history

    async def _block(
        self, claim: Claim, news: News, error: Nondeterminism, version: str, written: tuple[int, int] | None
    ) -> Outcome:
        """The run waits for code that fits, from where it was last `written`."""
        log.error("%s", error)
        blocked = {
            "recorded": error.recorded, "new": error.new, "line": error.line, "idx": error.idx, "version": version,
            "message": str(error),
        }  # fmt: skip
        recorded, seen = written or (news.recorded, news.arrived - len(news.arrivals))
        advance = Advance(claim, recorded, seen, news.history_from, to="block", blocked=blocked)
        try:
            await self.write(advance)
        except ClaimLost:
            return Released()
        return Waiting()

    def _keep_alive(self, run_id: UUID, replay: Replay, history_from: int) -> None:
        self._kept[run_id] = replay, history_from
        while len(self._kept) > self._keep:
            _, (oldest, _) = self._kept.popitem(last=False)
            oldest.evict()


def _evict(replay: Replay | None) -> None:
    if replay is not None and not replay.evicting:
        replay.evict()


async def _patiently(ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What is only asked can be asked again, for as long as it takes: without a lease the turn is ended anyway."""
    pause = 0.05
    while True:
        try:
            return await ask()
        except Unavailable as error:
            log.warning("turns wait for the database: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)
