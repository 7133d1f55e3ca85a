"""`stepwell logs`: what the bodies of a run wrote to their loggers."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import asdict

import click

from stepwell.app import App
from stepwell.cli.connection import reached
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import echo_json, local, plain
from stepwell.cli.screen import until_interrupted
from stepwell.model.notes import LogLine

LOOK = 0.5
_COLOURS = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "red", "DEBUG": "bright_black"}


@click.command()
@click.argument("run")
@click.option("--attempt", type=click.IntRange(1), help="Only of this attempt.")
@click.option("--follow", is_flag=True, help="Go on until the run has finished, or Ctrl-C.")
@json_option
@on_database
def logs(
    run: str,
    *,
    attempt: int | None,
    follow: bool,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
    home: str | None,
) -> int:
    """Print what a run wrote to its loggers.

    RUN is its id, the beginning of its id, or its key.
    """
    lines = Lines(as_json=as_json)
    return until_interrupted(_print(open_app(dsn, schema, home), run, attempt, lines, follow=follow))


class Lines:
    """Prints each line once. They have no numbers to go by, and of very many the oldest may be left out later."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._printed: Counter[LogLine] = Counter()

    def print(self, lines: list[LogLine]) -> None:
        now: Counter[LogLine] = Counter()
        for line in lines:
            now[line] += 1
            if now[line] > self._printed[line]:
                self._print_one(line)
        self._printed = now

    def _print_one(self, line: LogLine) -> None:
        if self._as_json:
            echo_json(asdict(line))
            return
        level = click.style(f"{line.level:<8}", fg=_COLOURS.get(line.level.upper()))
        head = f"{local(line.at)} {line.attempt:>2} {level} {plain(line.logger)}: "
        first, *rest = line.message.splitlines() or [""]
        click.echo(head + plain(first))
        for each in rest:
            click.echo(f"  │ {plain(each)}")


async def _print(app: App, name: str, attempt: int | None, lines: Lines, *, follow: bool) -> None:
    async with reached(app):
        runs = app.operator.runs
        info = await runs.info(name)
        lines.print(await runs.logs(info.id, attempt))
        while follow and not info.state.finished:
            await asyncio.sleep(LOOK)
            # The state first: what was written before the end is there once the end is.
            info = await runs.info(info.id)
            lines.print(await runs.logs(info.id, attempt))
