"""`stepwell runs`: a list, or one that is kept up to date."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.exits import say
from stepwell.cli.filters import filtered
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import echo_json, error_in_words, facts, local, nth_try
from stepwell.cli.screen import EVERY, follow, follow_as_json, until_interrupted
from stepwell.cli.tables import Heads, drawn, echo_table
from stepwell.model.ids import made_at
from stepwell.model.run import Error, Page, RunInfo, Waits
from stepwell.model.states import State
from stepwell.model.wording import among
from stepwell.operator.errors import Exit

if TYPE_CHECKING:
    from rich.table import Table

WIDEST = 60
"""Characters of an error that a list shows; `stepwell show` has the rest."""
PATIENCE, GLANCE = 10.0, 1.0
"""Seconds that it looks for runs, if hardly any is as they are wanted; the second while it keeps a list up to date."""
HEADS = Heads(
    ("run", "state", "name", "queue", "attempt", "started", "error"), least=("attempt", "started", "queue", "error")
)
WAITING = Heads(
    ("run", "state", "name", "queue", "attempt", "started", "waits for"), least=("attempt", "started", "queue")
)


@dataclass(frozen=True, slots=True)
class Listed:
    """A page, and what its runs wait for if that was asked."""

    page: Page
    waits: dict[UUID, Waits] | None = None

    @property
    def heads(self) -> Heads:
        return HEADS if self.waits is None else WAITING


@click.command()
@filtered(list(State))
@click.option("--blocked", is_flag=True, help="Workflows whose code does not fit their history, and where it does not.")
@click.option("--waiting", is_flag=True, help="Runs that wait, and for what: --state waiting with a column more.")
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
    if which["waiting"] and which["state"] not in ((), (State.WAITING.value,)):
        raise click.UsageError("--waiting lists runs whose state is waiting: leave out --state, or --waiting")
    app = open_app(dsn, schema, home)
    if watch:
        return until_interrupted(_watch(app, which, as_json=as_json))
    listed = run_async(_once(app, which))
    page = listed.page
    if as_json:
        echo_json(_plain(listed))
    else:
        echo_table(listed.heads, _rows(listed))
    if page.next is not None and len(page.items) < which["limit"]:
        say(
            f"looked at runs until {local(made_at(page.next))} and found {len(page.items)} in {PATIENCE:.0f} s; "
            f"there may be more. --since bounds it; to go on: --after {page.next}"
        )
    elif page.next is not None and not as_json:
        say(f"there are more: --after {page.next}")
    return Exit.DONE


async def _once(app: App, which: dict[str, Any]) -> Listed:
    async with reached(app):
        return await _list(app, which, within=PATIENCE)


async def _watch(app: App, which: dict[str, Any], *, as_json: bool) -> None:
    async def look() -> Listed:
        return await _list(app, which, within=GLANCE)

    async def look_plainly() -> dict[str, Any]:
        return _plain(await look())

    async with reached(app):
        if as_json:
            await follow_as_json(look_plainly, every=EVERY)
        else:
            await follow(look, _table, every=EVERY)


async def _list(app: App, which: dict[str, Any], *, within: float) -> Listed:
    states: Sequence[str] = [State.WAITING] if which["waiting"] else which["state"]
    verbs = app.operator.runs
    after = None if which["after"] is None else (await verbs.info(which["after"])).id
    rest = {name: value for name, value in which.items() if name not in ("state", "after", "waiting")}
    page = await verbs.list(state=list(states) or None, after=after, within=within, **rest)
    if not which["waiting"] and not which["blocked"]:
        return Listed(page)
    return Listed(page, await verbs.waits([info.id for info in page.items]))


def _plain(listed: Listed) -> dict[str, Any]:
    items = [facts(info) for info in listed.page.items]
    if listed.waits is not None:
        for item in items:
            item["waits_for"] = asdict(listed.waits.get(item["id"], Waits()))
    return {"items": items, "next": listed.page.next}


def _table(listed: Listed) -> Table:
    return drawn(listed.heads, _rows(listed))


def _rows(listed: Listed) -> list[tuple[str, ...]]:
    if listed.waits is None:
        return [(*_cells(info), _error(info.error)) for info in listed.page.items]
    return [(*_cells(info), _waits_in_words(listed.waits.get(info.id, Waits()))) for info in listed.page.items]


def _cells(info: RunInfo) -> tuple[str, ...]:
    return (str(info.id), info.state, info.name, info.queue, nth_try(info.kind, info.attempt), local(info.created_at))


def _error(error: Error | None) -> str:
    return "" if error is None else _short(error_in_words(error.type, error.message))


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _waits_in_words(waits: Waits) -> str:
    if waits.blocked is not None:
        told = waits.blocked
        return f"code that fits: event {told.get('idx')} is {told.get('recorded')}, the code does {told.get('new')}"
    parts = [*(f"signal {name}" for name in waits.signals), *waits.runs]
    if waits.until is not None:
        parts.append(f"timer until {local(waits.until)}")
    return _short(among(parts))
