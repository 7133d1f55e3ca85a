"""Close coroutines and async generators whose code goes on in another process, or never.

Python's own `close()` does not suffice. If a coroutine awaits another one, which awaits something in its `finally`,
Python ends the outer coroutine and leaves the inner one suspended. An exception thrown in reaches the innermost one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from stepwell.replay.code import Evicted

_MOST_AWAITS = 100
"""The number of times that code may await something instead of ending, before it is abandoned."""


def close_coroutine(coro: Any) -> None:
    """End a coroutine where it is suspended. If it awaits in a `finally`, end it there too, and so on."""
    with suppress(BaseException):  # Evicted, or an error of the code's own
        for _ in range(_MOST_AWAITS):
            coro.throw(Evicted())
        coro.close()


def close_generator(generator: AsyncGenerator[Any, Any]) -> None:
    """End an async generator that is suspended at a `yield`."""
    closing: Any = generator.aclose()
    with suppress(BaseException):
        closing.send(None)
        for _ in range(_MOST_AWAITS):
            closing.throw(Evicted())
