"""`stepwell runs`, `cancel` and `retry`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.exits import Exit, exit_code, say
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import echo_json, echo_table, facts, local
from stepwell.handle import Run
from stepwell.model.errors import StepwellError
from stepwell.model.run import Page, RunInfo
from stepwell.model.states import State

WIDEST = 60
"""Characters of an error that a list shows; `stepwell show` has the rest."""


@click.command()
@click.option("--state", multiple=True, type=click.Choice([state.value for state in State]), help="May be repeated.")
@click.option("--name", help="Of this definition.")
@click.option("--queue")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--after", type=click.UUID, metavar="RUN", help="Those older than this run: the next page.")
@json_option
@on_database
def runs(*, as_json: bool, dsn: str | None, schema: str | None, home: str | None, **which: Any) -> None:
    """List runs, newest first."""
    page = run_async(_page(open_app(dsn, schema, home), which))
    if as_json:
        echo_json({"items": [facts(info) for info in page.items], "next": page.next})
        return
    echo_table(("run", "state", "name", "queue", "attempt", "started", "error"), [_row(info) for info in page.items])
    if page.next is not None:
        say(f"there are more: --after {page.next}")


async def _page(app: App, which: dict[str, Any]) -> Page:
    states: Sequence[str] = which.pop("state")
    after: UUID | None = which.pop("after")
    async with reached(app):
        return await app.runs(state=list(states) or None, after=after, **which)


def _row(info: RunInfo) -> tuple[str, ...]:
    error = "" if info.error is None else f"{info.error.type}: {info.error.message}"
    short = error if len(error) <= WIDEST else error[: WIDEST - 1] + "…"
    return (str(info.id), info.state, info.name, info.queue, str(info.attempt), local(info.created_at), short)


@click.command()
@click.argument("run", nargs=-1, required=True)
@json_option
@on_database
def cancel(run: tuple[str, ...], *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> int:
    """Finish runs, each named by its id or key, as cancelled. A running one is told to stop."""

    async def cancelled(handle: Run[Any]) -> UUID:
        await handle.cancel()
        return handle.id

    return run_async(_each(open_app(dsn, schema, home), run, cancelled, word="cancelled", as_json=as_json))


@click.command()
@click.argument("run", nargs=-1, required=True)
@json_option
@on_database
def retry(run: tuple[str, ...], *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> int:
    """Start finished runs, each named by its id or key, again: new runs with the same input."""

    async def started(handle: Run[Any]) -> UUID:
        return (await handle.retry()).id

    return run_async(_each(open_app(dsn, schema, home), run, started, word="started again as", as_json=as_json))


async def _each(
    app: App, names: Sequence[str], act: Callable[[Run[Any]], Awaitable[UUID]], *, word: str, as_json: bool
) -> int:
    """Do it to every run that allows it; the exit code of the first that does not."""
    code: Exit | None = None
    async with reached(app):
        for name in names:
            try:
                told: dict[str, Any] = {"run": name, "id": await act(app.run(name))}
                shown = f"{name} {word}" if word == "cancelled" else f"{name} {word} {told['id']}"
            except StepwellError as error:
                told, shown = {"run": name, "error": str(error)}, str(error)
                code = code or exit_code(error)
            if as_json:
                echo_json(told)
            elif "error" in told:
                say(shown)
            else:
                click.echo(shown)
    return code or Exit.DONE
