"""The child process of ProcessExecutor: `python -m stepwell.executors.child FD`. One call at a time.

It runs only what its parent names, and ends when its parent does.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from io import BufferedReader
from queue import SimpleQueue
from threading import Thread
from types import ModuleType
from typing import Any, Never

import msgspec

from stepwell.codec import Signature
from stepwell.context.current import carry_on
from stepwell.context.log_capture import capturing
from stepwell.executors.base import (
    MESSAGE_LIMIT,
    Body,
    BodyExited,
    bounded,
    code_text,
    contained,
    leading,
    message_text,
    traceback_text,
    type_names,
)
from stepwell.executors.frames import LENGTHS, CallFrame, EndFrame, Failure, Reply, StartFrame, Target, ToChild
from stepwell.executors.telling import Telling
from stepwell.model.errors import NotDecodable, NotEncodable
from stepwell.model.raised import Snooze, delay_of

Calls = SimpleQueue[tuple[CallFrame, bytes]]


@dataclass(frozen=True, slots=True)
class Found:
    name: str
    fn: Callable[..., Any]
    signature: Signature


def main(fd: int) -> Never:
    # A process that a body starts must not hold the socket open: the parent would not see this process die.
    os.set_inheritable(fd, False)
    faulthandler.enable()
    connection = socket.socket(fileno=fd)
    frames = connection.makefile("rb")
    head, _ = _read(frames)
    sys.path[:] = msgspec.json.decode(head, type=StartFrame).path
    calls: Calls = SimpleQueue()
    telling = Telling(connection)
    Thread(target=_receive, args=(frames, calls, telling), name="stepwell-parent", daemon=True).start()
    while True:
        call, input = calls.get()
        here = carry_on(call.current, telling)
        telling.begin(here)
        ended, result = _answer(call.target, input, telling)
        if here is not None and here.noted is not None:
            ended = msgspec.structs.replace(ended, left_out=here.noted.dropped)
        _flush()
        telling.end(ended, result)
        del call, input, ended, result, here


def _receive(frames: BufferedReader, calls: Calls, telling: Telling) -> None:
    """Read frames, also while a call runs: the end of the stream tells that the parent died."""
    while True:
        head, body = _read(frames)
        match msgspec.json.decode(head, type=ToChild):
            case CallFrame() as call:
                calls.put((call, body))
            case Reply() as reply:
                telling.replied(reply, body)


def _read(frames: BufferedReader) -> tuple[bytes, bytes]:
    try:
        lengths = frames.read(LENGTHS.size)
        if len(lengths) < LENGTHS.size:
            _end()
        head, body = LENGTHS.unpack(lengths)
        return frames.read(head), frames.read(body)
    except OSError:
        # A parent that dies with an unread answer resets the connection instead of closing it.
        _end()


def _end() -> Never:
    # Kill the group: processes that the body started are orphans now. PR_SET_PDEATHSIG would kill this process before
    # it could do so.
    with contextlib.suppress(ProcessLookupError):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _answer(target: Target, input: bytes, telling: Telling) -> tuple[EndFrame, bytes]:
    _forget_peak()
    began = _cpu()
    reply = _reply(target, input, telling)
    took, peak = _cpu() - began, _peak()
    if isinstance(reply, bytes):
        return EndFrame(None, took, peak, 0), reply
    return EndFrame(_failure(_checked(reply)), took, peak, 0), b""


def _reply(target: Target, input: bytes, telling: Telling) -> bytes | BaseException:
    try:
        # Import before capturing: a module that sets up logging must find it as it is elsewhere.
        body = _find(target)
        with capturing(telling.capture):
            args, kwargs = body.signature.decode_input(input)
            if inspect.iscoroutinefunction(body.fn):
                value = asyncio.run(_awaited(body.fn, args, kwargs))
                if isinstance(value, _Raised):
                    return value.error
            else:
                value = body.fn(*args, **kwargs)
            return body.signature.encode_result(value)
    except BaseException as error:
        return contained(error)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _forget_peak() -> None:
    # On Linux the peak counts from now on. Elsewhere it is the peak of the process, earlier calls included.
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak() -> int:
    # Prefer VmHWM to ru_maxrss: the latter begins with the peak of the process which started this one.
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status") as lines:
        return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


async def _awaited(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    # Caught here, inside the loop: asyncio.run acts on some errors and adds its own frames to all.
    try:
        return await fn(*args, **kwargs)
    except BaseException as error:
        return _Raised(contained(error))


def _checked(error: BaseException) -> BaseException:
    """Return the error; for a Snooze with an invalid delay, the error about that delay."""
    told = leading(error)
    try:
        if isinstance(told, Snooze):
            delay_of(told)
    except BaseException as wrong:
        return contained(wrong)
    return error


def _failure(error: BaseException) -> Failure:
    return Failure(
        types=type_names(error),
        message=message_text(error),
        traceback=traceback_text(error),
        code=code_text(error),
        facts=_facts(error),
    )


def _facts(error: BaseException) -> dict[str, Any]:
    match leading(error):
        case Snooze() as snooze:
            return {"delay": delay_of(snooze).total_seconds()}
        case BodyExited(type=name, message=message):
            return {"type": name, "message": message}
        case NotEncodable(where=where, reason=reason) | NotDecodable(where=where, reason=reason):
            return {"where": bounded(where, MESSAGE_LIMIT), "reason": bounded(reason, MESSAGE_LIMIT)}
        case _:
            return {}


_found: dict[Target, Body] = {}


def _find(target: Target) -> Body:
    body = _found.get(target)
    if body is None:
        thing = getattr(_module(target), target.qualname)
        if hasattr(thing, "fn") and hasattr(thing, "signature"):
            body = Found(target.name, thing.fn, thing.signature)
        else:
            body = Found(target.name, thing, Signature(thing, name=target.name))
        _found[target] = body
    return body


def _module(target: Target) -> ModuleType:
    if target.module in sys.modules:
        return sys.modules[target.module]
    if target.path is None:
        return importlib.import_module(target.module)
    return _load(target.module, target.path)


def _load(name: str, path: str) -> ModuleType:
    loader = importlib.machinery.SourceFileLoader(name, path)
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    assert spec is not None, "with a loader given there is always a spec"
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _flush() -> None:
    # This process ends by a kill: buffered output of the body would be lost.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
