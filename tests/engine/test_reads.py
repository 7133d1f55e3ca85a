"""Lists: every filter finds the same runs, by whichever statement it is asked."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from stepwell.engine import bulk, queues, reads, runs
from stepwell.model.queue import COUNTED
from stepwell.model.run import Filter
from stepwell.model.states import State
from stepwell.store.pool import Transaction
from tests.factory import Made, a_run, a_start, execute

SINCE = timedelta(minutes=1)


async def some_of_each(tx: Transaction) -> dict[State, list[Made]]:
    return {state: [await a_run(tx, state) for _ in range(3)] for state in State}


@pytest.mark.parametrize("state", State)
async def test_a_list_of_one_state_has_its_runs_newest_first_and_page_by_page(tx: Transaction, state: State) -> None:
    made = await some_of_each(tx)
    found: list[UUID] = []
    after: UUID | None = None
    for _ in range(2):
        page = await reads.page(tx, Filter(states=[state]), limit=2, after=after)
        found += [info.id for info in page.items]
        after = page.next
    assert found == sorted((each.id for each in made[state]), reverse=True)
    assert after is None


async def test_a_list_of_one_state_goes_by_the_other_filters_too(tx: Transaction) -> None:
    made = await some_of_each(tx)
    for state in (State.FAILED, State.RUNNING):
        one = await reads.run_info(tx, made[state][0].id)
        for which in (Filter([state], queue=one.queue), Filter([state], queue=one.queue, since=one.created_at)):
            assert [info.id for info in (await reads.page(tx, which, limit=9, after=None)).items] == [one.id]
        nothing = Filter([state], since=one.created_at + SINCE)
        assert (await reads.page(tx, nothing, limit=9, after=None)).items == []


@pytest.mark.parametrize("states", [None, [State.FAILED]])
async def test_a_list_looks_at_so_many_runs_and_says_how_far_it_came(
    tx: Transaction, states: list[State] | None
) -> None:
    made = [await a_run(tx, State.FAILED) for _ in range(7)]
    newest = sorted((each.id for each in made), reverse=True)
    rare = (await reads.run_info(tx, newest[4])).queue
    found: list[tuple[list[UUID], UUID | None]] = []
    after: UUID | None = None
    for _ in range(3):
        page = await reads.page(tx, Filter(states, queue=rare), limit=9, after=after, most=3)
        after = page.next
        found.append(([info.id for info in page.items], after))
    assert found == [([], newest[2]), ([newest[4]], newest[5]), ([], None)]


async def test_a_page_that_is_full_ends_where_its_last_run_stands_however_far_it_looked(tx: Transaction) -> None:
    made = [await a_run(tx, State.FAILED) for _ in range(5)]
    newest = sorted((each.id for each in made), reverse=True)
    for most in (3, 4, 9):
        page = await reads.page(tx, Filter(), limit=3, after=None, most=most)
        assert ([info.id for info in page.items], page.next) == (newest[:3], newest[2])
    page = await reads.page(tx, Filter(), limit=5, after=None, most=9)
    assert page.next is None


async def test_failed_runs_that_are_kept_for_ever_are_among_the_failed(tx: Transaction) -> None:
    made = await a_run(tx, State.FAILED)
    await execute(tx, "insert into stepwell.kept_runs select * from stepwell.finished_runs")
    await execute(tx, "delete from stepwell.finished_runs")
    which = Filter(states=[State.FAILED])
    assert [info.id for info in (await reads.page(tx, which, limit=9, after=None)).items] == [made.id]
    assert await bulk.matching(tx, which, finished=True, limit=9, after=UUID(int=0)) == [made.id]


async def test_many_failed_runs_are_found_without_the_others(tx: Transaction) -> None:
    made = await some_of_each(tx)
    found = await bulk.matching(tx, Filter(states=[State.FAILED]), finished=True, limit=9, after=UUID(int=0))
    assert found == sorted(each.id for each in made[State.FAILED])


async def test_pending_runs_of_a_queue_are_counted_as_far_as_that_is_worth_it(
    tx: Transaction, monkeypatch: pytest.MonkeyPatch
) -> None:
    await runs.start(tx, [a_start(queue="mail") for _ in range(3)])
    await runs.start(tx, [a_start(queue="mail", limit_key="k", per_key=1) for _ in range(3)])
    assert (await queues.seen(tx, "mail"))[0].pending == 6 < COUNTED
    monkeypatch.setattr(queues, "COUNTED", 5)
    assert (await queues.seen(tx, "mail"))[0].pending == 5
