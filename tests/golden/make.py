"""Makes golden histories that are not there yet: `python -m tests.golden.make`, or some of them by name.

Each is what `stepwell history RUN --export FILE` writes of a real run, on a database of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from stepwell import Run
from stepwell.model.errors import RunUnsuccessful, StepwellError, UpdateRejected
from stepwell.operator.exported import packed
from stepwell.store import embedded
from tests.golden import code

HERE = Path(__file__).parent
SUMS = HERE / "SHA256SUMS"

Play = Callable[[], Awaitable[Run[Any]]]


async def _waiting(run: Run[Any], *, events: int = 2) -> None:
    async with asyncio.timeout(20):
        while len(await run.history()) < events or (await run.info()).state not in ("waiting", "paused"):  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def _over(run: Run[Any]) -> Run[Any]:
    try:
        await run.result(timeout=30)
    except RunUnsuccessful:
        pass
    return run


async def signals() -> Run[Any]:
    run = await code.signals.start()
    await run.signal("word", "early")
    await run.signal("unheard", "of")
    await _waiting(run, events=3)
    await run.signal("word", "late")
    await run.signal("right", "first")
    return await _over(run)


async def updates() -> Run[Any]:
    run = await code.updates.start()
    await _waiting(run, events=1)
    await run.update("more", 1, timeout=20)
    for name, args in (("more", (-1,)), ("broken", ())):
        try:
            await run.update(name, *args, timeout=20)
        except UpdateRejected:
            pass
    await run.signal("done", True)
    return await _over(run)


async def cancelled() -> Run[Any]:
    run = await code.cancelled.start()
    await _waiting(run)
    await run.cancel()
    return await _over(run)


async def continued() -> Run[Any]:
    run = await code.continued.start(2)
    for word in ("one", "two", "three"):
        await run.signal("word", word)
    return await _over(run)


async def still_open() -> Run[Any]:
    run = await code.still_open.start()
    await _waiting(run)
    return run


async def forked() -> Run[Any]:
    """Of the children of another run, and of random numbers that were drawn before it was there."""
    run = await _over(await code.chance.start())
    return await _over(await run.fork(at=2))


PLAYS: dict[str, Play] = {
    "tasks_and_steps": lambda: _start(code.tasks_and_steps, 3),
    "time": lambda: _start(code.time, 0.2),
    "signals": signals,
    "children": lambda: _start(code.children),
    "patched": lambda: _start(code.patched),
    "updates": updates,
    "cancelled": cancelled,
    "rolled_back": lambda: _start(code.rolled_back),
    "continued": continued,
    "asyncio": lambda: _start(code.plain_asyncio),
    "chance": lambda: _start(code.chance),
    "open": still_open,
    "timed_out": lambda: _start(code.timed_out),
    "forked": forked,
}


async def _start(workflow: Any, *args: Any) -> Run[Any]:
    return await _over(await workflow.start(*args))


async def make(names: list[str]) -> None:
    async with code.app, code.app.worker(queues=["default"]):
        for name in names:
            path = HERE / f"{name}.json"
            if path.exists():
                raise SystemExit(f"{path} is there: a golden history is never made again. Add one of another name.")
            run = await PLAYS[name]()
            # No path of the machine that made it stays in its tracebacks.
            exported = packed(await run.info(), await run.history())
            path.write_bytes(
                exported.replace(f"{HERE.parents[1]}/".encode(), b"").replace(f"{sys.prefix}/".encode(), b"")
            )
            with SUMS.open("a", encoding="utf-8") as sums:
                sums.write(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
            print(path)


def main() -> None:
    names = sys.argv[1:] or [name for name in PLAYS if not (HERE / f"{name}.json").exists()]
    with tempfile.TemporaryDirectory() as home:
        hold = embedded.ensure(Path(home))
        try:
            code.app.settings = type(code.app.settings)(**{**_fields(code.app.settings), "dsn": hold.dsn})
            asyncio.run(make(names))
        except StepwellError as error:
            raise SystemExit(str(error)) from error
        finally:
            hold.release()


def _fields(settings: Any) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__dataclass_fields__}


if __name__ == "__main__":
    main()
