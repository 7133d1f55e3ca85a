"""`stepwell show`: one run, why it is where it is, and every attempt at it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from stepwell.app import App
from stepwell.cli.connection import reached, run_async
from stepwell.cli.explain import lines_of
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database, open_app
from stepwell.cli.printing import coloured, echo_json, facts, json_text, local, plain, size
from stepwell.cli.workflow_parts import lines_of_parts, plain_parts
from stepwell.model.explanation import Explanation
from stepwell.model.notes import Usage
from stepwell.model.run import Attempt, Error, RunInfo
from stepwell.model.worker import WorkerInfo
from stepwell.operator.runs import RunDetail


@click.command()
@click.argument("run")
@json_option
@on_database
def show(run: str, *, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> None:
    """Show a run with its attempts, where they ran, and their errors.

    RUN is its id, the beginning of its id, or its key.
    """
    shown = run_async(_ask(open_app(dsn, schema, home), run))
    if as_json:
        echo_json(_plainly(shown))
        return
    for field, value in _fields(shown.info, shown.why):
        click.echo(f"{field:<9} {coloured(plain(value))}")
    for line in lines_of(shown.why):
        click.echo(line)
    for step in shown.progress:
        total = "" if step.total is None else f" of {step.total:g}"
        click.echo(plain(f"progress  {step.step} {step.done:g}{total}, {local(step.at)}"))
    for line in () if shown.workflow is None else lines_of_parts(shown.workflow):
        click.echo(plain(line))
    for attempt in shown.attempts:
        word = "turn" if shown.info.kind == "workflow" else "attempt"
        _show_attempt(word, attempt, shown.workers.get(attempt.worker))


async def _ask(app: App, name: str) -> RunDetail:
    async with reached(app):
        return await app.operator.runs.detail(name)


def _plainly(shown: RunDetail) -> dict[str, Any]:
    attempts = []
    for attempt in shown.attempts:
        worker = shown.workers.get(attempt.worker)
        where = {"host": None, "pid": None} if worker is None else {"host": worker.host, "pid": worker.pid}
        attempts.append(facts(attempt) | where)
    return {
        **facts(shown.info),
        "limit_key": shown.why.limit_key,
        "deadline_at": shown.why.deadline_at,
        "causes": [asdict(cause) for cause in shown.why.causes],
        "progress": shown.progress,
        "attempts": attempts,
        **({} if shown.workflow is None else plain_parts(shown.workflow)),
    }


def _fields(info: RunInfo, why: Explanation) -> Iterator[tuple[str, str]]:
    """Everything there is to say, in the order in which one asks."""
    yield "run", str(info.id)
    yield "name", info.name
    yield "state", info.state
    yield "queue", f"{info.queue}, priority {info.priority}"
    optional: dict[str, Any] = {
        "key": info.key,
        "limit key": why.limit_key,
        "retry of": info.retry_of,
        "parent": info.parent_id,
        "version": info.version,
    }
    yield from ((name, str(value)) for name, value in optional.items() if value is not None)
    if info.tags:
        yield "tags", json_text(info.tags)
    yield "input", json_text(info.input)
    if info.state == "completed":
        yield "result", json_text(info.result)
    moments = {
        "created": info.created_at,
        "due": info.due_at,
        "expires": info.expires_at,
        "deadline": why.deadline_at,
        "finished": info.finished_at,
    }
    yield from ((name, local(moment)) for name, moment in moments.items() if moment is not None)
    tries = "turns" if info.kind == "workflow" else "attempts"
    yield tries, f"{info.attempt}, of which {info.failures} failed"


def _show_attempt(word: str, attempt: Attempt, worker: WorkerInfo | None) -> None:
    took = ""
    if attempt.ended_at is not None:
        took = f" after {(attempt.ended_at - attempt.started_at).total_seconds():.2f} s"
    click.echo(f"\n{word} {attempt.attempt}: {coloured(plain(attempt.outcome))}{took}, {local(attempt.started_at)}")
    where = "" if worker is None else f" {worker.name}, host {worker.host}, pid {worker.pid}"
    click.echo(plain(f"  worker {attempt.worker}{where}"))
    if attempt.error is not None:
        _show_error(attempt.error)
    if attempt.usage is not None:
        click.echo(plain(f"  took {_usage(attempt.usage)}"))


def _usage(usage: Usage) -> str:
    parts = [
        None if usage.cpu is None else f"{usage.cpu:.2f} s of CPU",
        None if usage.memory is None else f"{size(usage.memory)} at its peak",
        None if usage.signal is None else f"its process ended by {usage.signal}",
        None if usage.exit_code is None else f"its process ended with exit code {usage.exit_code}",
    ]
    return ", ".join(part for part in parts if part is not None)


def _show_error(error: Error) -> None:
    code = "" if error.code is None else f", code {error.code}"
    click.echo(plain(f"  {error.type}: {error.message} ({error.reason.value}{code})"))
    for line in (error.traceback or "").splitlines():
        click.echo(f"  │ {plain(line)}")
