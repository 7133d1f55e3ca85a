"""Ids of a workflow's own runs: reckoned, so that they are the same in every replay, and neighbours in every index."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import RFC_4122

import pytest

from stepwell.model.ids import made_at, new_run_id
from stepwell.replay.called import ChildIds
from stepwell.replay.loop import GONE, Loop

AT = datetime(2026, 3, 1, 12, 0, 0, 123_000, tzinfo=UTC)


def test_the_ids_of_a_fan_out_are_in_the_order_of_its_calls() -> None:
    ids = ChildIds(new_run_id(), 1)
    made = [ids.id(number, AT) for number in range(1, 20_000)]
    assert made == sorted(made)
    assert {(each.version, each.variant) for each in made} == {(7, RFC_4122)}
    assert {made_at(each) for each in made} == {AT}


def test_every_replay_makes_the_same_ids() -> None:
    parent = new_run_id()
    once, again = ChildIds(parent, 3), ChildIds(parent, 3)
    assert [once.id(number, AT) for number in range(1, 100)] == [again.id(number, AT) for number in range(1, 100)]


def test_ids_that_count_over_the_end_of_their_bits_are_still_of_their_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ChildIds(new_run_id(), 1)
    ids.id(1, AT)
    monkeypatch.setattr(ids, "_noise", 2**74 - 5 * 2**16)
    made = [ids.id(number, AT) for number in range(10)]
    assert len(set(made)) == 10
    assert {(made_at(each), each.version, each.variant) for each in made} == {(AT, 7, RFC_4122)}


def test_other_parents_other_beginnings_and_other_times_have_other_ids() -> None:
    parent = new_run_id()
    makers = [ChildIds(new_run_id(), 1) for _ in range(1000)] + [ChildIds(parent, begun) for begun in range(1, 1000)]
    made = [maker.id(number, AT) for maker in makers for number in (1, 2)]
    made += [ChildIds(parent, 1).id(1, AT + timedelta(milliseconds=ms)) for ms in range(1, 100)]
    assert len(set(made)) == len(made)


def test_the_loops_of_sibling_workflows_hash_their_tasks_apart() -> None:
    """Python keeps the tasks of all loops in one set: with the same hashes, adding one would go along all of them."""
    ids = ChildIds(new_run_id(), 1)
    seeds = {Loop(GONE, seed=ids.id(number, AT).int).first_seq for number in range(1000)}  # type: ignore[abstract]
    assert len(seeds) == 1000
