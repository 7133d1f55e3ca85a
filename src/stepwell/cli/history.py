"""`stepwell history`: what happened to a workflow, on the screen or as a file to be told again elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.exits import say
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import echo_json, json_text, local
from stepwell.cli.tables import Heads, echo_table
from stepwell.model.events import HistoryEvent
from stepwell.operator.exported import packed
from stepwell.operator.runs import RunHistory

HEADS = Heads(("event", "at", "type", "command", "what", "details"), least=("command", "at"))


@click.command()
@click.argument("run")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Only the last N events.")
@click.option(
    "--export",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write all that `stepwell replay` needs to FILE.",
)
@json_option
@on_database
def history(
    run: str,
    *,
    tail: int | None,
    export: Path | None,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
    home: str | None,
) -> None:
    """Show what happened to a workflow, in order: what arrived for it, and what its code then asked for.

    RUN is its id, the beginning of its id, or its key. What `workflow.on_rollback` did is marked as rollback.
    """
    found = run_async(_ask(open_app(dsn, schema, home), run))
    info, events = found.info, found.events
    if export is not None:
        export.write_bytes(packed(info, events))
        say(f"{len(events):,} events of {info.name} {info.id} are in {export}")
        return
    if not events and info.attempt == 0:
        say(f"{info.name} has not begun: there is no history yet")
    elif info.kind != "workflow":
        say(f"{info.name} is a {info.kind}: only workflows have a history")
    shown = events if tail is None else events[-tail:]
    if as_json:
        echo_json([plainly(each) for each in shown])
    else:
        echo_table(HEADS, [row_of(each, found.rollbacks) for each in shown])


async def _ask(app: App, name: str) -> RunHistory:
    async with reached(app):
        return await app.operator.runs.history(name)


def plainly(event: HistoryEvent) -> dict[str, Any]:
    return {"idx": event.idx, "type": event.type, "at": event.at, "data": event.data}


def row_of(event: HistoryEvent, rollbacks: Collection[int] = ()) -> tuple[str, ...]:
    """The row of an event; what `workflow.on_rollback` did is marked."""
    data = dict(event.data)
    data.pop("rollback", None)
    command, name, run = (data.pop(each, None) for each in ("command", "name", "run"))
    takes = data.pop("takes", None)
    what = " ".join(str(each) for each in (name, run) if each is not None)
    if takes is not None and name is not None:
        what = f"{name}({', '.join(takes)}) {run or ''}".rstrip()
    if event.idx in rollbacks:
        what = f"rollback {what}".rstrip()
    if isinstance(data.get("error"), dict):
        data["error"] = f"{data['error'].get('type')}: {data['error'].get('message')}"
    details = ", ".join(f"{key} {value if isinstance(value, str) else json_text(value)}" for key, value in data.items())
    shown = details if len(details) <= 200 else details[:199] + "…"
    return (str(event.idx), local(event.at), event.type, "" if command is None else str(command), what, shown)
