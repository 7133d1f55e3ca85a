"""`stepwell preflight`: before a deploy, whether this code fits every workflow that is under way."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.exits import say
from stepwell.cli.loading import wanted_app
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database
from stepwell.cli.printing import echo_json, plain
from stepwell.cli.replay import database_of_app, mismatch
from stepwell.cli.tables import Heads, echo_table
from stepwell.operator.errors import Exit
from stepwell.operator.preflight import Hear, Preflight

HEADS = Heads(("run", "name", "event", "recorded", "new", "line"), least=("event",))


@click.command()
@click.argument("app_reference", metavar="[APP]", required=False)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Look at no more than the N oldest.")
@json_option
@on_database
def preflight(
    app_reference: str | None,
    *,
    limit: int | None,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
    home: str | None,
) -> int:
    """Tell the histories of all open workflows again to the code of APP (module:app), before it is deployed.

    Lists those that would not fit, and where. No task and no step is run, and nothing is written. Exit code 1 if there
    are any. Workflows that APP does not have are counted apart: another app may have them.
    """
    app = wanted_app(app_reference).load()
    database = database_of_app(app, dsn, schema, home)
    found = run_async(_look(database, app, limit, shown=not as_json))
    if as_json:
        echo_json(_plainly(found))
    else:
        _show(found)
    return Exit.FAILED if found.broken else Exit.DONE


async def _look(database: App, app: App, limit: int | None, *, shown: bool) -> Preflight:
    async with reached(database):
        with _progress(shown=shown) as hear:
            return await database.operator.preflight(app.definitions, limit=limit, hear=hear)


def _plainly(found: Preflight) -> dict[str, Any]:
    return {
        "checked": found.checked,
        "broken": [{"id": run.id, "name": run.name, **mismatch(run)} for run in found.broken],
        "unknown": found.unknown,
        "pinned": found.pinned,
    }


def _show(found: Preflight) -> None:
    if found.broken:
        rows = [(str(run.id), run.name, str(run.idx), run.recorded, run.new, run.line) for run in found.broken]
        echo_table(HEADS, rows)
        _show_places(found)
    for name, count in sorted(found.unknown.items()):
        say(f"{count:,} open runs of {name}, which this app does not have, were not looked at")
    for name, count in sorted(found.pinned.items()):
        say(f"{count:,} open runs of {name} are pinned to another version, and were not looked at")
    text = f"{found.checked:,} open workflows: {found.checked - len(found.broken):,} fit, {len(found.broken):,} do not"
    click.echo(plain(text))


def _show_places(found: Preflight) -> None:
    """Every place where code and histories differ, in full: a table may have had to cut it."""
    places: Counter[tuple[str, str, str, str]] = Counter()
    for run in found.broken:
        places[run.name, run.recorded, run.new, run.line] += 1
    for (name, recorded, new, line), count in places.most_common():
        runs = "1 run" if count == 1 else f"{count:,} runs"
        text = f"{runs} of {name}: where the history has {recorded}, the code does {new}\n  {line}"
        click.echo(plain(text, keep="\n"))


@contextmanager
def _progress(*, shown: bool) -> Iterator[Hear | None]:
    """A bar on stderr, where there is someone to see it, as soon as there is something to look at."""
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    progress = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True))
    task = progress.add_task("")

    def hear(looked: int, total: int) -> None:
        progress.update(task, completed=looked, total=total)
        if total and not progress.live.is_started:
            progress.start()

    try:
        yield hear
    finally:
        progress.stop()
