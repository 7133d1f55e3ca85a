"""`stepwell worker`: one worker in this process, or a supervisor over several."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import click

from stepwell.app import App
from stepwell.cli import logs
from stepwell.cli.connection import PATIENCE, may_make, reached, run_async
from stepwell.cli.ending import Ending
from stepwell.cli.exits import exit_code
from stepwell.cli.loading import Named, wanted_app
from stepwell.cli.options import length, may_be_embedded, names
from stepwell.cli.supervisor import Supervisor, worker_command
from stepwell.concurrency.background import in_background
from stepwell.concurrency.collector import collect_seldom
from stepwell.operator.errors import Exit
from stepwell.worker.worker import Worker

log = logging.getLogger("stepwell.worker")


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The worker that was asked for."""

    queues: tuple[str, ...] | None
    slots: int
    grace: float
    name: str
    live: bool = False
    """True to show runs as they move, too."""


@click.command()
@click.argument("app_reference", metavar="[APP]", required=False)
@click.option(
    "--queues", callback=names, metavar="NAMES", help="Only these, with commas between them. All of them by default."
)
@click.option("--slots", type=click.IntRange(1), default=100, show_default=True, help="Attempts at the same time.")
@click.option("--processes", type=click.IntRange(1), default=1, show_default=True, help="Workers, each a process.")
@click.option(
    "--grace",
    callback=length,
    metavar="DURATION",
    default="30s",
    show_default=True,
    help="Time for attempts to end when it stops.",
)
@click.option("--name", help="What it is called in lists. Host and process id by default.")
@click.option("--log-level", type=click.Choice(logs.LEVELS), default="info", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Log lines as JSON.")
@may_be_embedded
@click.option("--leash", type=int, hidden=True)
@click.option("--live", is_flag=True, hidden=True)
def worker(
    app_reference: str | None,
    *,
    queues: tuple[str, ...] | None,
    slots: int,
    processes: int,
    grace: float,
    name: str | None,
    log_level: str,
    as_json: bool,
    leash: int | None,
    live: bool,
) -> int:
    """Run the tasks of APP: module:app, or path/to/app.py.

    The first SIGTERM or Ctrl-C lets attempts end within the grace time and gives the rest back; the second
    gives everything back now.
    """
    logs.configure(level=log_level, as_json=as_json)
    named = wanted_app(app_reference)
    if processes > 1:
        command = worker_command(named, queues=queues, slots=slots, grace=grace, log_level=log_level)
        more = [*(["--json"] if as_json else []), *(["--embedded"] if may_make() else [])]
        return Supervisor([*command, *more], processes, name=name).run()
    known_as = name or f"{socket.gethostname()}:{os.getpid()}"
    return serve(named, WorkerOptions(queues, slots, grace, known_as, live), leash=leash)


def serve(named: Named, wanted: WorkerOptions, *, leash: int | None) -> int:
    ending = Ending(wanted.grace)
    ending.hear(leash=leash)
    app = named.load()
    collect_seldom()
    return run_async(_to_the_end(app, wanted, ending))


async def _to_the_end(app: App, wanted: WorkerOptions, ending: Ending) -> int:
    """Work until told to stop; the exit code. None of the ways a worker can die is silent."""
    code = Exit.DONE
    try:
        await work(app, wanted, ending)
        log.info("stopped: worker %s", wanted.name)
    except asyncio.CancelledError:
        log.info("stopped before it was ready: worker %s", wanted.name)
    except Exception as error:
        known = exit_code(error)
        code = known or Exit.FAILED
        log.critical("worker %s died: %s", wanted.name, error, exc_info=known is None)
    # Here and not later: the event loop's own end may wait for a thread that is stuck.
    ending.leave(code)
    return code


async def work(app: App, wanted: WorkerOptions, ending: Ending) -> None:
    """A worker, until `ending` says otherwise."""
    me = asyncio.current_task()
    assert me is not None  # asyncio.run makes one
    gently, now = asyncio.Event(), asyncio.Event()
    ending.obey(gently=lambda: gently.set() if ending.ready else _none(me.cancel()), now=now.set)
    async with reached(app, patience=PATIENCE):
        if not app.definitions.tasks:
            log.warning("the app has no tasks: import the modules that define them where the app is made")
        unlisten = app.telemetry.listen(lambda name, facts: _log(name, facts, wanted, ending))
        hired = app.worker(queues=wanted.queues, slots=wanted.slots, name=wanted.name)
        async with _shown(app, wanted), hired as worker:
            await gently.wait()
            async with in_background(_hurry(now, worker), may_end=True):
                await worker.stop(wanted.grace)
        unlisten()


@asynccontextmanager
async def _shown(app: App, wanted: WorkerOptions) -> AsyncIterator[None]:
    if not wanted.live:
        yield
        return
    from rich.console import Console

    from stepwell.cli.live import moves_shown

    async with moves_shown(app, Console(highlight=False, soft_wrap=True)):
        yield


async def _hurry(now: asyncio.Event, worker: Worker) -> None:
    await now.wait()
    await worker.stop(0)


def _log(name: str, facts: dict[str, Any], wanted: WorkerOptions, ending: Ending) -> None:
    match name:
        case "worker.ready":
            ending.ready = True
            queues = "all" if wanted.queues is None else ",".join(wanted.queues)
            log.info("ready: worker %s, queues %s, slots %d, pid %d", wanted.name, queues, wanted.slots, os.getpid())
        case "worker.claimed" if log.isEnabledFor(logging.DEBUG):
            log.debug("claimed %s", ", ".join(f"{claim.name} {claim.id}" for claim in facts["claims"]))
        case "worker.settled" if log.isEnabledFor(logging.DEBUG):
            for claim, outcome in facts["settlements"]:
                word = "turn" if claim.turn else "attempt"
                log.debug("%s: %s %s, %s %d", type(outcome).__name__, claim.name, claim.id, word, claim.attempt)


def _none(_: object) -> None:
    return None
