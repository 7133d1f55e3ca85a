"""Group commit: which questions travel together, how many groups are on their way, and what becomes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from stepwell.concurrency import group_commit
from stepwell.concurrency.group_commit import FLIGHTS, GROUP, GroupCommit, Later
from tests.waiting_for import until


class Doubling:
    """Answers twice each number, once it is let."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.open = asyncio.Event()
        self.error: BaseException | None = None

    async def commit(self, numbers: Sequence[int]) -> Sequence[Later[int] | BaseException]:
        self.groups.append(list(numbers))
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return [2 * number for number in numbers]


@pytest.fixture
def doubling() -> Doubling:
    return Doubling()


@pytest.fixture
def group(doubling: Doubling) -> GroupCommit[int, int]:
    return GroupCommit(doubling.commit)


def asked(group: GroupCommit[int, int], numbers: Sequence[int]) -> list[asyncio.Task[int]]:
    return [asyncio.create_task(group.answer(number)) for number in numbers]


async def settled(tasks: Sequence[asyncio.Task[int]]) -> list[Any]:
    async with asyncio.timeout(30):
        return await asyncio.gather(*tasks, return_exceptions=True)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_questions_of_one_moment_travel_together_and_each_has_its_answer(
    doubling: Doubling, group: GroupCommit[int, int]
) -> None:
    doubling.open.set()
    assert await settled(asked(group, range(50))) == [2 * number for number in range(50)]
    assert doubling.groups == [list(range(50))]


async def test_no_group_is_too_large_and_no_more_are_on_their_way_than_two(
    doubling: Doubling, group: GroupCommit[int, int]
) -> None:
    tasks = asked(group, range(3 * GROUP))
    await turns(5)
    assert [len(each) for each in doubling.groups] == [GROUP] * FLIGHTS
    assert len(group) == 3 * GROUP
    doubling.open.set()
    assert await settled(tasks) == [2 * number for number in range(3 * GROUP)]
    assert [len(each) for each in doubling.groups] == [GROUP] * 3
    assert len(group) == 0


async def test_a_lone_question_leaves_at_once_and_no_task_is_made_for_it(
    doubling: Doubling, group: GroupCommit[int, int]
) -> None:
    doubling.open.set()
    tasks = asyncio.all_tasks()
    assert await group.answer_at_once(4) == 8
    assert asyncio.all_tasks() == tasks
    assert doubling.groups == [[4]]


async def test_a_question_that_comes_while_two_are_on_their_way_waits_for_others(
    doubling: Doubling, group: GroupCommit[int, int]
) -> None:
    tasks = [asyncio.create_task(group.answer_at_once(number)) for number in range(10)]
    await turns(5)
    assert doubling.groups == [[0], [1]]
    doubling.open.set()
    assert await settled(tasks) == [2 * number for number in range(10)]
    assert doubling.groups == [[0], [1], list(range(2, 10))]


async def test_a_small_group_waits_for_a_large_one_but_not_for_ever(
    doubling: Doubling, group: GroupCommit[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_commit, "PATIENCE", 0.0)
    tasks = asked(group, range(100))
    await turns(3)
    tasks += asked(group, [200])
    await turns(2)
    assert [len(each) for each in doubling.groups] == [100]

    async def has_left() -> bool:
        return len(doubling.groups) == 2

    await until(has_left)  # though the first is held up
    doubling.open.set()
    assert (await settled(tasks))[-1] == 400


async def test_an_error_is_the_answer_to_all_of_its_group(doubling: Doubling, group: GroupCommit[int, int]) -> None:
    doubling.error = KeyError("no")
    doubling.open.set()
    assert [type(each) for each in await settled(asked(group, range(3)))] == [KeyError] * 3
    with pytest.raises(KeyError):
        await group.answer_at_once(1)
    doubling.error = None
    assert await group.answer(1) == 2, "the next group is asked all the same"


async def test_an_answer_that_comes_late_holds_up_no_other(doubling: Doubling) -> None:
    late = asyncio.Event()

    async def comes_late(number: int) -> int | BaseException:
        await late.wait()
        return -number

    async def commit(numbers: Sequence[int]) -> Sequence[Later[int] | BaseException]:
        return [asyncio.create_task(comes_late(each)) if each == 1 else each for each in numbers]

    group: GroupCommit[int, int] = GroupCommit(commit)
    first, second = asked(group, [1, 2])
    assert await second == 2
    assert not first.done()
    late.set()
    assert await first == -1
    await group.landed()


async def test_a_caller_that_is_cancelled_in_time_has_asked_nothing(
    doubling: Doubling, group: GroupCommit[int, int]
) -> None:
    tasks = [asyncio.create_task(group.answer_at_once(number)) for number in range(4)]
    await turns(2)
    tasks[2].cancel()
    await turns(2)
    doubling.open.set()
    answers = await settled(tasks)
    assert isinstance(answers[2], asyncio.CancelledError)
    assert doubling.groups == [[0], [1], [3]]


async def test_the_first_questions_that_wait_can_be_given_up(doubling: Doubling, group: GroupCommit[int, int]) -> None:
    tasks = [asyncio.create_task(group.answer_at_once(number)) for number in range(6)]
    await turns(2)
    group.give_up(lambda number: number < 4, KeyError("gone"))
    doubling.open.set()
    answers = await settled(tasks)
    assert [type(each).__name__ for each in answers] == ["int", "int", "KeyError", "KeyError", "int", "int"]


async def test_what_is_on_its_way_when_it_closes_is_cancelled(doubling: Doubling, group: GroupCommit[int, int]) -> None:
    tasks = asked(group, range(3))
    await turns(3)
    group.close()
    assert all(isinstance(each, asyncio.CancelledError) for each in await settled(tasks))
