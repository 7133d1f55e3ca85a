"""The process executor: bodies in child processes, for work that needs its own core and for limits that are enforced.

A child runs one call at a time. When its call is cancelled it is killed, with everything it started; when it
dies, only its own call notices. Input, result and errors cross as plain data, and so does what a body says meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any, Self

import msgspec

from stepwell.context.current import Inside, Running, carried, measured, running
from stepwell.executors.base import Body, BodyExited, ProcessDied, RemoteError, nobody
from stepwell.executors.frames import (
    LENGTHS,
    Alive,
    Ask,
    CallFrame,
    EndFrame,
    Failure,
    FromChild,
    LineFrame,
    Reply,
    StartFrame,
    StepFrame,
    Target,
    pack,
)
from stepwell.model.errors import InvalidSetting, NotDecodable, NotEncodable, StateError, Unavailable
from stepwell.model.notes import Usage
from stepwell.model.raised import Fatal, Snooze, type_name

MAIN = "__stepwell_main__"
"""The name under which a child loads the main script, so that `if __name__ == "__main__"` does not fire."""

_READ_AHEAD = 1 << 20
_LINGER = 1.0
_REAP_TIMEOUT = 5.0

Answer = tuple[EndFrame, bytes]


class ProcessExecutor:
    def __init__(self, processes: int) -> None:
        if processes < 1:
            raise InvalidSetting("processes", processes, "at least one is needed")
        self._slots = asyncio.Semaphore(processes)
        self._children: set[_Child] = set()
        self._idle: list[_Child] = []
        self._open = 0
        self._quiet = asyncio.Event()
        self._closed = False

    @staticmethod
    def refuses(fn: Callable[..., Any]) -> str | None:
        return importable(fn)

    async def run(self, body: Body, input: bytes, begun: Callable[[], None] = nobody) -> bytes:
        """Run the body in a child. Only `current` of the context crosses to it."""
        head = msgspec.json.encode(CallFrame(_target(body.fn, body.name), carried()))
        self._open += 1
        try:
            async with self._slots:
                begun()
                ended, result = await self._call(head, input)
        finally:
            self._open -= 1
            if not self._open:
                self._quiet.set()
        measured(Usage(cpu=round(ended.cpu, 6), memory=ended.memory))
        if ended.failure is not None:
            raise _revived(ended.failure, in_main=body.fn.__module__ == "__main__")
        return result

    @property
    def stuck(self) -> int:
        return 0

    async def close(self, grace: float = 0.0) -> None:
        self._closed = True
        if self._open:
            self._quiet.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._quiet.wait(), grace)
        children = list(self._children)
        for child in children:
            child.kill()
        if children:
            await asyncio.wait([child.exited for child in children], timeout=_REAP_TIMEOUT)

    async def _call(self, head: bytes, input: bytes) -> Answer:
        self._refuse_if_closed()
        child = self._idle.pop() if self._idle else await self._start()
        try:
            self._refuse_if_closed()
            answer = await child.call(head, input)
        except BaseException:
            child.kill()
            raise
        # It may have died right after its answer.
        if child in self._children:
            self._idle.append(child)
        return answer

    async def _start(self) -> _Child:
        child = await _Child.start()
        self._children.add(child)
        child.exited.add_done_callback(lambda _: self._forget(child))
        return child

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise RuntimeError("the process executor is closed")

    def _forget(self, child: _Child) -> None:
        self._children.discard(child)
        if child in self._idle:
            self._idle.remove(child)
            child.kill()


class _Child:
    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self.exited = asyncio.create_task(self._exit())

    @classmethod
    async def start(cls) -> Self:
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                process = await _spawn(theirs.fileno())
            undo.callback(_kill_group, process.pid)
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_READ_AHEAD)
            undo.pop_all()
        start = StartFrame(path=[entry for entry in sys.path if isinstance(entry, str)])
        writer.writelines(pack(msgspec.json.encode(start)))
        return cls(process, reader, writer)

    async def call(self, head: bytes, input: bytes) -> Answer:
        try:
            self._writer.writelines(pack(head, input))
            await self._writer.drain()
            return await self._answer()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.kill()
            died = _died(await asyncio.shield(self.exited))
            measured(Usage(signal=died.signal, exit_code=died.exit_code))
            raise died from None

    def kill(self) -> None:
        if self._process.returncode is None:
            _kill_group(self._process.pid)
        self._writer.transport.abort()

    async def _answer(self) -> Answer:
        """Wait for the end of the call. Until then hand on what its body reports, and answer its questions."""
        here = running.get()
        inside = None if here is None else here.inside
        while True:
            frame, body = await self._frame()
            if here is not None and inside is not None:
                _hand_on(frame, body, here, inside)
                if isinstance(frame, Ask):
                    reply, state = await _replied(frame, body, here, inside)
                    self._writer.writelines(pack(msgspec.json.encode(reply), state))
                    await self._writer.drain()
            if isinstance(frame, EndFrame):
                return frame, body

    async def _frame(self) -> tuple[FromChild, bytes]:
        lengths = await self._reader.readexactly(LENGTHS.size)
        head_length, body_length = LENGTHS.unpack(lengths)
        head = await self._reader.readexactly(head_length)
        body = await self._reader.readexactly(body_length)
        return msgspec.json.decode(head, type=FromChild), body

    async def _exit(self) -> int:
        try:
            return await self._process.wait()
        finally:
            # Also when the loop ends around us: afterwards no reader of the child is left.
            _kill_group(self._process.pid)
            # Not at once: an answer given just before the end may still be in the socket. Not never: a
            # process that left the group may hold the other end, and the call would wait for it.
            asyncio.get_running_loop().call_later(_LINGER, self._writer.transport.abort)


def _hand_on(frame: FromChild, body: bytes, here: Running, inside: Inside) -> None:
    match frame:
        case LineFrame(level, logger, message):
            inside.line(here, level, logger, message)
        case StepFrame(step, done, total):
            inside.alive(here)
            inside.progress(here, step, done, total, body or None)
        case Alive() | Ask():
            inside.alive(here)
        case EndFrame(left_out=lines):
            inside.leave_out(here, lines)


async def _replied(ask: Ask, state: bytes, here: Running, inside: Inside) -> tuple[Reply, bytes]:
    try:
        if ask.verb == "save":
            return Reply(ask.number, version=await inside.save(here, state, ask.schema)), b""
        saved = await inside.load(here)
        if saved is None:
            return Reply(ask.number), b""
        return Reply(ask.number, version=saved.version, schema=saved.schema), saved.state
    except (StateError, Unavailable) as error:
        return Reply(ask.number, error=type(error).__name__, facts=error.facts()), b""


async def _spawn(fd: int) -> asyncio.subprocess.Process:
    # Its own session: Ctrl-C on the terminal is for the worker to judge, and a kill reaches grandchildren.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "stepwell.executors.child", str(fd)),
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=(fd,),
        start_new_session=True,
    )


def _kill_group(pid: int) -> None:
    # macOS says PermissionError where only zombies are left.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _died(code: int) -> ProcessDied:
    if code >= 0:
        return ProcessDied(exit_code=code, signal=None)
    try:
        return ProcessDied(exit_code=None, signal=signal.Signals(-code).name)
    except ValueError:
        return ProcessDied(exit_code=None, signal=f"signal {-code}")


def importable(fn: Callable[..., Any]) -> str | None:
    """Return why a child process cannot find this function, or None if it can."""
    qualname = getattr(fn, "__qualname__", None)
    module = getattr(fn, "__module__", None)
    if qualname is None or module is None:
        return "it is not a function, and has no name to import it by"
    if "<lambda>" in qualname:
        return "it is a lambda, and has no name to import it by"
    if "<locals>" in qualname:
        return "it is defined inside another function: move it to the top level of its module"
    if "." in qualname:
        return "it is defined inside a class: move it to the top level of its module"
    if module == "__main__" and not _is_in_a_file(fn):
        return "it is defined in an interactive session: move it to a file"
    return None


def _is_in_a_file(fn: Callable[..., Any]) -> bool:
    """Tell whether a child process that runs the main script finds this function there.

    The REPLs of Python 3.13 and of IPython have a `__file__`, which is not where the function is.
    """
    main = getattr(sys.modules["__main__"], "__file__", None)
    source = inspect.unwrap(fn).__code__.co_filename if hasattr(inspect.unwrap(fn), "__code__") else main
    return main is not None and source is not None and os.path.isfile(source)


@functools.lru_cache(maxsize=4096)
def _target(fn: Callable[..., Any], name: str) -> Target:
    reason = importable(fn)
    if reason is not None:
        raise InvalidSetting("executor", "process", f"{name} cannot run in another process, because {reason}")
    module, path = _main_module() if fn.__module__ == "__main__" else (fn.__module__, None)
    return Target(name=name, module=module, path=path, qualname=fn.__qualname__)


def _main_module() -> tuple[str, str | None]:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return spec.name, None
    return MAIN, os.path.abspath(str(main.__file__))


_REVIVED: dict[str, Callable[[Failure], Exception]] = {
    type_name(Snooze): lambda failure: Snooze(failure.facts["delay"]),
    type_name(Fatal): lambda failure: Fatal(failure.message),
    type_name(BodyExited): lambda failure: BodyExited(**failure.facts),
    type_name(NotEncodable): lambda failure: NotEncodable(**failure.facts),
    type_name(NotDecodable): lambda failure: NotDecodable(**failure.facts),
}


def _revived(failure: Failure, *, in_main: bool) -> Exception:
    """Return the error to raise here: one of ours as itself, one of the user's as RemoteError."""
    types = tuple(map(_as_in_main, failure.types)) if in_main else failure.types
    remote = RemoteError(types[0], types, failure.message, failure.traceback, failure.code)
    for name in types:
        if name in _REVIVED:
            error = _REVIVED[name](failure)
            error.__cause__ = remote
            return error
    return remote


def _as_in_main(name: str) -> str:
    """The name by which this process knows a type of its main module."""
    module, _ = _main_module()
    return "__main__" + name.removeprefix(module) if name.startswith(f"{module}.") else name
