"""Ids of a workflow's own runs: reckoned, so that they are the same in every replay, and neighbours in every index."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import RFC_4122, uuid4

import pytest

from stepwell.model.events import Event, EventType
from stepwell.model.ids import made_at, new_run_id
from stepwell.replay.called import ChildIds
from stepwell.replay.loop import GONE, Loop
from tests.replay.driver import RUN, as_event, new_replay, task

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


def test_a_history_with_ids_of_another_kind_keeps_them_and_its_rest_has_ours() -> None:
    """A part was written by code that made its ids otherwise, and ours goes on with the rest."""

    async def fan() -> int:
        return sum(await asyncio.gather(*(task("t", number) for number in range(6))))

    history = [Event(1, EventType.WORKFLOW_STARTED, AT)]
    for number in (1, 2, 3):
        history.append(Event(1 + number, EventType.TASK_SCHEDULED, AT, number, "t", uuid4(), ()))
    history[-1].more = True
    replay = new_replay(fan)
    replay.recorded(history)
    history += [as_event(command, 1 + (command.number or 0), AT) for command in replay.take()]
    ours = ChildIds(RUN, 1)
    assert [event.run_id for event in history[4:]] == [ours.id(number, AT) for number in (4, 5, 6)]
    for number in range(1, 7):
        end = Event(7 + number, EventType.TASK_COMPLETED, AT, number, run_id=history[number].run_id, value=b"1")
        assert replay.delivered(end) == []
        history.append(end)
    assert replay.ended is not None
    assert replay.ended.value == b"6"
    again = new_replay(fan)
    again.recorded(history)
    assert again.ended == replay.ended
