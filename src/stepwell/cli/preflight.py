"""`stepwell preflight`: before a deploy, whether this code fits every workflow that is under way."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import click
import msgspec

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.exits import Exit, say
from stepwell.cli.exported import History
from stepwell.cli.loading import wanted_app
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database
from stepwell.cli.printing import echo_json, plain
from stepwell.cli.replay import database_of_app, mismatch
from stepwell.cli.tables import Heads, echo_table
from stepwell.cli.telling import tell
from stepwell.client.client import Client
from stepwell.definitions.workflow import Workflow
from stepwell.model.errors import Nondeterminism
from stepwell.model.turn import OpenRun
from stepwell.replay.code import About

HEADS = Heads(("run", "name", "event", "recorded", "new", "line"), least=("event",))
PAGE = 200
NO_RUN = UUID(int=0)


@dataclass(slots=True)
class Found:
    """What came of it."""

    checked: int = 0
    broken: list[tuple[OpenRun, Nondeterminism]] = field(default_factory=list)
    unknown: Counter[str] = field(default_factory=Counter)
    """Runs of workflows that this app does not have, by name."""
    pinned: Counter[str] = field(default_factory=Counter)
    """Runs that are pinned to another version, and are none of this code's business."""


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


async def _look(database: App, app: App, limit: int | None, *, shown: bool) -> Found:
    found = Found()
    async with reached(database):
        client = cast(Client, database.door)  # of which the door shows only what a handle needs
        total = await client.outside.count_open()
        with _progress(total if limit is None else min(limit, total), shown=shown) as advance:
            async for run in _open_runs(client, limit):
                await _check(client, app, run, found)
                advance()
    return found


async def _open_runs(client: Client, limit: int | None) -> AsyncIterator[OpenRun]:
    after, left = NO_RUN, limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = await client.outside.open_runs(after=after, limit=size)
        for run in page:
            yield run
        if len(page) < size:
            return
        after, left = page[-1].id, None if left is None else left - len(page)


async def _check(client: Client, app: App, run: OpenRun, found: Found) -> None:
    workflow = app.definitions.get(run.name)
    if not isinstance(workflow, Workflow):
        found.unknown[run.name] += 1
        return
    if run.pin is not None and run.pin != workflow.version:
        found.pinned[run.name] += 1
        return
    tags = MappingProxyType({} if run.tags is None else msgspec.json.decode(run.tags))
    about = About(run.id, run.name, run.key, run.queue, run.parent_id, run.root_id, tags)
    events = await client.outside.events(run.id, after=run.history_from - 1)
    found.checked += 1
    try:
        tell(History(about, run.input, events), workflow).evict()
    except Nondeterminism as error:
        found.broken.append((run, error))


def _plainly(found: Found) -> dict[str, Any]:
    return {
        "checked": found.checked,
        "broken": [{"id": run.id, "name": run.name, **mismatch(error)} for run, error in found.broken],
        "unknown": dict(found.unknown),
        "pinned": dict(found.pinned),
    }


def _show(found: Found) -> None:
    if found.broken:
        rows = [
            (str(run.id), run.name, str(error.idx), error.recorded, error.new, error.line)
            for run, error in found.broken
        ]
        echo_table(HEADS, rows)
        _show_places(found)
    for name, count in sorted(found.unknown.items()):
        say(f"{count:,} open runs of {name}, which this app does not have, were not looked at")
    for name, count in sorted(found.pinned.items()):
        say(f"{count:,} open runs of {name} are pinned to another version, and were not looked at")
    text = f"{found.checked:,} open workflows: {found.checked - len(found.broken):,} fit, {len(found.broken):,} do not"
    click.echo(plain(text))


def _show_places(found: Found) -> None:
    """Every place where code and histories differ, in full: a table may have had to cut it."""
    places: Counter[tuple[str, str, str, str]] = Counter()
    for run, error in found.broken:
        places[run.name, error.recorded, error.new, error.line] += 1
    for (name, recorded, new, line), count in places.most_common():
        runs = "1 run" if count == 1 else f"{count:,} runs"
        text = f"{runs} of {name}: where the history has {recorded}, the code does {new}\n  {line}"
        click.echo(plain(text, keep="\n"))


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[], None]]:
    if not shown or not total or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        yield lambda: progress.advance(task, 1)
