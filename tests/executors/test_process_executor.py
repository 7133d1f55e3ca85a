from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import executor_bodies as bodies
import msgspec
import pytest
from executor_bodies import defined

from stepwell.executors.base import BodyExited, ProcessDied, RemoteError, traceback_text, type_names
from stepwell.executors.frames import CallFrame, StartFrame, Target, pack
from stepwell.executors.process import ProcessExecutor, importable
from stepwell.model.errors import InvalidSetting, NotEncodable
from stepwell.model.raised import Fatal, Snooze

MODULE = bodies.__name__


async def result(processes, fn, *args):
    body = defined(fn)
    return json.loads(await processes.run(body, body.input(*args)))


def calling(processes, fn, *args) -> asyncio.Task:
    return asyncio.create_task(result(processes, fn, *args))


async def said(fifo: Path) -> list[int]:
    return [int(pid) for pid in (await asyncio.to_thread(fifo.read_text)).split()]


def children_of_ours() -> str:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text()


async def test_a_body_runs_in_another_process_and_its_result_comes_back(processes) -> None:
    assert await result(processes, bodies.add, 2, 3) == 5
    assert await result(processes, bodies.pid) != os.getpid()


async def test_an_async_body_and_a_decorated_one_run_too(processes) -> None:
    assert await result(processes, bodies.add_async, 2, 3) == 5
    body = bodies.as_definition
    assert await processes.run(body, body.input("well")) == b'"WELL"'


@pytest.mark.parametrize("fn", [bodies.decline, bodies.decline_async])
async def test_an_error_comes_back_as_data_with_its_bases_code_and_traceback(processes, fn) -> None:
    with pytest.raises(RemoteError, match="too poor") as raised:
        await result(processes, fn, "too poor")
    error = raised.value
    assert error.type == f"{MODULE}.Declined"
    assert error.types == (f"{MODULE}.Declined", "ValueError", "Exception", "BaseException")
    assert error.types == type_names(error)
    assert error.code == "CARD_DECLINED"
    frames = traceback_text(error).splitlines()
    assert "executor_bodies.py" in frames[1]
    assert "# the user's line" in frames[2]


async def test_a_code_of_the_users_own_comes_back(processes) -> None:
    with pytest.raises(RemoteError) as raised:
        await result(processes, bodies.fail_with_code, "LATE")
    assert raised.value.code == "LATE"


async def test_snooze_is_raised_as_itself(processes) -> None:
    with pytest.raises(Snooze) as raised:
        await result(processes, bodies.snooze, 1.5)
    assert raised.value.delay == timedelta(seconds=1.5)


async def test_a_kind_of_fatal_is_raised_as_fatal_and_keeps_its_story(processes) -> None:
    with pytest.raises(Fatal, match="no hope") as raised:
        await result(processes, bodies.give_up, "no hope")
    assert type_names(raised.value)[0] == f"{MODULE}.Hopeless"
    assert "in give_up" in traceback_text(raised.value)


async def test_what_says_how_the_attempt_ends_may_come_in_a_group_of_one(processes) -> None:
    with pytest.raises(Fatal, match="give up"):
        await result(processes, bodies.fatal_in_a_group)
    with pytest.raises(Snooze) as raised:
        await result(processes, bodies.snooze_in_a_group)
    assert raised.value.delay == timedelta(minutes=1)


async def test_a_result_that_cannot_be_stored_says_so(processes) -> None:
    with pytest.raises(NotEncodable):
        await result(processes, bodies.return_the_unstorable)


async def test_a_body_that_exits_is_reported_and_its_child_lives_on(processes) -> None:
    before = await result(processes, bodies.pid)
    for fn in (bodies.leave, bodies.leave_async):
        with pytest.raises(BodyExited, match="SystemExit: 3"):
            await result(processes, fn, 3)
    assert await result(processes, bodies.pid) == before


@pytest.mark.parametrize("name", ["GeneratorExit", "StopIteration", "MemoryError", "RecursionError"])
async def test_other_errors_of_the_language_come_back_by_name(processes, name) -> None:
    with pytest.raises(RemoteError) as raised:
        await result(processes, bodies.raise_by_name, name)
    assert raised.value.type == name


async def test_a_long_and_dirty_message_is_bounded_and_made_storable(processes) -> None:
    with pytest.raises(RemoteError) as raised:
        await result(processes, bodies.speak_at_length)
    assert len(raised.value.message) < 10_100
    assert len(raised.value.traceback) < 65_700
    assert raised.value.message.startswith("headx")
    assert raised.value.message.endswith("\\x00\\ud800tail")


async def test_a_child_is_reused_and_no_more_are_started_than_allowed(processes) -> None:
    one_by_one = {await result(processes, bodies.pid) for _ in range(5)}
    assert len(one_by_one) == 1
    at_once = await asyncio.gather(*(result(processes, bodies.pid) for _ in range(50)))
    assert len(set(at_once)) == 2


async def test_two_megabytes_pass_both_ways(processes) -> None:
    text = "é" * 1_000_000
    assert await result(processes, bodies.echo, text) == text


async def test_what_a_body_prints_goes_to_our_output_and_not_into_the_answer(processes, capfd) -> None:
    assert await result(processes, bodies.print_and_return, "heard") == "heard"
    out, err = capfd.readouterr()
    assert (out.count("heard"), err) == (2, "heard\n")


@pytest.mark.parametrize(
    ("death", "story"),
    [
        ((bodies.exit_at_once, 3), "ended with exit code 3"),
        ((bodies.die_by, "SIGKILL"), "killed by SIGKILL"),
        ((bodies.crash,), "killed by SIGSEGV"),
        ((bodies.die_with_a_forked_child,), "ended with exit code 9"),
    ],
    ids=["exit", "kill", "crash", "fork"],
)
async def test_a_death_is_reported_to_its_own_call_only(processes, fifo, death, story) -> None:
    told, gate = fifo("told"), fifo("gate")
    neighbour = calling(processes, bodies.tell_and_wait, str(told), str(gate))
    await said(told)
    with pytest.raises(ProcessDied, match=story):
        await result(processes, *death)
    await asyncio.to_thread(gate.write_text, "still here")
    assert await neighbour == "still here"
    assert await result(processes, bodies.add, 1, 1) == 2


async def test_a_child_that_dies_while_idle_is_replaced(processes, watch) -> None:
    idle = await result(processes, bodies.pid)
    dying = next(child for child in processes._children)
    os.kill(idle, signal.SIGKILL)
    await dying.exited
    assert await result(processes, bodies.pid) != idle


async def test_a_timeout_kills_the_child_and_what_it_started(processes, fifo, watch) -> None:
    told = fifo("told")
    hanging = []

    async def time_out_once_it_hangs(timeout: asyncio.Timeout) -> None:
        hanging.extend(watch(pid) for pid in await said(told))
        timeout.reschedule(0)

    async def call() -> None:
        async with asyncio.timeout(None) as timeout, asyncio.TaskGroup() as group:
            group.create_task(time_out_once_it_hangs(timeout))
            await result(processes, bodies.hang_with_a_child, str(told))

    with pytest.raises(TimeoutError):
        await call()
    assert len(hanging) == 2
    assert all([await each.gone() for each in hanging])
    assert processes.stuck == 0
    assert await result(processes, bodies.add, 1, 1) == 2


async def test_cancelling_a_queued_call_disturbs_nobody(fifo) -> None:
    processes = ProcessExecutor(1)
    told, gate = fifo("told"), fifo("gate")
    running = calling(processes, bodies.tell_and_wait, str(told), str(gate))
    await said(told)
    queued = calling(processes, bodies.add, 1, 1)
    await asyncio.sleep(0)
    queued.cancel()
    await asyncio.to_thread(gate.write_text, "undisturbed")
    assert await running == "undisturbed"
    assert queued.cancelled()
    await processes.close()


async def test_a_call_cancelled_at_any_moment_of_its_start_leaves_no_child(watch) -> None:
    processes = ProcessExecutor(1)
    for moments in range(12):
        call = calling(processes, bodies.pid)
        for _ in range(moments):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await result(processes, bodies.add, 1, 1) == 2
    await processes.close()
    assert children_of_ours() == ""


async def test_closing_lets_a_running_call_end_within_its_grace(processes, fifo) -> None:
    told, gate = fifo("told"), fifo("gate")
    running = calling(processes, bodies.tell_and_wait, str(told), str(gate))
    await said(told)
    closing = asyncio.create_task(processes.close(grace=10))
    await asyncio.sleep(0)
    await asyncio.to_thread(gate.write_text, "in time")
    await closing
    assert await running == "in time"


async def test_closing_kills_what_outlasts_its_grace(processes, fifo, watch) -> None:
    told = fifo("told")
    running = calling(processes, bodies.tell_and_hang, str(told))
    [pid] = await said(told)
    hanging = watch(pid)
    await processes.close()
    assert await hanging.gone()
    with pytest.raises(ProcessDied, match="SIGKILL"):
        await running
    with pytest.raises(RuntimeError, match="closed"):
        await result(processes, bodies.add, 1, 1)


async def test_children_and_grandchildren_end_when_the_parent_is_killed(fifo, watch) -> None:
    told = fifo("told")
    script = Path(__file__).with_name("parent_script.py")
    parent = await asyncio.create_subprocess_exec(sys.executable, script, told)
    watched = [watch(pid) for pid in await said(told)]
    parent.kill()
    await parent.wait()
    assert len(watched) == 2
    assert all([await each.gone() for each in watched])


@pytest.mark.parametrize("how", [["main_script.py"], ["-m", "main_script"]])
def test_a_function_of_the_main_script_runs_without_running_main_again(how) -> None:
    done = subprocess.run([sys.executable, *how], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=20)
    assert done.stdout.splitlines() == ["once", "9", "__main__.Mine"], done.stderr


async def test_an_interrupt_from_the_terminal_does_not_reach_children(processes) -> None:
    child = await result(processes, bodies.pid)
    assert os.getsid(child) == child != os.getsid(0)


def test_what_cannot_be_found_by_name_is_refused_with_the_reason() -> None:
    def inner() -> None: ...

    class Holder:
        def method(self) -> None: ...

    assert importable(bodies.add) is None
    assert "inside another function" in str(importable(inner))
    assert "lambda" in str(importable(lambda: None))
    assert "not a function" in str(importable(object()))
    Holder.method.__qualname__ = "Holder.method"
    assert "inside a class" in str(importable(Holder.method))


async def test_a_body_that_cannot_be_found_by_name_is_not_called(processes) -> None:
    with pytest.raises(InvalidSetting, match="lambda"):
        await result(processes, lambda: None)


async def test_a_child_ends_when_its_parent_dies_with_an_answer_unread() -> None:
    """The line then ends by a reset, not by its end: a child once lived on for ever."""
    ours, theirs = socket.socketpair()
    with theirs:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "stepwell.executors.child", str(theirs.fileno()), pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )  # fmt: skip
    target = Target(name="getpid", module="os", path=None, qualname="getpid")
    ours.sendall(b"".join(pack(msgspec.json.encode(StartFrame(path=sys.path)))))
    ours.sendall(b"".join(pack(msgspec.json.encode(CallFrame(target, None)), b"{}")))
    ours.recv(1, socket.MSG_PEEK)  # the answer is here, and nobody reads it
    ours.close()
    async with asyncio.timeout(10):
        assert await child.wait() != 0
