"""The protocol between parent and child: frames of a JSON head and a body of bytes, each with its length.

parent → child   StartFrame, then for each call a CallFrame with the input as body, and a Reply to each Ask
child → parent   during a call LineFrame, StepFrame, Alive and Ask; at its end an EndFrame, with the result or a Failure
"""

from __future__ import annotations

import struct
from typing import Any, Literal

import msgspec

LENGTHS = struct.Struct("!QQ")


class StartFrame(msgspec.Struct, frozen=True):
    path: list[str]


class Target(msgspec.Struct, frozen=True):
    """The function to call. `path` is the script to load as `module`, when it cannot be imported by name."""

    name: str
    module: str
    path: str | None
    qualname: str


class CallFrame(msgspec.Struct, frozen=True, tag=True):
    """A call, and the facts that `current` has during it."""

    target: Target
    current: str | None


class Reply(msgspec.Struct, frozen=True, tag=True):
    """The answer to an Ask: a version, and the schema and (as body) the state that was loaded; or an error to raise."""

    number: int
    version: int | None = None
    schema: int | None = None
    error: str | None = None
    facts: dict[str, Any] | None = None


class Failure(msgspec.Struct, frozen=True):
    """The error that the body raised. `facts` are the fields of an error that the parent raises as it was."""

    types: tuple[str, ...]
    message: str
    traceback: str
    code: str | None
    facts: dict[str, Any]


class EndFrame(msgspec.Struct, frozen=True, tag=True):
    """The end of a call, and what it took: CPU seconds, and bytes of memory at its peak."""

    failure: Failure | None
    cpu: float
    memory: int
    left_out: int
    """Log lines that were left out, since an attempt keeps only so many."""


class LineFrame(msgspec.Struct, frozen=True, tag=True):
    level: str
    logger: str
    message: str


class StepFrame(msgspec.Struct, frozen=True, tag=True):
    """Progress; its detail, if it has any, is the body."""

    step: str
    done: float
    total: float | None


class Alive(msgspec.Struct, frozen=True, tag=True):
    pass


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A request to save or load the checkpoint. The state to save is the body of the frame."""

    number: int
    verb: Literal["save", "load"]
    schema: int


ToChild = CallFrame | Reply
FromChild = EndFrame | LineFrame | StepFrame | Alive | Ask


def pack(head: bytes, body: bytes = b"") -> list[bytes]:
    return [LENGTHS.pack(len(head), len(body)), head, body]
