"""The child process of ProcessExecutor: `python -m stepwell.executors.child FD`. One call at a time.

It runs only what its parent names, and ends when its parent does.
"""

from __future__ import annotations

import asyncio
import faulthandler
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from queue import SimpleQueue
from threading import Thread
from types import ModuleType
from typing import Any, Never

import msgspec

from stepwell.codec import Signature
from stepwell.context import carry_on
from stepwell.executors.base import (
    MESSAGE_LIMIT,
    Body,
    BodyExited,
    bounded,
    code_text,
    contained,
    message_text,
    traceback_text,
    type_names,
)
from stepwell.executors.frames import LENGTHS, Call, Failure, Start, Target, pack
from stepwell.model.errors import NotDecodable, NotEncodable
from stepwell.model.raised import Snooze

Calls = SimpleQueue[tuple[Call, bytes]]


@dataclass(frozen=True, slots=True)
class Found:
    name: str
    fn: Callable[..., Any]
    signature: Signature


def main(fd: int) -> Never:
    # A process that a body starts must not hold the socket open: the parent would not see us die.
    os.set_inheritable(fd, False)
    faulthandler.enable()
    connection = socket.socket(fileno=fd)
    frames = connection.makefile("rb")
    head, _ = _read(frames)
    sys.path[:] = msgspec.json.decode(head, type=Start).path
    calls: Calls = SimpleQueue()
    Thread(target=_receive, args=(frames, calls), name="stepwell-parent", daemon=True).start()
    while True:
        call, input = calls.get()
        carry_on(call.current)
        answer = _answer(call.target, input)
        _flush()
        connection.sendall(b"".join(answer))
        del call, input, answer


def _receive(frames: BufferedReader, calls: Calls) -> None:
    """Reads while a call runs too, for that is how we see the parent die."""
    while True:
        head, input = _read(frames)
        calls.put((msgspec.json.decode(head, type=Call), input))


def _read(frames: BufferedReader) -> tuple[bytes, bytes]:
    try:
        lengths = frames.read(LENGTHS.size)
        if len(lengths) < LENGTHS.size:
            _end()
        head, body = LENGTHS.unpack(lengths)
        return frames.read(head), frames.read(body)
    except OSError:
        # A parent that dies with an answer of ours unread ends the line by a reset, not by its end.
        _end()


def _end() -> Never:
    # The group, because processes started by the body are orphans now. No PR_SET_PDEATHSIG: it would kill
    # us before we could do this.
    with suppress(ProcessLookupError):
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _answer(target: Target, input: bytes) -> list[bytes]:
    reply = _reply(target, input)
    if isinstance(reply, bytes):
        return pack(b"", reply)
    return pack(msgspec.json.encode(_failure(reply)))


def _reply(target: Target, input: bytes) -> bytes | BaseException:
    try:
        body = _find(target)
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


@dataclass(frozen=True, slots=True)
class _Raised:
    error: BaseException


async def _awaited(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    # Caught here, inside the loop: asyncio.run acts on some errors and adds its own frames to all.
    try:
        return await fn(*args, **kwargs)
    except BaseException as error:
        return _Raised(contained(error))


def _failure(error: BaseException) -> Failure:
    return Failure(
        types=type_names(error),
        message=message_text(error),
        traceback=traceback_text(error),
        code=code_text(error),
        facts=_facts(error),
    )


def _facts(error: BaseException) -> dict[str, Any]:
    match error:
        case Snooze():
            return {"delay": error.delay.total_seconds()}
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
    # We end by a kill: what a body printed would be lost in the buffer.
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]))
