"""Signals and updates: what comes from outside, in its order, and what is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from stepwell.context.workflow import workflow
from stepwell.model.events import Event, EventType
from tests.replay.driver import BEGAN, CANCEL, NEVER, Comes, Takes, Told, World, new_replay, signal, step, task, update


def test_signals_that_came_before_the_wait_are_kept_in_their_order() -> None:
    async def late() -> Any:
        await asyncio.sleep(10)
        return [await workflow.signal("go", int) for _ in range(3)]

    arrives = [(1, signal("go", 1)), (2, signal("go", 2)), (3, signal("other", 0)), (11, signal("go", 3))]
    assert World(arrives=arrives).run(late).result == [1, 2, 3]


def test_of_several_who_wait_the_first_gets_the_first() -> None:
    async def several() -> Any:
        async def one() -> Any:
            return await workflow.signal("go")

        return await asyncio.gather(*(one() for _ in range(3)))

    assert World(arrives=[(i, signal("go", i)) for i in (1, 2, 3)]).run(several).result == [1, 2, 3]


def test_a_wait_that_times_out_is_recorded_and_the_next_signal_is_for_the_next_wait() -> None:
    async def waits() -> Any:
        try:
            await workflow.signal("go", timeout="5s")
        except TimeoutError:
            late = str(workflow.now().time())
        return [late, await workflow.signal("go", timeout=5)]

    told = World(arrives=[(6, signal("go", 1))]).run(waits)
    assert told.result == ["00:00:05", 1]
    assert told.types == [
        "WorkflowStarted", "TimerScheduled", "SignalTimedOut", "TimerScheduled", "SignalReceived", "WorkflowCompleted",
    ]  # fmt: skip
    assert [event.name for event in told.history[1:5]] == ["go"] * 4


def test_a_signal_that_is_there_needs_no_timer() -> None:
    async def waits() -> Any:
        await asyncio.sleep(5)
        return await workflow.signal("go", timeout=5)

    told = World(arrives=[(1, signal("go", 1))]).run(waits)
    assert told.types.count("TimerScheduled") == 1


def test_a_wait_of_no_time_at_all_looks_once() -> None:
    async def polls() -> Any:
        found = []
        for _ in range(2):
            try:
                found.append(await workflow.signal("go", timeout=0))
            except TimeoutError:
                found.append(None)
            await asyncio.sleep(5)
        return found

    assert World(arrives=[(3, signal("go", 1))]).run(polls).result == [None, 1]


def test_a_cancelled_receiver_leaves_the_signal_to_the_next() -> None:
    async def cancels() -> Any:
        first, second = (asyncio.create_task(workflow.signal("go")) for _ in range(2))
        await asyncio.sleep(1)
        first.cancel()
        return [await second, await workflow.signal("go")]

    assert World(arrives=[(2, signal("go", 1)), (3, signal("go", 2))]).run(cancels).result == [1, 2]


def test_what_was_handed_out_and_not_taken_is_given_back_in_its_order() -> None:
    async def never() -> None:
        await task("never")

    replay = new_replay(never)
    replay.delivered(Event(1, EventType.WORKFLOW_STARTED, BEGAN))
    first, second, third = (replay.wait_for_signal("go", None) for _ in range(3))
    for number in (1, 2):
        replay.delivered(Event(number + 1, EventType.SIGNAL_RECEIVED, BEGAN, name="go", value=b"%d" % number))
    replay.give_back("go", second)
    assert third.result() == b"2", "who waited behind has it now"
    replay.give_back("go", third)
    replay.give_back("go", first)
    assert replay._signals.unread() == (("go", b"1"), ("go", b"2"))
    assert replay.wait_for_signal("go", None).result() == b"1"
    replay.evict()


def test_waits_that_ended_are_not_kept() -> None:
    async def waits_often() -> Any:
        for _ in range(100):
            try:
                async with asyncio.timeout(1):
                    await workflow.signal("go")
            except TimeoutError:
                pass
        return await workflow.signal("go")

    told = World().run(waits_often, check=False)
    assert told.replay.waits_for() == {"runs": [], "signals": ["go"]}
    assert len(told.replay._signals._waiting["go"]) == 1


def test_a_value_of_the_wrong_type_is_an_error_where_it_is_awaited() -> None:
    async def waits() -> Any:
        try:
            await workflow.signal("go", int)
        except Exception as error:
            return [type(error).__name__, await workflow.signal("go", int)]

    told = World(arrives=[(1, signal("go", "no number")), (2, signal("go", 2))]).run(waits)
    assert told.result[1] == 2


# -- publish


def test_what_is_published_is_recorded_in_its_place() -> None:
    async def publishes() -> None:
        workflow.publish({"at": 1})
        await task("a")
        workflow.publish({"at": 2})

    told = World().run(publishes)
    assert [(e.type, e.value) for e in told.history if e.type == EventType.STATE_PUBLISHED] == [
        (EventType.STATE_PUBLISHED, b'{"at":1}'),
        (EventType.STATE_PUBLISHED, b'{"at":2}'),
    ]


# -- updates


async def cart() -> Any:
    goods: list[str] = []
    paid = asyncio.Event()

    @workflow.update
    def add(name: str, count: int = 1) -> int:
        goods.extend([name] * count)
        return len(goods)

    @add.validator
    def few(name: str, count: int = 1) -> None:
        if count > 9:
            raise ValueError(f"{count} are too many")

    @workflow.update
    async def pay(amount: int) -> str:
        receipt = await task("charge", amount)
        paid.set()
        return f"paid {amount}: {receipt}"

    @workflow.update
    def fails() -> None:
        raise KeyError("no")

    @workflow.update
    def renews() -> None:
        workflow.continue_as_new()

    await paid.wait()
    return goods


def answers(*updates: tuple[float, Comes], world: dict[str, Any] | None = None, fn: Callable[..., Any] = cart) -> Told:
    return World(world or {}, updates).run(fn)


def answer_to(told: Told, number: int) -> tuple[str, Any]:
    for event in told.history:
        if event.run_id is not None and event.run_id.int == number and event.type != EventType.UPDATE_REQUESTED:
            return str(event.type), event.error.message if event.error else event.value
    raise AssertionError(f"update {number} was not answered")


def test_updates_are_answered_by_functions_of_the_workflow() -> None:
    told = answers((1, update("add", 1, name="cup")), (2, update("add", 2, name="pot", count=2)),
                   (3, update("pay", 3, amount=30)), world={"charge": Takes(5, "ok")})  # fmt: skip
    assert told.result == ["cup", "pot", "pot"]
    assert answer_to(told, 2) == ("UpdateCompleted", b"3")
    assert answer_to(told, 3) == ("UpdateCompleted", b'"paid 30: ok"')


def test_a_validator_refuses_and_nothing_has_happened() -> None:
    told = answers((1, update("add", 1, name="cup", count=10)), (2, update("pay", 2, amount=1)))
    assert answer_to(told, 1) == ("UpdateRejected", "10 are too many")
    assert told.result == []


def test_wrong_input_unknown_names_and_errors_are_answers_too() -> None:
    told = answers(
        (1, update("add", 1, name="cup", count="many")),
        (1, update("drop", 2)),
        (1, update("fails", 3)),
        (1, update("renews", 4)),
        (2, update("pay", 5, amount=1)),
    )
    assert answer_to(told, 1)[0] == "UpdateRejected"
    assert answer_to(told, 2)[0] == "UpdateRejected"
    assert "'drop'" in answer_to(told, 2)[1]
    assert "updates: add, fails, pay, renews" in answer_to(told, 2)[1]
    assert answer_to(told, 3)[0] == "UpdateFailed"
    assert answer_to(told, 4)[0] == "UpdateFailed"
    assert "cannot continue as new" in answer_to(told, 4)[1]
    assert told.result == []


def test_updates_at_once_are_answered_as_each_ends() -> None:
    async def desk() -> Any:
        @workflow.update
        async def ask(name: str) -> Any:
            return await step(name)

        await asyncio.sleep(10)

    told = answers(
        (1, update("ask", 1, name="slow")), (2, update("ask", 2, name="quick")), world={"slow": Takes(5, 1)}, fn=desk
    )
    ends = [event.run_id.int for event in told.history if event.type == EventType.UPDATE_COMPLETED and event.run_id]
    assert ends == [2, 1]


def test_an_update_that_is_still_at_work_at_the_end_is_answered() -> None:
    async def ends() -> None:
        @workflow.update
        async def ask() -> Any:
            await task("never")

        await workflow.signal("end")

    told = answers((1, update("ask", 1)), (2, signal("end")), world={"never": NEVER}, fn=ends)
    assert answer_to(told, 1) == ("UpdateFailed", "the workflow ended before it had answered")
    assert told.types[-1] == "WorkflowCompleted"


def test_a_validator_may_not_wait() -> None:
    async def waits() -> None:
        @workflow.update
        def ask() -> None: ...

        @ask.validator
        async def check() -> None: ...

        await workflow.signal("end")

    told = answers((1, update("ask", 1)), (2, signal("end")), fn=waits)
    assert answer_to(told, 1)[0] == "UpdateRejected"
    assert "async" in answer_to(told, 1)[1]


def test_a_cancel_while_it_answers() -> None:
    told = answers((1, update("pay", 1, amount=1)), (2, CANCEL), world={"charge": NEVER})
    assert answer_to(told, 1)[0] == "UpdateFailed"
    assert told.types[-1] == "WorkflowCancelled"
    assert told.types.count("TaskCancelled") == 1
