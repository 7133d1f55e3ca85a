"""`stepwell replay`: a history, stored or exported, told again to the code of here and now."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.debugging import debug
from stepwell.cli.exits import say
from stepwell.cli.loading import wanted_app
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import echo_json, plain
from stepwell.definitions.workflow import Workflow
from stepwell.model.commands import described
from stepwell.model.errors import Nondeterminism, UnknownName, WrongUse
from stepwell.model.events import COMMANDS, Event
from stepwell.operator.errors import Exit
from stepwell.operator.exported import History, history_of, read
from stepwell.operator.preflight import Unfit
from stepwell.operator.telling import Told, tell
from stepwell.worker.turns.turns import RunCode


@click.command()
@click.argument("which", metavar="RUN|FILE")
@click.argument("app_reference", metavar="[APP]", required=False)
@click.option("--until", type=click.IntRange(1), metavar="N", help="Up to the event N.")
@click.option("--pdb", "in_pdb", is_flag=True, help="Stop in pdb: where it does not fit, or else at the last command.")
@json_option
@on_database
def replay(
    which: str,
    app_reference: str | None,
    *,
    until: int | None,
    in_pdb: bool,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
    home: str | None,
) -> int:
    """Tell the history of a workflow again to the code of APP (module:app), and see whether it fits.

    RUN is an id or key in the database, FILE what `stepwell history RUN --export FILE` wrote. No task and no step is
    run, and nothing is written. Exit code 1 if the code does not fit.
    """
    app = wanted_app(app_reference).load()
    if os.path.isfile(which):  # also of a name that is too long for a file
        history = read(Path(which))
    else:
        history = run_async(_fetch(database_of_app(app, dsn, schema, home), which))
    workflow = workflow_of(app, history.about.name)
    if in_pdb:
        debug(history, workflow, until=until)
        return Exit.DONE
    return _tell(history, workflow, until=until, as_json=as_json)


def database_of_app(app: App, dsn: str | None, schema: str | None, home: str | None) -> App:
    """The database that is named, or else the app's: only to look, so it is not migrated."""
    found = app.settings
    return open_app(dsn or found.dsn, schema or found.schema, home or str(found.home))


def workflow_of(app: App, name: str) -> Workflow[..., Any]:
    found = app.definitions.get(name)
    if not isinstance(found, Workflow):
        known = [each.name for each in app.definitions.tasks.values() if isinstance(each, Workflow)]
        raise UnknownName(name, f" Its workflows are {', '.join(sorted(known))}." if known else " It has no workflows.")
    return found


async def _fetch(app: App, name: str) -> History:
    async with reached(app):
        found = await app.operator.runs.history(name)
        info = found.info
        if info.kind != "workflow":
            raise WrongUse(f"{info.name} {info.id} is a {info.kind}: only a workflow has a history")
        return history_of(info, found.events)


def _tell(history: History, workflow: Workflow[..., Any], *, until: int | None, as_json: bool) -> int:
    told: list[dict[str, Any]] = []

    def hear(event: Event, line: str) -> None:
        what = described(event.type, event.name, event.takes)
        if as_json:
            told.append({"idx": event.idx, "type": event.type, "what": what, "line": line or None})
        else:
            click.echo(plain(f"{event.idx:>6}  {'  ' if event.type in COMMANDS else ''}{what}{line and f'  ({line})'}"))

    try:
        replay = tell(history, partial(RunCode, workflow), hear, until=until)
    except Nondeterminism as error:
        if as_json:
            echo_json({"events": told, "fits": False, "mismatch": mismatch(error)})
        else:
            click.echo(click.style(f"{error.idx:>6}  does not fit", fg="red"))
            say(str(error))
        return Exit.FAILED
    rest = _rest(replay)
    replay.evict()
    if as_json:
        echo_json({"events": told, "fits": True, "mismatch": None, "then": rest})
    else:
        click.echo(plain(f"it fits: {len(history.events[:until]):,} events; then {rest}"))
    return Exit.DONE


def mismatch(error: Nondeterminism | Unfit) -> dict[str, Any]:
    return {"idx": error.idx, "recorded": error.recorded, "new": error.new, "line": error.line}


def _rest(replay: Told) -> str:
    """Say where the code stands after the last event."""
    if replay.ended is not None:
        return f"it has ended: {replay.ended.type}"
    waits = replay.waits_for()
    parts = [*waits["runs"], *(f"signal {name}" for name in waits["signals"])]
    if replay.timers.due is not None:
        parts.append(f"a timer until {replay.timers.due:%Y-%m-%d %H:%M:%S} UTC")
    return f"it waits for {', '.join(parts)}" if parts else "it waits"
