"""Code that does not fit its history is told so: what is recorded, what is new, and at which line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from stepwell.context.workflow import workflow
from stepwell.model.errors import Nondeterminism
from stepwell.model.events import COMMANDS, Event, EventType
from tests.replay.driver import (
    BEGAN,
    NEVER,
    Driving,
    Fails,
    Takes,
    Told,
    World,
    begun,
    child,
    new_replay,
    signal,
    step,
    task,
)

Fn = Callable[[], Awaitable[Any]]


async def before() -> Any:
    """What the histories of the battery were written by."""
    first = await task("charge", takes=("order", "amount"))
    held = await step("reserve")
    await asyncio.sleep(60)
    workflow.publish("sent")
    parcel = await child("ship", takes=("order",))
    await asyncio.gather(task("mail"), task("log"))
    return [first, held, parcel]


async def renamed() -> None:
    await task("charge_card", takes=("order", "amount"))


async def inserted() -> None:
    await task("check")
    await task("charge", takes=("order", "amount"))


async def inserted_later() -> None:
    await task("charge", takes=("order", "amount"))
    await task("check")
    await step("reserve")


async def deleted() -> None:
    await step("reserve")


async def step_deleted() -> None:
    await task("charge", takes=("order", "amount"))
    await asyncio.sleep(60)


async def swapped() -> None:
    await step("reserve")
    await task("charge", takes=("order", "amount"))


async def to_a_child() -> None:
    await child("charge", takes=("order", "amount"))


async def to_a_step() -> None:
    await step("charge")


async def step_to_a_task() -> None:
    await task("charge", takes=("order", "amount"))
    await task("reserve")


async def other_parameters() -> None:
    await task("charge", takes=("order", "cents"))


async def no_parameters() -> None:
    await task("charge")


async def step_renamed() -> None:
    await task("charge", takes=("order", "amount"))
    await step("hold")


async def timer_dropped() -> None:
    await task("charge", takes=("order", "amount"))
    await step("reserve")
    workflow.publish("sent")
    await child("ship", takes=("order",))


async def timer_for_a_signal() -> None:
    await task("charge", takes=("order", "amount"))
    await step("reserve")
    await workflow.signal("go", timeout=60)


async def publishes_nothing() -> None:
    await task("charge", takes=("order", "amount"))
    await step("reserve")
    await asyncio.sleep(60)
    await child("ship", takes=("order",))


async def gathers_in_another_order() -> None:
    await task("charge", takes=("order", "amount"))
    await step("reserve")
    await asyncio.sleep(60)
    workflow.publish("sent")
    await child("ship", takes=("order",))
    await asyncio.gather(task("log"), task("mail"))


async def gathers_less() -> None:
    await task("charge", takes=("order", "amount"))
    await step("reserve")
    await asyncio.sleep(60)
    workflow.publish("sent")
    await child("ship", takes=("order",))
    await task("mail")


async def gathers_more() -> None:
    await task("charge", takes=("order", "amount"))
    await step("reserve")
    await asyncio.sleep(60)
    workflow.publish("sent")
    await child("ship", takes=("order",))
    await asyncio.gather(task("mail"), task("log"), task("bill"))


async def ends_too_soon() -> None:
    await task("charge", takes=("order", "amount"))


async def goes_on_at_the_end() -> None:
    await before()
    await task("more")


async def fails_at_the_end() -> None:
    await before()
    raise ValueError


async def waits_for_a_signal_first() -> None:
    await workflow.signal("go")
    await task("charge", takes=("order", "amount"))


async def marks_a_version_unasked() -> None:
    assert not workflow.patched("other")
    workflow.publish("begun")


BATTERY: dict[Fn, tuple[str, str]] = {
    renamed: ("TaskScheduled charge(order, amount)", "TaskScheduled charge_card(order, amount)"),
    inserted: ("TaskScheduled charge(order, amount)", "TaskScheduled check()"),
    inserted_later: ("StepCompleted reserve", "TaskScheduled check()"),
    deleted: ("TaskScheduled charge(order, amount)", "the step reserve"),
    step_deleted: ("StepCompleted reserve", "TimerScheduled"),
    swapped: ("TaskScheduled charge(order, amount)", "the step reserve"),
    to_a_child: ("TaskScheduled charge(order, amount)", "ChildStarted charge(order, amount)"),
    to_a_step: ("TaskScheduled charge(order, amount)", "the step charge"),
    step_to_a_task: ("StepCompleted reserve", "TaskScheduled reserve()"),
    other_parameters: ("TaskScheduled charge(order, amount)", "TaskScheduled charge(order, cents)"),
    no_parameters: ("TaskScheduled charge(order, amount)", "TaskScheduled charge()"),
    step_renamed: ("StepCompleted reserve", "the step hold"),
    timer_dropped: ("TimerScheduled", "StatePublished"),
    timer_for_a_signal: ("TimerScheduled", "TimerScheduled go"),
    publishes_nothing: ("StatePublished", "ChildStarted ship(order)"),
    gathers_in_another_order: ("TaskScheduled mail()", "TaskScheduled log()"),
    gathers_less: ("TaskScheduled log()", "nothing"),
    gathers_more: ("TaskCompleted", "TaskScheduled bill()"),
    ends_too_soon: ("StepCompleted reserve", "end (WorkflowCompleted)"),
    goes_on_at_the_end: ("WorkflowCompleted", "TaskScheduled more()"),
    fails_at_the_end: ("WorkflowCompleted", "end (WorkflowFailed)"),
    waits_for_a_signal_first: ("TaskScheduled charge(order, amount)", "nothing"),
    marks_a_version_unasked: ("TaskScheduled charge(order, amount)", "StatePublished"),
}


@pytest.mark.parametrize("after", BATTERY, ids=lambda fn: fn.__name__)
def test_an_edit_is_found_and_named(after: Fn) -> None:
    told = World().run(before)
    with pytest.raises(Nondeterminism) as caught:
        new_replay(after, told.replay.about.id).recorded(told.history)
    error = caught.value
    assert (error.recorded, error.new) == BATTERY[after]
    assert error.run_id == told.replay.about.id
    assert told.history[error.idx - 1].type == error.recorded.split()[0]
    if error.new != "nothing" and not error.new.startswith("end"):
        assert error.line.startswith(f"{__file__}:")
        assert f"in {after.__name__}" in error.line or "in before" in error.line or after is goes_on_at_the_end


@pytest.mark.parametrize("after", BATTERY, ids=lambda fn: fn.__name__)
def test_an_edit_is_found_event_by_event_too(after: Fn) -> None:
    told = World().run(before)
    replay = new_replay(after, told.replay.about.id)
    with pytest.raises(Nondeterminism) as caught:
        for event in told.history:
            replay.recorded([event], more=True)
        replay.recorded([])
    assert (caught.value.recorded, caught.value.new) == BATTERY[after]
    replay.evict()


def test_what_was_only_renumbered_is_told_by_its_number() -> None:
    async def two() -> None:
        await asyncio.gather(step("slow"), asyncio.sleep(5), asyncio.sleep(6))

    async def one() -> None:
        await asyncio.gather(asyncio.sleep(5), asyncio.sleep(6))

    told = World({"slow": NEVER}).run(two)
    with pytest.raises(Nondeterminism) as caught:
        new_replay(one, told.replay.about.id).recorded(told.history)
    assert caught.value.recorded == "TimerScheduled as command 2"
    assert caught.value.new == "TimerScheduled as command 1"
    assert "in one" in caught.value.line, "the line that made the task, as the sleep itself has none"


def test_a_command_too_many_in_the_last_turn_is_found_when_something_new_comes() -> None:
    async def one() -> None:
        await task("never")

    async def two() -> None:
        await asyncio.gather(task("never"), task("other"))

    told = World({"never": NEVER}).run(one)
    replay = new_replay(two, told.replay.about.id)
    replay.recorded(told.history)
    with pytest.raises(Nondeterminism, match=r"TaskScheduled other\(\)"):
        replay.delivered(Event(3, EventType.SIGNAL_RECEIVED, BEGAN, name="x", value=b"1"))


def test_code_that_ends_where_its_history_went_on_is_found() -> None:
    async def waits() -> Any:
        return await workflow.signal("go")

    async def does_not() -> None: ...

    told = World(arrives=[(1, signal("other")), (2, signal("go"))]).run(waits)
    with pytest.raises(Nondeterminism, match="end"):
        new_replay(does_not, told.replay.about.id).recorded(told.history)


# -- what may be changed


def test_what_is_not_recorded_may_be_changed() -> None:
    async def one() -> Any:
        await asyncio.sleep(60)
        return await task("a")

    async def two() -> Any:
        await asyncio.sleep(90)
        workflow.info()
        return "new " + await task("a")

    told = World({"a": NEVER}).run(one)
    replay = new_replay(two, told.replay.about.id)
    replay.recorded(told.history)
    event = Event(len(told.history) + 1, EventType.TASK_COMPLETED, BEGAN, 2, value=b'"a"')
    replay.delivered(event)
    assert replay.ended is not None
    assert replay.ended.value == b'"new a"'


def test_an_end_that_comes_after_its_call_was_given_up_changes_nothing() -> None:
    async def gives_up() -> Any:
        try:
            async with asyncio.timeout(1):
                await task("slow")
        except TimeoutError:
            return await task("other")

    driving = Driving(World({"slow": NEVER, "other": NEVER}), gives_up)
    driving.begin(None)
    while driving.once():
        pass
    late = Event(0, EventType.TASK_FAILED, driving.now + timedelta(1), 2, state="cancelled")
    driving.deliver(late)
    replay = new_replay(gives_up)
    replay.recorded(driving.history)
    assert replay.waits_for() == {"runs": ["other"], "signals": []}


def test_a_fork_has_the_ids_numbers_and_order_of_its_origin() -> None:
    async def chance() -> Any:
        made = [asyncio.create_task(task(f"t{i}")) for i in range(20)]
        done, _ = await asyncio.wait(made)
        for each in done:
            await step(str(each.result()))
        begun("kid")
        if workflow.random.random() < 0.5:
            await task("low")
        await task("never")

    for number in range(8):
        told = World({"never": NEVER, "kid": NEVER}, id=UUID(int=number * 0x1234_5678_9ABC)).run(chance)
        history = [*told.history]
        history[0] = Event(1, EventType.WORKFLOW_STARTED, BEGAN, run_id=told.replay.about.id)
        fork = new_replay(chance, UUID(int=7))
        fork.recorded(history)
        assert fork.take() == []


# -- patched


async def v1() -> Any:
    said = []
    for i in range(3):
        said.append(await task("old", i))
        await workflow.signal("next")
    return said


async def v2() -> Any:
    said = []
    for i in range(3):
        said.append(await (task("new", i) if workflow.patched("new-way") else task("old", i)))
        await workflow.signal("next")
    return said


async def v3() -> Any:
    said = []
    for i in range(3):
        workflow.patched("new-way")
        said.append(await task("new", i))
        await workflow.signal("next")
    return said


async def v4() -> Any:
    said = []
    for i in range(3):
        said.append(await task("new", i))
        await workflow.signal("next")
    return said


async def rolled_back() -> Any:
    return await v1()


def on_with(code: Fn, history: list[Event]) -> Driving:
    """Another worker, with this code, has the run now."""
    driving = Driving(World(), code)
    driving.replay.recorded(history)
    driving.history = list(history)
    driving.now = history[-1].at
    for event in history:
        if event.type == EventType.TASK_SCHEDULED and not any(
            each.type == EventType.TASK_COMPLETED and each.command == event.command for each in history
        ):
            answer = Event(0, EventType.TASK_COMPLETED, driving.now, event.command, value=f'"{event.name}"'.encode())
            driving._come(0, lambda answer=answer: answer)
    return driving


def through(driving: Driving, signals: int) -> list[Event]:
    """All it does until it has had so many more signals, and waits for the next."""
    while driving.once():
        pass
    for _ in range(signals):
        driving.deliver(Event(0, EventType.SIGNAL_RECEIVED, driving.now, name="next", value=b"null"))
        while driving.replay.ended is None and driving.once():
            pass
    return driving.history


def start(code: Fn, signals: int) -> list[Event]:
    driving = Driving(World(), code)
    driving.begin(None)
    return through(driving, signals)


def result(driving: Driving) -> Any:
    return Told(driving.fn, driving.history, driving.replay.ended, driving.replay).result


@pytest.mark.parametrize("old", [0, 1, 2])
def test_a_run_that_went_the_old_way_goes_the_new_one_from_its_next_turn_on(old: int) -> None:
    history = start(v1, old)
    driving = on_with(v2, history)
    history = through(driving, 3 - old)
    names = [event.name for event in history if event.type == EventType.TASK_SCHEDULED]
    assert names == ["old"] * (old + 1) + ["new"] * (2 - old)
    for place, event in enumerate(history):
        if event.type not in COMMANDS:
            new_replay(v2).recorded(history[:place])


@pytest.mark.parametrize("first", [0, 1, 2])
@pytest.mark.parametrize("second", [v2, v3])
def test_a_run_of_the_second_version_goes_on_with_the_second_and_the_third(first: int, second: Fn) -> None:
    history = start(v2, first)
    driving = on_with(second, history)
    through(driving, 3 - first)
    assert result(driving) == ["new"] * 3


def test_a_run_of_the_third_version_can_go_back_to_the_second() -> None:
    driving = on_with(v2, start(v3, 1))
    through(driving, 2)
    assert result(driving) == ["new"] * 3


@pytest.mark.parametrize(
    ("wrote", "reads", "new"),
    [
        (v1, v3, "TaskScheduled new()"),
        (v1, v4, "TaskScheduled new()"),
        (v2, v4, "TaskScheduled new()"),
        (v2, rolled_back, "TaskScheduled old()"),
        (v3, v4, "TaskScheduled new()"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_patch_that_is_taken_out_too_early_is_found(wrote: Fn, reads: Fn, new: str) -> None:
    with pytest.raises(Nondeterminism) as caught:
        new_replay(reads).recorded(start(wrote, 1))
    assert caught.value.new == new
    assert caught.value.recorded in ("TaskScheduled old()", "VersionMarked new-way")


def test_patches_in_one_turn_and_in_tasks_beside_each_other() -> None:
    async def one() -> Any:
        await asyncio.gather(task("a"), task("b"))
        await workflow.signal("never")

    async def both() -> Any:
        async def way(name: str) -> None:
            await task(f"new {name}" if workflow.patched(name) else name)

        await asyncio.gather(way("a"), way("b"))
        if workflow.patched("a") and workflow.patched("c"):
            await task("c")
        await workflow.signal("never")

    old = World().run(one)
    new_replay(both).recorded(old.history)
    told = World().run(both)
    assert told.commands(EventType.VERSION_MARKED) == ["a", "b", "c"]
    assert told.commands(EventType.TASK_SCHEDULED) == ["new a", "new b", "c"]


def test_errors_of_a_call_are_told_as_they_were() -> None:
    async def tries() -> Any:
        said = []
        for kind, name in ((task, "bad"), (step, "bad"), (child, "bad"), (task, "gone"), (task, "late")):
            try:
                await kind(name)
            except Exception as error:
                said.append(f"{type(error).__name__}: {error}".replace(str(workflow.info().id), "ID"))
        return said

    said = World({
        "bad": Takes(1, Fails("it broke", "Broken")), "gone": Fails(state="cancelled"), "late": Fails(state="expired"),
    }).run(tries).result  # fmt: skip
    assert [each.split(":")[0] for each in said] == [
        "RunFailed", "StepFailed", "RunFailed", "RunCancelled", "RunExpired",
    ]  # fmt: skip
    assert all("Broken: it broke" in each for each in said[:3])
