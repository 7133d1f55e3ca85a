"""Bodies for the executors' tests, importable by child processes. FIFOs tell when something has happened:
opening one waits for the other side."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.codec import Signature
from stepwell.model.raised import Fatal, RunError, Snooze

whose = contextvars.ContextVar("whose", default="nobody's")


@dataclass(frozen=True)
class Definition:
    name: str
    fn: Callable[..., Any]
    signature: Signature

    def input(self, *args: Any) -> bytes:
        return self.signature.encode_input(args, {})


def defined(fn: Callable[..., Any]) -> Definition:
    return Definition(fn.__qualname__, fn, Signature(fn, name=fn.__qualname__))


class Declined(ValueError):
    code = "CARD_DECLINED"


def add(left: int, right: int) -> int:
    return left + right


@defined
def as_definition(word: str) -> str:
    return word.upper()


async def add_async(left: int, right: int) -> int:
    await asyncio.sleep(0)
    return left + right


def decline(reason: str) -> None:
    raise Declined(reason)  # the user's line


async def decline_async(reason: str) -> None:
    raise Declined(reason)  # the user's line


def leave(code: int) -> None:
    sys.exit(code)


async def leave_async(code: int) -> None:
    sys.exit(code)


async def await_something_cancelled() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


def raise_by_name(name: str) -> None:
    raise {
        "KeyboardInterrupt": KeyboardInterrupt(),
        "GeneratorExit": GeneratorExit(),
        "CancelledError": asyncio.CancelledError(),
        "StopIteration": StopIteration(1),
        "MemoryError": MemoryError("no more"),
        "RecursionError": RecursionError("too deep"),
    }[name]


async def raise_by_name_async(name: str) -> None:
    raise_by_name(name)


def read_whose() -> str:
    return whose.get()


async def read_whose_async() -> str:
    return whose.get()


def snooze(seconds: float) -> None:
    raise Snooze(seconds)


class Hopeless(Fatal):
    pass


def give_up(why: str) -> None:
    raise Hopeless(why)


def fail_with_code(code: str) -> None:
    raise RunError("no", code=code)


def speak_at_length() -> None:
    raise ValueError("head" + "x" * 200_000 + "\x00\ud800tail")


def return_the_unstorable() -> Any:
    return object()


def exit_at_once(code: int) -> None:
    os._exit(code)


def die_by(name: str) -> None:
    os.kill(os.getpid(), signal.Signals[name])
    signal.pause()


def crash() -> None:
    ctypes.string_at(0)


def pid() -> int:
    return os.getpid()


def echo(text: str) -> str:
    return text


def print_and_return(text: str) -> str:
    print(text)
    os.write(1, text.encode() + b"\n")
    print(text, file=sys.stderr)
    return text


def tell_and_wait(told: str, gate: str) -> str:
    """Says its pid, then waits for a word."""
    Path(told).write_text(str(os.getpid()))
    return Path(gate).read_text()


def tell_and_hang(told: str) -> None:
    Path(told).write_text(str(os.getpid()))
    while True:
        signal.pause()


def hang_with_a_child(told: str) -> None:
    hanging = subprocess.Popen(["sleep", "600"])
    Path(told).write_text(f"{os.getpid()} {hanging.pid}")
    hanging.wait()


def die_with_a_forked_child() -> None:
    """The fork holds the socket to the parent too: its end alone cannot tell of our death."""
    if os.fork() == 0:
        signal.pause()
    os._exit(9)


async def fatal_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raises(Fatal("give up")))


async def snooze_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_raises(Snooze(60)))


async def _raises(error: Exception) -> None:
    raise error


def begin_and_wait(begun: str, gate: str) -> None:
    """Touch a file, and wait until somebody opens the gate, which is a FIFO."""
    Path(begun).touch()
    os.close(os.open(gate, os.O_RDONLY))


async def begin_and_wait_async(begun: str, gate: str) -> None:
    await asyncio.to_thread(Path(begun).touch)
    await asyncio.Event().wait()
