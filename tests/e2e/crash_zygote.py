"""Begins workers that die at a chosen write. A process that has imported everything and forks is quicker than one that
begins anew, and it has no threads and no event loop, so that forking is harmless.

in:   `begin N before|after whole|parts`, `end`; in parts is how a large fan-out is written, and here a small one
out:  `begun`, then `died` or `ended`
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crash_app import make

from stepwell.replay import replay
from stepwell.worker.direct import DirectLink
from stepwell.worker.turns import drafts, run_turn


class Death:
    """Kills this process before or after the nth write."""

    def __init__(self, at: int, *, before: bool) -> None:
        self._left = at
        self._before = before

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def wrap(self, name: str, *, writes: Callable[[tuple[Any, ...]], bool], wrote: Callable[[Any], bool]) -> None:
        verb = getattr(DirectLink, name)

        async def fatal(link: DirectLink, *args: Any, **kwargs: Any) -> Any:
            if self._before and writes(args):
                self._count()
            answer = await verb(link, *args, **kwargs)
            if not self._before and (writes(args) or wrote(answer)):
                self._count()
            return answer

        setattr(DirectLink, name, fatal)


async def work(dsn: str, place: Path, slots: int) -> None:
    app = make(dsn, place)
    async with app, app.worker(slots=slots):
        await asyncio.Event().wait()


def child(dsn: str, place: Path, at: int, *, before: bool, parts: bool) -> None:
    death = Death(at, before=before)
    always, never = (lambda _: True), (lambda _: False)
    death.wrap("advance", writes=always, wrote=never)
    death.wrap("settle", writes=always, wrote=never)
    death.wrap("exchange", writes=lambda args: bool(args[0]), wrote=lambda found: bool(found.claims))
    death.wrap("claim", writes=never, wrote=lambda found: bool(found.claims))
    if parts:
        replay.STRETCH, drafts.PART, run_turn.PART = 3, 4, 4
    asyncio.run(work(dsn, place, slots=6 if parts else 100))


def main() -> None:
    dsn, place = sys.argv[1], Path(sys.argv[2])
    for line in sys.stdin:
        _, at, when, how = line.split()
        pid = os.fork()
        if not pid:
            os.close(0)
            child(dsn, place, int(at), before=when == "before", parts=how == "parts")
            os._exit(1)
        print(f"begun {pid}", flush=True)
        _, status = os.waitpid(pid, 0)
        print("died" if os.WIFSIGNALED(status) else f"ended {status}", flush=True)


if __name__ == "__main__":
    main()
