"""The turns of a worker: those under way, and the code of workflows that is kept alive between them."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Collection, Container, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Protocol
from uuid import UUID

import msgspec

from stepwell.concurrency.group_commit import GroupCommit, Told
from stepwell.context.current import Running
from stepwell.executors.base import contained
from stepwell.model.commands import Command
from stepwell.model.errors import ClaimLost, Nondeterminism
from stepwell.model.events import Event, EventType
from stepwell.model.ids import RunId
from stepwell.model.outcome import Outcome, Released, Waiting
from stepwell.model.run import Claim, Error
from stepwell.model.start import Start, plain_parts
from stepwell.model.states import State
from stepwell.model.turn import Advance, News
from stepwell.replay.replay import About, Replay
from stepwell.telemetry import Telemetry
from stepwell.worker.bodies import Bodies
from stepwell.worker.ledger import Ledger
from stepwell.worker.run_task import failed
from stepwell.worker.turns import run_turn
from stepwell.worker.turns.host import Claiming, TurnLink, Waiter
from stepwell.worker.turns.run_step import Steps
from stepwell.worker.turns.run_turn import Turn
from stepwell.worker.turns.writes import Writes, patiently

KEPT = 1_000
"""Limit of workflows that are kept alive between their turns. The others are replayed."""


BLOCKED = 10_000
"""Limit of blocked runs that are remembered, each with the version that was reported."""
RESTING = 100
"""Limit of turns that stay for children that are not claimed yet. Further turns wait for an arrival."""
CLOCK_BACK = timedelta(minutes=1)
"""Step back of the database's clock after which workflows in memory are replayed: their time is wrong."""
FRESH = 1.0
"""Seconds for which news is kept for a turn that waits for a slot."""


class WorkflowBody(Protocol):
    """The definition of a workflow, as its turns see it."""

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
        return failed(contained(error)).error


class Turns:
    """Runs the turns of a worker, and keeps the code of workflows alive between them."""

    def __init__(
        self, link: TurnLink, ledger: Ledger, bodies: Bodies, telemetry: Telemetry, *, keep: int = KEPT
    ) -> None:
        self._link = link
        self._telemetry = telemetry
        self._ledger = ledger
        self._claiming: Claiming
        self._tasks = bodies.tasks
        self.steps = Steps(bodies.executors)
        self._keep = keep
        self._kept: OrderedDict[UUID, tuple[Replay, int]] = OrderedDict()
        self._under_way: dict[UUID, Turn] = {}
        self._awaited: dict[RunId, Waiter] = {}
        """Turn that is offered the end of each child."""
        self._blocked: OrderedDict[tuple[UUID, str], None] = OrderedDict()
        """Blocked runs that were reported, and at which version."""
        self._looking: asyncio.TimerHandle | None = None
        self._begun_anew: dict[UUID, list[Command]] = {}
        self._expected: dict[Claim, tuple[asyncio.Task[list[News | BaseException]], int]] = {}
        self._asking: set[asyncio.Task[list[News | BaseException]]] = set()
        self._news: GroupCommit[Claim, News] = GroupCommit(self._ask_news)
        self._writes = Writes(link, ledger, telemetry)
        self.write = self._writes.ask

    def claim_by(self, claiming: Claiming) -> None:
        """Set the lanes by which turns claim the runs they start: the one reference from turns back to the claiming
        part."""
        self._claiming = claiming
        self._writes.claim_by(claiming)

    async def run_turn(self, attempt: Running, workflow: WorkflowBody) -> Outcome:
        """Run one turn. When this returns, its last write was answered or refused."""
        claim = attempt.claim
        replay: Replay | None = None
        turn: Turn | None = None
        try:
            news = await self.news(claim)
            replay, history_from = await self._replay(claim, workflow, news)
            turn = Turn(
                self, attempt, replay, news,
                history_from=history_from, version=workflow.version, issued=self._begun_anew.pop(claim.id, ()),
            )  # fmt: skip
            self._under_way[claim.id] = turn
            self._look_soon()
            advanced = await turn.run()
        except ClaimLost:
            _evict(replay)
            return Released()  # gives the claim back, should it still be ours
        except Nondeterminism as error:
            _evict(replay)
            return await self._block(claim, news, error, workflow.version, turn.written if turn else None)
        except BaseException:
            _evict(replay)
            raise
        finally:
            # It may end late, having lost its claim, when the next turn of the same run is under way here.
            if turn is not None and self._under_way.get(claim.id) is turn:
                del self._under_way[claim.id]
        if replay.ended is None and advanced.state in (State.WAITING, State.PENDING):
            self._keep_alive(claim.id, replay, history_from)
        else:
            _evict(replay)
        return Waiting()

    def _look_soon(self) -> None:
        """Schedule the next look for arrivals, as long as turns are under way: word of one may be lost."""
        if self._looking is None and self._under_way:
            self._looking = asyncio.get_running_loop().call_later(run_turn.LOOK / 2, self._look)

    def _look(self) -> None:
        now, self._looking = time.monotonic(), None
        for turn in list(self._under_way.values()):
            turn.look(now)
        self._look_soon()

    def heard(self, ids: Container[str] | None) -> set[str]:
        """Make turns of these runs, or of any, look for arrivals. Return the runs that are in a turn here."""
        here = {run_id.hex: turn for run_id, turn in self._under_way.items() if ids is None or run_id.hex in ids}
        for turn in here.values():
            turn.hear()
        return set(here)

    def takes(self, claim: Claim, outcome: Outcome) -> bool:
        """Take the end of a run for the turn here that started it and waits for it. Return False if there is none."""
        turn = self._awaited.pop(claim.id, None)
        return turn is not None and turn.takes(claim, outcome)

    async def landed(self) -> None:
        """Wait until no write is on its way."""
        await self._writes.landed()

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        for asking in self._asking:
            asking.cancel()
        self._news.close()
        self._writes.close()
        for replay, _ in self._kept.values():
            replay.evict()
        self._kept.clear()

    def begin_soon(self, claims: Sequence[Claim]) -> None:
        """Ask at once, in one question, what there is for turns that were claimed together and begin soon."""
        claims = [claim for claim in claims if claim.fresh is None]
        if not claims:
            return
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
        """Read what there is for a turn, as of now or of its claim. Later events are announced."""
        if claim.fresh is not None and time.monotonic() < claim.claimed_at + FRESH:
            return News(0, 0, 1, None, claim.fresh, read_at=claim.claimed_at)
        expected = self._expected.pop(claim, None)
        if expected is None:
            return await self._news.answer(claim)
        asking, place = expected
        answer = (await asyncio.shield(asking))[place]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def ask_news(self, claim: Claim, told: Told[News]) -> None:
        self._news.ask(claim, told)

    def can_run(self, starts: Sequence[Start], *, slots: int) -> Sequence[Start]:
        room = slots + self._claiming.room_for({start.terms.name for start in starts})
        return self._of_ours(starts[: 2 * room])[:room]

    def may_claim(self, starts: Sequence[Start]) -> Sequence[Start]:
        return self._of_ours(starts) if self._claiming.resting < RESTING else ()

    def _of_ours(self, starts: Sequence[Start]) -> list[Start]:
        """Select the plain runs of queues and tasks that this worker serves. Many starts have the same terms, so look
        at those once."""
        queues = self._link.queues
        terms, ours, found = None, False, []
        for each in plain_parts(starts):
            if each.terms is not terms:
                terms = each.terms
                ours = terms.name in self._tasks and (queues is None or terms.queue in queues)
            if ours:
                found.append(each)
        return found

    def expect(self, ids: Collection[RunId], turn: Waiter) -> None:
        self._awaited.update(dict.fromkeys(ids, turn))

    def expect_no_more(self, ids: Collection[RunId], turn: Waiter) -> None:
        for run_id in ids:
            if self._awaited.get(run_id) is turn:  # otherwise the next turn of the same run expects it already
                del self._awaited[run_id]

    def rest(self, attempt: Running, rests: bool) -> None:
        self._claiming.rest(attempt.claim, rests)

    def settle(self, claim: Claim, outcome: Outcome) -> None:
        self._ledger.put(claim, outcome)

    async def _ask_news(self, claims: Sequence[Claim]) -> list[News | BaseException]:
        news = await patiently(lambda: self._link.news(claims))
        answered_at = time.monotonic()
        for each in news.values():
            each.read_at = answered_at
        return [news.get(claim.id) or ClaimLost(claim.id, claim.attempt) for claim in claims]

    # -- the code

    async def _replay(self, claim: Claim, workflow: WorkflowBody, news: News) -> tuple[Replay, int]:
        """Return the code where its history left it: kept alive here, or replayed."""
        kept = self._kept.pop(claim.id, None)
        if kept is not None:
            if kept[0].idx == news.recorded and kept[0].now < news.now + CLOCK_BACK:
                return kept
            kept[0].evict()
        history = await self._history(claim, news)
        tags = MappingProxyType({} if claim.tags is None else msgspec.json.decode(claim.tags))
        about = About(claim.id, claim.name, claim.key, claim.queue, news.parent_id, claim.root_id, tags)
        replay = Replay(about, RunCode(workflow, claim.input))
        if not history:
            return replay, news.history_from
        try:
            if len(history) == 1 and history[0].type is EventType.CONTINUED_AS_NEW:
                # The code begins only now: the commands that it issues are new.
                self._begun_anew[claim.id] = replay.delivered(history[0])
            else:
                replay.recorded(history)
                if history[-1].more:
                    self._begun_anew[claim.id] = replay.take()  # the rest of these commands was never written
        except BaseException:
            replay.evict()
            raise
        return replay, news.history_from

    async def _history(self, claim: Claim, news: News) -> list[Event]:
        if not news.recorded:
            return []
        history: list[Event] = await patiently(lambda: self._link.history(claim.id, after=news.history_from - 1))
        return history

    async def _block(
        self, claim: Claim, news: News, error: Nondeterminism, version: str, written: tuple[int, int] | None
    ) -> Outcome:
        """Leave the run to wait for code that fits, from where it was last `written`."""
        blocked = {
            "recorded": error.recorded, "new": error.new, "line": error.line, "idx": error.idx, "version": version,
            "message": str(error),
        }  # fmt: skip
        recorded, seen = written or (news.recorded, news.arrived - len(news.arrivals))
        advance = Advance(claim, recorded, seen, history_from=news.history_from, to="block", blocked=blocked)
        try:
            await self._writes.answer(advance)
        except ClaimLost:
            return Released()
        if (claim.id, version) not in self._blocked:  # report each version once: other workers may wake the run
            self._blocked[claim.id, version] = None
            if len(self._blocked) > BLOCKED:
                self._blocked.popitem(last=False)
            self._telemetry.tell("workflow.blocked", claim=claim, error=error, version=version)
        return Waiting()

    def _keep_alive(self, run_id: UUID, replay: Replay, history_from: int) -> None:
        self._kept[run_id] = replay, history_from
        while len(self._kept) > self._keep:
            _, (oldest, _) = self._kept.popitem(last=False)
            oldest.evict()


def _evict(replay: Replay | None) -> None:
    if replay is not None and not replay.evicting:
        replay.evict()
