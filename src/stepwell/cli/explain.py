"""`stepwell explain`: why a run is where it is."""

from __future__ import annotations

from dataclasses import asdict

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import coloured, echo_json, plain
from stepwell.model.explanation import Explanation


@click.command()
@click.argument("run")
@json_option
@on_database
def explain(run: str, *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """Say why a run is where it is: what it waits for, who runs it, or how it ended.

    RUN is its id, the beginning of its id, or its key.
    """
    told = run_async(_ask(open_app(dsn, schema, home), run))
    if as_json:
        echo_json(asdict(told))
        return
    click.echo(f"{told.run_id} {plain(told.name)} is {coloured(told.state.value)}")
    for line in lines_of(told):
        click.echo(line)


def lines_of(told: Explanation) -> list[str]:
    """A line for each cause, the most telling first."""
    return [f"  - {plain(cause.text)}" for cause in told.causes]


async def _ask(app: App, name: str) -> Explanation:
    async with reached(app):
        return await app.operator.runs.explain(name)
