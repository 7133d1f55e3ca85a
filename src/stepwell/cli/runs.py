"""`stepwell runs`: a list, or one that is kept up to date."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.exits import Exit, say
from stepwell.cli.filters import filtered
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import echo_json, facts, local
from stepwell.cli.run_named import run_named
from stepwell.cli.screen import EVERY, follow, follow_as_json, until_interrupted
from stepwell.cli.tables import Heads, drawn, echo_table
from stepwell.model.ids import made_at
from stepwell.model.run import Page, RunInfo
from stepwell.model.states import State

if TYPE_CHECKING:
    from rich.table import Table

WIDEST = 60
"""Characters of an error that a list shows; `stepwell show` has the rest."""
PATIENCE, GLANCE = 10.0, 1.0
"""Seconds that it looks for runs, if hardly any is as they are wanted; the second while it keeps a list up to date."""
HEADS = Heads(
    ("run", "state", "name", "queue", "attempt", "started", "error"), least=("attempt", "started", "queue", "error")
)


@click.command()
@filtered(list(State))
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--after", metavar="RUN", help="Those older than this run: the next page.")
@click.option("--watch", is_flag=True, help="Keep the list up to date, until Ctrl-C.")
@json_option
@on_database
def runs(*, watch: bool, as_json: bool, dsn: str | None, schema: str | None, home: str | None, **which: Any) -> int:
    """List runs, newest first.

    There is no index by name, queue or tag: with a filter that few runs match it looks at all that are kept. Say
    --since. After ten seconds it shows what it has found, and how to go on.
    """
    app = open_app(dsn, schema, home)
    if watch:
        return until_interrupted(_watch(app, which, as_json=as_json))
    page = run_async(_once(app, which))
    if as_json:
        echo_json(_plain(page))
    else:
        echo_table(HEADS, [_row(info) for info in page.items])
    if page.next is not None and len(page.items) < which["limit"]:
        say(
            f"looked at runs until {local(made_at(page.next))} and found {len(page.items)} in {PATIENCE:.0f} s; "
            f"there may be more. --since bounds it; to go on: --after {page.next}"
        )
    elif page.next is not None and not as_json:
        say(f"there are more: --after {page.next}")
    return Exit.DONE


async def _once(app: App, which: dict[str, Any]) -> Page:
    async with reached(app):
        return await _page(app, which, within=PATIENCE)


async def _watch(app: App, which: dict[str, Any], *, as_json: bool) -> None:
    async def look() -> Page:
        return await _page(app, which, within=GLANCE)

    async def look_plainly() -> dict[str, Any]:
        return _plain(await look())

    async with reached(app):
        if as_json:
            await follow_as_json(look_plainly, every=EVERY)
        else:
            await follow(look, _table, every=EVERY)


async def _page(app: App, which: dict[str, Any], *, within: float) -> Page:
    states: Sequence[str] = which["state"]
    after = None if which["after"] is None else (await (await run_named(app, which["after"])).info()).id
    rest = {name: value for name, value in which.items() if name not in ("state", "after")}
    return await app.runs(state=list(states) or None, after=after, within=within, **rest)


def _plain(page: Page) -> dict[str, Any]:
    return {"items": [facts(info) for info in page.items], "next": page.next}


def _table(page: Page) -> Table:
    return drawn(HEADS, [_row(info) for info in page.items])


def _row(info: RunInfo) -> tuple[str, ...]:
    error = "" if info.error is None else f"{info.error.type}: {info.error.message}"
    short = error if len(error) <= WIDEST else error[: WIDEST - 1] + "…"
    return (str(info.id), info.state, info.name, info.queue, str(info.attempt), local(info.created_at), short)
