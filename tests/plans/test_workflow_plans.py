"""What workflows cost grows with a batch or with one history, and not with their square."""

from __future__ import annotations

import pytest
from big_database import ids
from big_workflows import CHILDREN, GONE, LONG_EVENTS, MANY
from cases_workflows import WORKFLOWS
from plan_cases import BATCH
from plan_reading import Session
from plan_survey import CIRCUMSTANCES, Survey

from stepwell.engine.workflows import forget_published
from stepwell.store.pool import Transaction
from stepwell.store.statements import load

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("plans")]

BATCHES = (
    "turns held", "advance turns", "arrive for many", "tell parents", "end histories",
    "children of many",
)  # fmt: skip


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
def test_the_children_of_a_workflow_are_found_in_one_reading_of_its_history(survey: Survey, circumstance: str) -> None:
    """With a look for the end of each, ten thousand children were not found before the command timed out."""
    assert survey.readings[circumstance]["children of a wide one"].tuples <= 8 * CHILDREN


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
def test_a_history_is_copied_in_one_reading_however_much_of_it_changes(survey: Survey, circumstance: str) -> None:
    assert survey.readings[circumstance]["copy a long history"].tuples <= 6 * LONG_EVENTS


async def test_a_batch_of_turns_ten_times_as_large_costs_ten_times_as_much(alone: Session, survey: Survey) -> None:
    few, many = await ids(survey.dsn, BATCH), await ids(survey.dsn, MANY)
    for title in BATCHES:
        case = WORKFLOWS[title]
        small, large = [await alone.explain(case.statement, **case.values(each)) for each in (few, many)]
        assert large.rows == 10 * small.rows
        assert large.buffers <= 15 * small.buffers
        assert large.tuples <= 15 * small.tuples <= 15 * 5000


async def test_what_was_published_stays_while_its_run_is_live_or_finished_or_kept(alone: Session) -> None:
    transaction = alone.connection.transaction()
    await transaction.start()
    try:
        assert await forget_published(Transaction(alone.connection, load("stepwell")), limit=1000) == GONE
    finally:
        await transaction.rollback()
