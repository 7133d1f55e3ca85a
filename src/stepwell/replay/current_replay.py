"""Find the replay that runs the calling code."""

from __future__ import annotations

from asyncio import events

from stepwell.replay.loop import Loop
from stepwell.replay.replay import Replay


def here() -> Replay | None:
    """Return the replay of the workflow whose code calls; None outside of workflow code."""
    loop = events._get_running_loop()
    return loop.driver if type(loop) is Loop and isinstance(loop.driver, Replay) else None
