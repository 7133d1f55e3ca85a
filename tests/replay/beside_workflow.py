"""A module of the user's that a workflow calls into."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def called(fn: Callable[[], Any]) -> Any:
    return fn()


async def awaited(fn: Callable[[], Any]) -> Any:
    return fn()


async def in_a_generator(fn: Callable[[], Any]) -> Any:
    async def values() -> Any:
        yield fn()

    async for value in values():
        last = value
    return last
