"""A screen that is drawn again and again until Ctrl-C, which ends it and is no failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from stepwell.cli.connection import run_async
from stepwell.cli.printing import echo_json, plain
from stepwell.model.errors import Unavailable
from stepwell.operator.errors import Exit

if TYPE_CHECKING:
    from rich.console import RenderableType

T = TypeVar("T")

EVERY = 1.0
"""Seconds between looks."""


def until_interrupted(main: Coroutine[Any, Any, None]) -> int:
    try:
        run_async(main)
    except KeyboardInterrupt:
        pass
    return Exit.DONE


async def follow(look: Callable[[], Awaitable[T]], draw: Callable[[T], RenderableType], *, every: float) -> None:
    """Look and draw, for ever. A database that is away is said to be so, and waited for."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    with Live(console=Console(), auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            try:
                shown = draw(await look())
            except Unavailable as error:
                shown = Text(plain(f"waiting for the database: {error.reason}"), style="red")
            live.update(shown, refresh=True)
            await asyncio.sleep(every)


async def follow_as_json(look: Callable[[], Awaitable[Any]], *, every: float) -> None:
    """A line for each look."""
    while True:
        echo_json(await look())
        await asyncio.sleep(every)
