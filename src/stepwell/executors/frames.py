"""What parent and child say to each other: frames of a JSON head and a body of bytes, each with its length.

parent → child   Start, then for each call a Call with the input as body
child → parent   for each call an empty head with the result as body, or a Failure
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec

LENGTHS = struct.Struct("!QQ")


class Start(msgspec.Struct, frozen=True):
    path: list[str]


class Target(msgspec.Struct, frozen=True):
    """The function to call. `path` is the script to load as `module`, when it cannot be imported by name."""

    name: str
    module: str
    path: str | None
    qualname: str


class Call(msgspec.Struct, frozen=True):
    """A call, and what `current` is to tell during it."""

    target: Target
    current: str | None


class Failure(msgspec.Struct, frozen=True):
    """What the body raised. `facts` are the fields of those errors that the parent raises as they were."""

    types: tuple[str, ...]
    message: str
    traceback: str
    code: str | None
    facts: dict[str, Any]


def pack(head: bytes, body: bytes = b"") -> list[bytes]:
    return [LENGTHS.pack(len(head), len(body)), head, body]
