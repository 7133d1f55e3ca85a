"""`stepwell bench`: how fast Stepwell is on this database, and what bounds it."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import click

from stepwell.cli.connection import database_of, run_async
from stepwell.cli.exits import say
from stepwell.cli.loading import load_app
from stepwell.cli.measuring.figures import LIMIT, LINES, Figures
from stepwell.cli.measuring.rounds import ROUNDS, Plan, Tell, opened
from stepwell.cli.measuring.schema import checked_name, own_schema, server_version
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import chosen, may_be_embedded
from stepwell.cli.printing import echo_json, plain
from stepwell.config import Settings
from stepwell.operator.doctor import place_of
from stepwell.operator.errors import Exit

T = TypeVar("T")

SCHEMA = "stepwell_bench"
SIGNALS = (signal.SIGINT, signal.SIGTERM)
WIDTH = 84
"""Columns, at least: a figure that is cut off would be a wrong one."""


class Stopped(Exception):
    """The bench was stopped by a signal; everything has been put away."""

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass(frozen=True, slots=True)
class Report:
    postgres: str
    plan: Plan
    seconds: float
    figures: Figures


@click.command()
@click.argument("app_reference", metavar="[APP]", required=False)
@click.option(
    "--runs", type=click.IntRange(10), default=20_000, show_default=True, help="At most, in each start or drain."
)
@click.option("--rounds", type=click.IntRange(1), default=ROUNDS, show_default=True, help="How often all is measured.")
@click.option("--schema-name", default=SCHEMA, show_default=True, help="The schema that it makes, and drops again.")
@click.option("--force", is_flag=True, help="Take that schema though someone else made it, if it is empty.")
@click.option("--yes", is_flag=True, help="Do not ask before putting load on a database that you named.")
@json_option
@may_be_embedded
@click.option("--home", metavar="DIR", help="Where the embedded database lives.")
@click.option("--dsn", help="postgresql://… of the database; better in STEPWELL_DSN, out of `ps`.")
def bench(
    app_reference: str | None,
    *,
    runs: int,
    rounds: int,
    schema_name: str,
    force: bool,
    yes: bool,
    as_json: bool,
    dsn: str | None,
    home: str | None,
) -> int:
    """Measure Stepwell on the database of APP (module:app, or path/to/app.py), or of --dsn, for about a minute.

    Your tables are not touched: it works in a schema of its own, which it drops at the end. Beside each figure stands
    the limit: what the database gives to the same statements alone.
    """
    for_work = _settings(app_reference, dsn, home)
    found = replace(for_work, schema=checked_name(schema_name, for_work))
    _ask(found, yes=yes)
    try:
        with _progress(Plan(runs, rounds), shown=not as_json) as tell:
            report = run_async(_stoppable(_measure(found, Plan(runs, rounds), tell, force=force), schema_name))
    except Stopped as stopped:
        return 128 + stopped.number
    (_print_json if as_json else _print)(report, found)
    return Exit.DONE


def _settings(reference: str | None, dsn: str | None, home: str | None) -> Settings:
    if reference is None:
        return chosen(dsn, None, home)
    if dsn or home:
        raise click.UsageError("APP brings its own database: leave out --dsn and --home")
    return load_app(reference).settings


def _ask(found: Settings, *, yes: bool) -> None:
    """Ask before putting load on a database: it may be in production."""
    if yes or found.dsn is None:
        return
    what = f"This puts load on {place_of(found)} for about a minute, in a schema of its own, {found.schema}."
    if not sys.stdin.isatty():
        raise click.UsageError(f"{what} There is no terminal to ask at: add --yes")
    click.confirm(f"{plain(what)} Go on?", abort=True, err=True)


async def _measure(found: Settings, wanted: Plan, tell: Tell, *, force: bool) -> Report:
    begin = time.monotonic()
    async with database_of(found) as database:
        version = await server_version(database)
        async with own_schema(database, force=force), opened(database, tell) as measured:
            plan = await measured.measure(wanted, begin)
        return Report(version, plan, time.monotonic() - begin, measured.figures)


async def _stoppable(work: Coroutine[Any, Any, T], schema: str) -> T:
    """The first signal ends the work, and lets it put everything away. The second does not wait for that."""
    loop, me, heard = asyncio.get_running_loop(), asyncio.current_task(), list[int]()
    assert me is not None  # asyncio.run makes one

    def unhear() -> None:
        for each in SIGNALS:
            loop.remove_signal_handler(each)

    def stop(number: int) -> None:
        unhear()
        heard.append(number)
        say(f"stopping on {signal.Signals(number).name}: dropping the schema {schema}")
        me.cancel()

    hears = threading.current_thread() is threading.main_thread()
    if hears:
        for each in SIGNALS:
            loop.add_signal_handler(each, stop, each)
    try:
        return await work
    except asyncio.CancelledError:
        if not heard:
            raise
        raise Stopped(heard[0]) from None
    finally:
        if hears:
            unhear()


# -- what is shown


@contextmanager
def _progress(plan: Plan, *, shown: bool) -> Iterator[Tell]:
    """A bar on stderr, where there is someone to see it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not (shown and console.is_terminal)) as progress:
        bar = progress.add_task("starting two workers", total=plan.steps)

        def tell(what: str) -> None:
            progress.update(bar, description=what, advance=1)

        yield tell


def _print(report: Report, found: Settings) -> None:
    from rich.console import Console
    from rich.table import Table

    plan, rounds = report.plan, "1 round" if report.plan.rounds == 1 else f"{report.plan.rounds} rounds"
    click.echo(f"{plain(place_of(found))}, Postgres {plain(report.postgres)}")
    click.echo(f"{plan.runs:,} runs, {rounds}, {report.seconds:.0f} s; median [lowest–highest]\n")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("", "Stepwell", "limit", "ratio"):
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    unit = ""
    for line in LINES:
        if line.unit != unit:
            table.add_row(unit := line.unit, style="bold")
        ours = report.figures.cell(line.name)
        if line.has_limit:
            limit, ratio = report.figures.cell(line.name + LIMIT), f"{report.figures.ratio(line.name):.2f}"
            table.add_row(line.says, ours, limit, ratio)
        else:
            table.add_row(line.says, "", ours, "")
    console = Console(highlight=False)
    console.width = max(console.width, WIDTH)
    console.print(table)
    click.echo(f"\n{report.figures.verdict()}")


def _print_json(report: Report, found: Settings) -> None:
    echo_json(
        {
            "database": place_of(found),
            "postgres": report.postgres,
            "runs": report.plan.runs,
            "rounds": report.plan.rounds,
            "seconds": report.seconds,
            "figures": report.figures.facts(),
            "verdict": report.figures.verdict(),
        }
    )
