"""Runs that were heard of ahead of being there: until they are claimed, their queues are asked again."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from stepwell import App
from stepwell.dispatch.base import Channel, coming, told_of
from stepwell.engine import runs
from stepwell.model.ids import RunId, new_run_id
from stepwell.model.word import AHEAD
from stepwell.store.pool import Database
from stepwell.worker.expected import AGAIN, Expected
from tests.factory import a_start
from tests.waiting_for import all_ears, until

SHORT = (0.001, 0.002, 0.003)


class Asked:
    """The questions that were asked, by queue."""

    def __init__(self, *, had_the_last: bool = True) -> None:
        self.queues: list[str] = []
        self.expected = Expected(self.queues.append)
        self.expected._had_the_last = had_the_last

    async def times(self, queue: str, count: int) -> None:
        async def asked() -> bool:
            return self.queues.count(queue) >= count

        await until(asked)


class Claim:
    """As much of a claim as is looked at."""

    def __init__(self, run_id: UUID) -> None:
        self.id = run_id


def claim(run_id: UUID) -> Any:
    return Claim(run_id)


def test_questions_go_on_for_longer_than_a_word_may_go_ahead() -> None:
    assert sum(AGAIN) > AHEAD


async def test_a_queue_is_asked_after_every_pause_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.worker.expected.AGAIN", SHORT)
    asked = Asked(had_the_last=False)
    asked.expected.heard({new_run_id(): "mail"})
    await asked.times("mail", len(SHORT))
    asked.expected.heard({new_run_id(): "other"})
    await asked.times("other", len(SHORT))
    assert asked.queues.count("mail") == len(SHORT)


async def test_one_that_is_heard_of_just_before_the_last_question_has_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stepwell.worker.expected.AGAIN", (0.05, 0.05, 0.05))
    asked = Asked()
    asked.expected.heard({new_run_id(): "mail"})
    await asked.times("mail", 2)
    asked.expected.heard({new_run_id(): "late"})
    await asked.times("late", 3)


async def test_who_had_the_last_one_asks_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.worker.expected.AGAIN", (60.0,))
    asked, mine = Asked(), new_run_id()
    asked.expected.heard({mine: "mail"})
    await asked.times("mail", 1)
    asked.expected.claimed([claim(mine)])
    asked.expected.heard({new_run_id(): "next"})
    await asked.times("next", 1)
    asked.expected.heard({new_run_id(): "another's"})
    assert asked.expected._asks_at > asyncio.get_running_loop().time() + 50


async def test_what_was_claimed_is_asked_for_no_more_and_what_was_not_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.worker.expected.AGAIN", SHORT)
    asked = Asked()
    here, late = new_run_id(), new_run_id()
    asked.expected.heard({here: "mail"})
    asked.expected.heard({late: "late"})
    asked.expected.claimed([claim(here), claim(new_run_id())])
    await asked.times("late", len(SHORT))
    assert "mail" not in asked.queues


async def test_one_that_another_worker_took_is_forgotten_though_more_are_heard_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stepwell.worker.expected.AGAIN", (0.001, 60.0))
    monkeypatch.setattr("stepwell.worker.expected.FORGET", 0.005)
    asked = Asked()
    asked.expected.heard({new_run_id(): "taken"})

    async def forgotten() -> bool:
        asked.queues.clear()
        asked.expected.heard({new_run_id(): "mail"})
        await asked.times("mail", 1)
        return "taken" not in asked.queues

    await until(forgotten)


async def test_nothing_is_asked_by_who_has_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.worker.expected.AGAIN", SHORT)
    asked, other = Asked(), Asked()
    asked.expected.heard({new_run_id(): "mail"})
    asked.expected.close()
    other.expected.heard({new_run_id(): "mail"})
    await other.times("mail", len(SHORT))
    assert asked.queues == []


@pytest.mark.parametrize("run_id", [None, new_run_id()])
def test_a_word_tells_the_queue_and_the_run_that_comes_to_it(run_id: RunId | None) -> None:
    assert told_of("a queue" if run_id is None else coming("a queue", run_id)) == ("a queue", run_id)


async def test_a_run_whose_word_was_heard_too_soon_is_found(
    app: App, database: Database, only_by_word: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the question brought another, which was there."""

    @app.task(name="work")
    async def work(n: Any) -> Any:
        return n

    monkeypatch.setattr("stepwell.worker.expected.AGAIN", (0.001, 0.02, 1.0, 5.0))  # a slow machine may be late itself
    monkeypatch.setattr("stepwell.worker.expected.FORGET", 60.0)
    there, late = a_start("work"), a_start("work")
    async with app.worker() as worker:
        await all_ears(app, work)
        asked = Answers(worker)
        async with database.transaction() as tx:
            await runs.start_one(tx, late)
            await runs.start_one(database, there)
            app._opening.dispatch.announce(Channel.PENDING, [coming("default", late.id)])
            await until(asked.any)
        assert await app.run(str(late.id)).result(20) == 1
        assert await app.run(str(there.id)).result(20) == 1
    assert late.id not in asked.claims[0]


class Answers:
    """Which runs each question about one queue brought."""

    def __init__(self, worker: Any) -> None:
        self._claim_from = worker._link.claim_from
        worker._link.claim_from = self.claim_from
        self.claims: list[list[UUID]] = []

    async def claim_from(self, *args: Any) -> Any:
        claimed = await self._claim_from(*args)
        self.claims.append([claim.id for claim in claimed.claims])
        return claimed

    async def any(self) -> bool:
        await asyncio.sleep(0)
        return bool(self.claims)
