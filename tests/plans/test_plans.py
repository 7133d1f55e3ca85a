"""Every hot statement is an index lookup, and reads no more than its batch needs: with a million pending, half
a million scheduled and half a million finished runs; with and without statistics; planned now, or on tables
that were empty or had been emptied.
"""

from __future__ import annotations

import pytest
from plan_cases import HOT
from plan_survey import CASES, CIRCUMSTANCES, VETERAN, Survey

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("plans")]

SMALL_TABLES = {"repeated_starts", "workers", "queues", "pg_class", "pg_inherits"}


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
@pytest.mark.parametrize("title", CASES)
def test_a_statement_reads_a_bounded_number_of_buffers(survey: Survey, title: str, circumstance: str) -> None:
    reading = survey.readings[circumstance][title]
    assert reading.rows == CASES[title].rows
    assert reading.buffers <= CASES[title].allowed(survey.server)


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
@pytest.mark.parametrize("title", CASES)
def test_a_statement_reads_only_by_its_indexes(survey: Survey, title: str, circumstance: str) -> None:
    reading = survey.readings[circumstance][title]
    assert {scan.by for scan in reading.scans if scan.table not in SMALL_TABLES} == CASES[title].by


@pytest.mark.parametrize("title", HOT)
def test_an_old_session_kept_the_plan_it_made_on_empty_tables(survey: Survey, title: str) -> None:
    kept, new = (survey.readings[each][title].cost for each in (VETERAN, "analysed, generic plan"))
    assert kept == survey.costs_when_empty[title] != new


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
def test_looking_for_busy_queues_costs_nothing_when_the_queues_are_given(survey: Survey, circumstance: str) -> None:
    readings = survey.readings[circumstance]
    assert readings["claim one queue"].parts["busy"] == readings["claim three queues"].parts["busy"] == 0
    assert 0 < readings["claim every queue"].parts["busy"] <= 250
