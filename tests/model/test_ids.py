from __future__ import annotations

import copy
import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from uuid import RFC_4122, UUID

import pytest

from stepwell.model import ids
from stepwell.model.ids import RunId, new_claim_id, new_run_id, new_run_ids
from stepwell.store.pool import Transaction


def one_by_one(count: int) -> list[RunId]:
    return [new_run_id() for _ in range(count)]


def many(count: int) -> list[RunId]:
    return list(islice(new_run_ids(), count))


@pytest.mark.parametrize("make", [one_by_one, many])
def test_ids_made_one_after_the_other_rise(make: Callable[[int], list[RunId]]) -> None:
    made = make(50_000)
    assert made == sorted(set(made))
    assert new_run_id() > made[-1]


@pytest.mark.parametrize("make", [one_by_one, many])
def test_more_ids_than_a_millisecond_can_count_rise_and_stay_ids(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[int], list[RunId]]
) -> None:
    """When the counter's lower bits are full it goes on in its upper ones; when those are, in the next millisecond."""
    now = time.time_ns() + 10**9
    monkeypatch.setattr(time, "time_ns", lambda: now)
    new_run_id()
    full = ids._prefix & ~(0xFFF << 64) | 0xFFE << 64 | 0x3FFF << 48
    monkeypatch.setattr(ids, "_prefix", full)
    monkeypatch.setattr(ids, "_steps", 0)
    made = make(40_000)
    assert made == sorted(set(made))
    assert {(each.version, each.variant) for each in made} == {(7, RFC_4122)}
    assert {id_time(each) for each in made} == {id_time(made[0]), id_time(made[0]) + timedelta(milliseconds=1)}


def test_ids_made_by_many_threads_are_all_different_and_rise_in_each() -> None:
    with ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda thread: (one_by_one, many)[thread % 2](5_000), range(8)))
    assert len({each for some in made for each in some}) == 40_000
    assert all(some == sorted(some) for some in made)


def test_an_id_is_a_uuid_of_version_seven_and_tells_its_time() -> None:
    before = datetime.now(UTC)
    made = new_run_id()
    assert (made.version, made.variant) == (7, RFC_4122)
    # Ids count on where many are made in one millisecond, so their clock may run a little ahead.
    assert before - timedelta(milliseconds=1) <= id_time(made) <= datetime.now(UTC) + timedelta(seconds=1)


def test_an_id_is_a_uuid_like_any_other() -> None:
    made = new_run_id()
    same = UUID(str(made))
    assert (made, hash(made), repr(made), made.is_safe) == (same, hash(same), repr(same), same.is_safe)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == same
    with pytest.raises(TypeError):
        made.int = 1  # type: ignore[misc]


def test_a_claims_id_tells_nothing() -> None:
    assert (new_claim_id().version, new_claim_id().variant) == (4, RFC_4122)
    assert len({new_claim_id() for _ in range(1000)}) == 1000


@pytest.mark.parametrize(
    "day", [date(1970, 1, 1), date(2024, 2, 29), date(2025, 12, 31), date(2026, 1, 1), date(2999, 7, 31)]
)
async def test_a_days_first_id_is_where_its_partition_begins(tx: Transaction, day: date) -> None:
    (row,) = await tx.connection.fetch("select stepwell.first_id($1) as first", day)
    ms = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp() * 1000)
    assert row["first"] == UUID(int=ms << 80)


async def test_an_id_made_now_lies_in_the_partition_of_today(tx: Transaction) -> None:
    made = new_run_id()
    today = id_time(made).date()
    (row,) = await tx.connection.fetch("select stepwell.first_id($1) as low, stepwell.first_id($1 + 1) as high", today)
    assert row["low"] <= made < row["high"]


def test_a_forked_child_makes_ids_of_its_own() -> None:
    new_run_id()
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, new_run_id().bytes)
        os._exit(0)
    with os.fdopen(read, "rb") as pipe:
        childs = UUID(bytes=pipe.read(16))
    os.wait()
    assert childs.int & 0xFFFF_FFFF_FFFF != new_run_id().int & 0xFFFF_FFFF_FFFF


def id_time(made: UUID) -> datetime:
    return datetime.fromtimestamp((made.int >> 80) / 1000, tz=UTC)
