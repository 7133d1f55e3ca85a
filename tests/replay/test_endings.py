"""How a workflow ends: cancelled, rolled back, begun anew; and what is the same whenever it is told again."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from stepwell.context.workflow import workflow
from stepwell.model.events import Event, EventType
from stepwell.replay.current_replay import here
from tests.replay.driver import BEGAN, CANCEL, NEVER, Driving, Fails, Takes, World, new_replay, signal, step, task

# -- cancelled


async def cleans_up() -> Any:
    try:
        await asyncio.gather(task("never"), asyncio.sleep(100))
    except asyncio.CancelledError:
        await task("undo")
        async with asyncio.TaskGroup() as group:
            group.create_task(step("tidy"))
            group.create_task(asyncio.sleep(5))
        raise
    finally:
        await step("last")


def test_a_cancelled_workflow_cleans_up_with_all_it_has() -> None:
    told = World({"never": NEVER}, [(1, CANCEL)]).run(cleans_up)
    assert told.types[-1] == "WorkflowCancelled"
    assert told.commands(EventType.TASK_CANCELLED) == ["never"]
    assert told.commands(EventType.STEP_COMPLETED) == ["tidy", "last"]


def test_it_may_refuse() -> None:
    async def refuses() -> Any:
        for _ in range(2):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                continue
        return await task("a")

    told = World(arrives=[(1, CANCEL), (2, CANCEL)]).run(refuses)
    assert told.result == "a"


def test_cancelled_twice_the_second_stops_what_the_first_began() -> None:
    async def slow_to_go() -> None:
        try:
            await task("never")
        finally:
            await task("never either")

    told = World({"never": NEVER, "never either": NEVER}, [(1, CANCEL), (2, CANCEL)]).run(slow_to_go)
    assert told.types[-1] == "WorkflowCancelled"
    assert told.commands(EventType.TASK_CANCELLED) == ["never", "never either"]


def test_cancelled_before_it_could_do_anything() -> None:
    async def waits() -> None:
        await asyncio.Event().wait()

    assert World(arrives=[(0, CANCEL)]).run(waits).types == ["WorkflowStarted", "CancelRequested", "WorkflowCancelled"]


def test_what_was_left_behind_hears_of_a_cancel_after_the_end() -> None:
    async def leaves() -> str:
        async def left() -> None:
            try:
                await task("never")
            finally:
                await task("never either")

        behind = asyncio.create_task(left())
        await asyncio.sleep(1)
        return "done" if not behind.done() else "too late"

    told = World({"never": NEVER, "never either": NEVER}, [(2, CANCEL)]).run(leaves)
    assert told.result == "done"
    assert told.commands(EventType.TASK_CANCELLED) == ["never", "never either"]


def test_a_step_that_nobody_awaits_any_more_is_dropped_at_the_end() -> None:
    async def shields() -> str:
        replay = here()
        assert replay is not None
        left = asyncio.shield(replay.step(SimpleNamespace(name="slow"), b"[]"))
        await task("a")
        return "late" if left.done() else "done"

    told = World({"slow": Takes(5, 1)}).run(shields)
    assert told.result == "done"
    assert [called.call.dropped for called in told.replay._calls.values()] == [True]


def test_a_generator_that_will_not_end_does_not_keep_the_workflow_from_it() -> None:
    kept: list[AsyncGenerator[int, None]] = []
    stubborn = True

    async def each() -> AsyncGenerator[int, None]:
        while stubborn:
            with contextlib.suppress(GeneratorExit):
                yield 1
        raise GeneratorExit

    async def leaves() -> str:
        kept.append(each())
        async for _ in kept[0]:
            await task("a")
            break
        return "done"

    assert World().run(leaves, check=False).result == "done"
    stubborn = False


def test_who_cancels_itself_has_failed() -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    assert World().run(gives_up).error.message == "the workflow cancelled itself"


def test_an_error_while_it_cleans_up_is_the_error() -> None:
    async def fails() -> None:
        try:
            await task("never")
        except asyncio.CancelledError:
            raise ValueError("could not tidy") from None

    assert World({"never": NEVER}, [(1, CANCEL)]).run(fails).error.message == "could not tidy"


# -- rolled back


async def trip(fails: str) -> str:
    for name in ("flight", "hotel", "car"):
        if name == fails:
            await task("bad", name)
        await task("book", name)
        workflow.on_rollback(task, f"cancel {name}", 1)
    await workflow.signal("go")
    return "booked"


def test_what_was_done_is_undone_the_last_first() -> None:
    told = World({"bad": Fails("sold out")}).run(trip, "car")
    assert told.commands(EventType.TASK_SCHEDULED) == ["book", "book", "bad", "cancel hotel", "cancel flight"]
    assert "sold out" in told.error.message


def test_nothing_is_undone_when_it_went_well() -> None:
    told = World(arrives=[(1, signal("go"))]).run(trip, "")
    assert told.result == "booked"
    assert told.commands(EventType.TASK_SCHEDULED) == ["book"] * 3


def test_a_cancelled_workflow_is_rolled_back() -> None:
    told = World(arrives=[(1, CANCEL)]).run(trip, "")
    assert told.types[-1] == "WorkflowCancelled"
    assert told.commands(EventType.TASK_SCHEDULED)[3:] == ["cancel car", "cancel hotel", "cancel flight"]


def test_a_second_cancel_does_not_stop_a_rollback() -> None:
    slow = {f"cancel {name}": Takes(5, 1) for name in ("flight", "hotel", "car")}
    told = World(slow, [(1, CANCEL), (3, CANCEL), (8, CANCEL)]).run(trip, "")
    assert told.types[-1] == "WorkflowCancelled"
    assert told.commands(EventType.TASK_CANCELLED) == []
    assert told.types.count("TaskCompleted") == 6


def test_one_that_cannot_be_undone_does_not_keep_the_others_from_it() -> None:
    told = World({"bad": Fails("sold out"), "cancel hotel": Fails("no reply")}).run(trip, "car")
    assert told.commands(EventType.TASK_SCHEDULED)[-2:] == ["cancel hotel", "cancel flight"]
    assert "sold out" in told.error.message
    assert "no reply" in told.error.message


def test_a_cancelled_workflow_that_cannot_be_undone_has_failed() -> None:
    told = World({"cancel hotel": Fails("no reply")}, [(1, CANCEL)]).run(trip, "")
    assert told.types[-1] == "WorkflowFailed"
    assert "no reply" in told.error.message
    assert "after the workflow was cancelled" in told.error.message
    assert told.commands(EventType.TASK_SCHEDULED)[3:] == ["cancel car", "cancel hotel", "cancel flight"]


def test_groups_and_timeouts_work_in_a_rollback_after_a_cancel() -> None:
    async def with_a_group() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(task("bad"))
                group.create_task(task("never"))
        except* Exception:
            pass

    async def in_time() -> None:
        try:
            async with asyncio.timeout(3):
                await task("never")
        except TimeoutError:
            await task("enough")

    async def works() -> None:
        workflow.on_rollback(task, "first")
        workflow.on_rollback(in_time)
        workflow.on_rollback(with_a_group)
        await task("never")

    told = World({"never": NEVER, "bad": Takes(1, Fails())}, [(1, CANCEL)]).run(works)
    assert told.types[-1] == "WorkflowCancelled"
    assert told.commands(EventType.TASK_SCHEDULED)[-2:] == ["enough", "first"]


def test_an_eviction_undoes_nothing() -> None:
    done = []

    async def undo() -> None:
        done.append("undone")

    async def works() -> None:
        workflow.on_rollback(undo)
        await task("never")

    World({"never": NEVER}).run(works).replay.evict()
    assert done == []


# -- begun anew


async def counts(so_far: int = 0) -> int:
    seen = so_far + await workflow.signal("add", int)
    if seen < 100:
        await asyncio.sleep(1)
        workflow.continue_as_new(seen)
    return seen


def test_it_begins_anew_with_what_it_was_given_and_the_signals_it_has_not_read() -> None:
    arrives = [(0.1, signal("add", 60)), (0.2, signal("add", 41)), (0.3, signal("other", "x")), (0.4, signal("add", 1))]
    told = World(arrives=arrives).run(counts)
    last = told.history[-1]
    assert (last.type, last.value) == (EventType.CONTINUED_AS_NEW, b"[60]")
    assert last.signals == (("add", b"41"), ("other", b'"x"'), ("add", b"1"))
    again = Driving(World(), counts)
    again.history = [Event(each, EventType.TIMER_FIRED, BEGAN) for each in range(1, last.idx)]
    again.deliver(Event(last.idx, last.type, last.at, value=last.value, signals=last.signals))
    on = again.to_the_end()
    assert on.result == 101
    replay = new_replay(counts)
    replay.recorded(on.history[last.idx - 1 :])
    assert replay.ended == on.ended
    assert replay._signals.unread() == (("other", b'"x"'), ("add", b"1"))


def test_it_begins_anew_from_inside_a_group_and_rolls_nothing_back() -> None:
    async def group() -> None:
        workflow.on_rollback(task, "undo")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(100))
            async with asyncio.TaskGroup():
                await step("x")
                workflow.continue_as_new(1)

    told = World().run(group)
    assert told.types[-1] == "ContinuedAsNew"
    assert told.commands(EventType.TASK_SCHEDULED) == []


def test_the_end_of_a_task_from_before_it_began_anew_is_nobodys() -> None:
    async def once() -> Any:
        return await task("a")

    replay = new_replay(once)
    replay.delivered(Event(9, EventType.CONTINUED_AS_NEW, BEGAN))
    for idx, number in ((11, 1), (12, 77)):
        replay.delivered(Event(idx, EventType.TASK_COMPLETED, BEGAN, number, run_id=UUID(int=4711), value=b'"old"'))
    assert replay.ended is None
    assert replay.waits_for()["runs"] == ["a"]
    replay.evict()


def test_a_patch_is_told_again_in_a_history_that_begins_late() -> None:
    async def patched() -> Any:
        return await task("new" if workflow.patched("p") else "old")

    driving = Driving(World(), patched)
    driving.history = [Event(each, EventType.TIMER_FIRED, BEGAN) for each in range(1, 41)]
    driving.deliver(Event(0, EventType.CONTINUED_AS_NEW, BEGAN))
    told = driving.to_the_end()
    assert told.result == "new"
    replay = new_replay(patched)
    replay.recorded(told.history[40:])
    assert replay.ended == told.ended


# -- the same, whenever


async def chance() -> Any:
    said = [workflow.random.random(), str(workflow.uuid()), workflow.now().isoformat()]
    await asyncio.sleep(90)
    await asyncio.gather(*(task(f"t{workflow.random.randrange(1000)}") for _ in range(5)))
    return [*said, workflow.random.sample(range(100), 5), str(workflow.uuid()), workflow.now().isoformat()]


def test_time_chance_and_ids_are_the_same_whenever_it_is_told_again() -> None:
    first, second = World().run(chance), World().run(chance)
    assert first.result == second.result
    assert first.result[2] == "2026-01-01T00:00:00+00:00"
    assert first.result[-1] == "2026-01-01T00:01:30+00:00"
    assert [e.run_id for e in first.history] == [e.run_id for e in second.history]


def test_a_continuation_has_other_chances_and_other_children() -> None:
    async def once() -> Any:
        await task("a")
        return workflow.random.random()

    def from_event(idx: int, type: EventType) -> Any:
        driving = Driving(World(), once)
        driving.history = [Event(each, EventType.TIMER_FIRED, BEGAN) for each in range(1, idx)]
        driving.deliver(Event(0, type, BEGAN))
        told = driving.to_the_end()
        return told.result, next(event.run_id for event in told.history if event.type == EventType.TASK_SCHEDULED)

    first, second = from_event(1, EventType.WORKFLOW_STARTED), from_event(9, EventType.CONTINUED_AS_NEW)
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_it_knows_when_it_is_told_again() -> None:
    seen: list[bool] = []

    async def looks() -> None:
        seen.append(workflow.replaying)
        await task("a")
        seen.append(workflow.replaying)

    told = World().run(looks, check=False)
    assert seen == [False, False]
    seen.clear()
    replay = new_replay(looks)
    replay.recorded(told.history[:2])
    replay.delivered(told.history[2])
    assert seen == [True, False]
