"""The end of coroutines and async generators whose code goes on elsewhere, or never.

They are not closed as Python closes them: of a coroutine that awaits another, which awaits something in its
`finally`, Python ends the outer one and leaves the inner one where it is. What is thrown goes to the innermost.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

from stepwell.replay.code import Evicted

_TIMES = 100
"""How often code may await something instead of ending, before it is left to itself."""


def close_coroutine(coro: Any) -> None:
    """End a coroutine where it stands. One that awaits in its `finally` is ended there too, and so on."""
    with suppress(BaseException):  # this one, or an error of its own
        for _ in range(_TIMES):
            coro.throw(Evicted())
        coro.close()


def close_generator(generator: AsyncGenerator[Any, Any]) -> None:
    """The same for an async generator that was broken off at a `yield`."""
    closing: Any = generator.aclose()
    with suppress(BaseException):
        closing.send(None)
        for _ in range(_TIMES):
            closing.throw(Evicted())
