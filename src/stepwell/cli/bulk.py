"""`stepwell cancel` and `retry`: runs by name, or all that a filter finds.

In bulk, the ids are gathered first. So the count that is shown is the count, and a run that is started while one
still thinks about the question is not touched.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.exits import exit_code, say
from stepwell.cli.filters import filter_of, filtered, in_words
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import echo_json, plain
from stepwell.model.errors import StepwellError
from stepwell.model.states import FINISHED, LIVE, State
from stepwell.operator.bulk import CHUNK, Action, BulkProgress
from stepwell.operator.errors import Exit
from stepwell.operator.operator import Operator

yes_option = click.option("--yes", is_flag=True, help="Do not ask before doing it to all that a filter finds.")


@dataclass(frozen=True, slots=True)
class Verb:
    """An action on runs, one by one or many at once."""

    word: Action
    done: str
    each: Callable[[Operator, str], Awaitable[One]]
    many: Callable[[Operator, Sequence[UUID]], AsyncIterator[BulkProgress]]


@dataclass(frozen=True, slots=True)
class One:
    """The outcome for one run."""

    id: UUID
    asked: bool = False
    """The run was only asked, and has not ended yet."""


async def _cancel_one(operator: Operator, run: str, *, force: bool) -> One:
    cancelled = await operator.runs.cancel(run, force=force)
    return One(cancelled.id, cancelled.asked)


async def _retry_one(operator: Operator, run: str) -> One:
    return One((await operator.runs.retry(run)).id)


CANCEL = Verb(
    "cancel",
    "cancelled",
    partial(_cancel_one, force=False),
    lambda operator, ids: operator.bulk.cancel(ids),
)
END = Verb(
    "cancel",
    "cancelled",
    partial(_cancel_one, force=True),
    lambda operator, ids: operator.bulk.cancel(ids, force=True),
)
RETRY = Verb("retry", "started again", _retry_one, lambda operator, ids: operator.bulk.retry(ids))


@click.command()
@click.argument("run", nargs=-1)
@filtered(LIVE, error=False)
@click.option("--force", is_flag=True, help="Ask no workflow: end it now, with what it started.")
@yes_option
@json_option
@on_database
def cancel(
    run: tuple[str, ...],
    *,
    force: bool,
    yes: bool,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
    home: str | None,
    **which: Any,
) -> int:
    """Finish runs as cancelled: each RUN, named by its id, the beginning of it, or its key; or all that the filters
    find.

    A running one is told to stop. A workflow that has begun is asked: it may clean up first, or refuse.
    """
    _check(run, which)
    app = open_app(dsn, schema, home)
    verb = END if force else CANCEL
    if run:
        return run_async(_each(app, run, verb, as_json=as_json))
    return run_async(_bulk(app, verb, which, yes=yes, as_json=as_json))


@click.command()
@click.argument("run", nargs=-1)
@filtered(FINISHED)
@yes_option
@json_option
@on_database
def retry(
    run: tuple[str, ...],
    *,
    yes: bool,
    as_json: bool,
    dsn: str | None,
    schema: str | None,
    home: str | None,
    **which: Any,
) -> int:
    """Start finished runs again: each RUN, named by its id, the beginning of it, or its key; or all failed ones
    that the filters find.

    They are new runs with the same input. To have others than failed ones again, say --state.
    """
    _check(run, which)
    app = open_app(dsn, schema, home)
    if run:
        return run_async(_each(app, run, RETRY, as_json=as_json))
    which["state"] = which["state"] or (State.FAILED.value,)
    return run_async(_bulk(app, RETRY, which, yes=yes, as_json=as_json))


def _check(run: tuple[str, ...], which: Mapping[str, Any]) -> None:
    given = any(value not in (None, ()) for value in which.values())
    if run and given:
        raise click.UsageError("name runs, or give filters such as --queue: not both")
    if not run and not given:
        raise click.UsageError("which runs? Name them by id or key, or give a filter such as --queue or --state")


async def _each(app: App, names: Sequence[str], verb: Verb, *, as_json: bool) -> int:
    """Do it to every run that allows it; the exit code of the first that does not."""
    code: Exit | None = None
    async with reached(app):
        for name in names:
            try:
                told, shown = _came_of(await verb.each(app.operator, name), name, verb)
            except StepwellError as error:
                told, shown = {"run": name, "error": str(error)}, str(error)
                code = code or exit_code(error)
            if as_json:
                echo_json(told)
            elif "error" in told:
                say(shown)
            else:
                click.echo(plain(shown))
    return code or Exit.DONE


def _came_of(one: One, name: str, verb: Verb) -> tuple[dict[str, Any], str]:
    """Say the outcome for machines, and for people."""
    told = {"run": name, "id": one.id}
    if one.asked:
        return {
            **told,
            "asked": True,
        }, f"{name} was asked to end: it may clean up first, or refuse (--force does not ask)"
    return told, f"{name} {verb.done} as {one.id}" if verb.word == "retry" else f"{name} {verb.done}"


async def _bulk(app: App, verb: Verb, which: Mapping[str, Any], *, yes: bool, as_json: bool) -> int:
    async with reached(app):
        operator = app.operator
        ids = await operator.bulk.matching(filter_of(which), verb.word)
        if ids and not yes:
            _ask(f"This will {verb.word} {len(ids):,} runs: {in_words(which)}.")
        did = await _do(operator, verb, ids, shown=not as_json)
    if as_json:
        echo_json({"matched": len(ids), "done": did.done, **({"asked": did.asked} if did.asked else {})})
    else:
        asked = f"; {did.asked:,} asked to end" if did.asked else ""
        left = len(ids) - did.done - did.asked
        click.echo(f"{did.done:,} {verb.done}{asked}" + (f"; {left:,} had moved on meanwhile" if left > 0 else ""))
    return Exit.DONE


def _ask(what: str) -> None:
    if not sys.stdin.isatty():
        raise click.UsageError(f"{plain(what)} There is no terminal to ask at: add --yes")
    click.confirm(f"{plain(what)} Go on?", abort=True, err=True)


async def _do(operator: Operator, verb: Verb, ids: Sequence[UUID], *, shown: bool) -> BulkProgress:
    did = BulkProgress()
    try:
        with _progress(len(ids), shown=shown) as advance:
            async for now in verb.many(operator, ids):
                advance(now.matched - did.matched)
                did = now
    except StepwellError:
        say(f"{did.done + did.asked:,} of {len(ids):,} were {verb.done} before this:")
        raise
    return did


@contextmanager
def _progress(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    if not shown or total <= CHUNK or not sys.stderr.isatty():
        yield lambda _count: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=total)
        yield lambda count: progress.advance(task, count)
