from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.model.ids import first_id_at, id_time, new_claim_id, new_run_id
from stepwell.store.pool import Transaction

MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(9999, 1, 1), timezones=st.just(UTC))


def test_ids_made_one_after_the_other_rise() -> None:
    ids = [new_run_id() for _ in range(50_000)]
    assert ids == sorted(set(ids))


def test_ids_made_by_many_threads_are_all_different_and_rise_in_each() -> None:
    def make(_thread: int) -> list[UUID]:
        return [new_run_id() for _ in range(5_000)]

    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(make, range(8)))
    assert len({each for ids in made for each in ids}) == 40_000
    assert all(ids == sorted(ids) for ids in made)


def test_an_id_is_a_uuid_of_version_seven_and_tells_its_time() -> None:
    before = datetime.now(UTC)
    made = new_run_id()
    assert (made.version, made.variant) == (7, RFC_4122)
    # Ids count on where many are made in one millisecond, so their clock may run a little ahead.
    assert before - timedelta(milliseconds=1) <= id_time(made) <= datetime.now(UTC) + timedelta(seconds=1)


def test_a_claims_id_tells_nothing() -> None:
    assert new_claim_id().version == 4
    assert len({new_claim_id() for _ in range(1000)}) == 1000


@given(MOMENTS)
def test_a_moments_first_id_is_not_above_any_id_of_it_and_above_all_ids_before(moment: datetime) -> None:
    first = first_id_at(moment)
    ms = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert UUID(int=(ms << 80) - 1 if ms else 0) <= first <= UUID(int=ms << 80 | 0x7 << 76 | 0b10 << 62)
    assert abs(id_time(first) - moment) <= timedelta(milliseconds=1)


@pytest.mark.parametrize(
    "day", [date(1970, 1, 1), date(2024, 2, 29), date(2025, 12, 31), date(2026, 1, 1), date(2999, 7, 31)]
)
async def test_a_days_first_id_is_the_same_in_python_and_in_sql(tx: Transaction, day: date) -> None:
    (row,) = await tx.connection.fetch("select stepwell.first_id($1) as first", day)
    assert first_id_at(datetime(day.year, day.month, day.day, tzinfo=UTC)) == row["first"]
