"""`stepwell doctor`: is everything there that work needs?"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import click

from stepwell.cli.connection import database_of, place_of, run_async, say_if_new
from stepwell.cli.exits import Exit
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import on_database
from stepwell.cli.printing import age, echo_json, plain
from stepwell.config import Settings, settings
from stepwell.model.errors import SchemaError
from stepwell.store import migrate

Verdict = Literal["good", "look", "bad"]
_COLOURS = {"good": "green", "look": "yellow", "bad": "red"}

SKEW = 5.0
OLD_TRANSACTION = timedelta(minutes=5)
LONG_PENDING = 60.0


@dataclass(frozen=True, slots=True)
class Finding:
    subject: str
    verdict: Verdict
    says: str


@click.command()
@json_option
@on_database
def doctor(*, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> int:
    """Look at the database and the work in it. Exit code 1 if something is bad."""
    found = settings(dsn, home=home, schema=schema)
    say_if_new(found)
    findings = run_async(examine(found))
    if as_json:
        echo_json({"findings": findings})
    else:
        for each in findings:
            click.echo(
                f"{click.style(f'{each.verdict:<4}', fg=_COLOURS[each.verdict])}  {each.subject:<13} {plain(each.says)}"
            )
    return Exit.FAILED if any(each.verdict == "bad" for each in findings) else Exit.DONE


async def examine(found: Settings) -> list[Finding]:
    async with database_of(found) as database:
        asked = time.monotonic()
        server = dict((await database.rows("server_facts", old=OLD_TRANSACTION))[0])
        took, now = time.monotonic() - asked, datetime.now(UTC)
        findings = [Finding("connection", "good", f"{place_of(found)}, {took * 1000:.0f} ms"), *_of_server(server, now)]
        try:
            current, latest = await migrate.version(database), migrate.latest(found.schema)
        except SchemaError as error:
            return [*findings, Finding("schema", "bad", str(error))]
        if current < latest:
            needed = f"{found.schema} is at version {current}, {latest} is needed: run `stepwell migrate`"
            return [*findings, Finding("schema", "bad", needed)]
        findings.append(Finding("schema", "good", f"{found.schema}, version {current}"))
        return [*findings, *_of_work(dict((await database.rows("work_facts"))[0]))]


def _of_server(server: Mapping[str, Any], now: datetime) -> Iterator[Finding]:
    standby = ", a standby that takes no writes" if server["is_standby"] else ""
    yield Finding("server", "bad" if standby else "good", f"Postgres {server['version']}{standby}")
    skew = (server["clock"] - now).total_seconds()
    yield Finding("clock", "good" if abs(skew) < SKEW else "look", f"the server's is {skew:+.2f} s from this one")
    used, most = server["connections"], server["max_connections"]
    yield Finding("connections", "good" if used < most * 0.9 else "look", f"{used} of {most}")
    old, oldest = server["old_transactions"], age(server["oldest_transaction"] or 0.0)
    hint = ": they keep vacuum from cleaning, and claims become slow" if old else ""
    yield Finding(
        "transactions",
        "look" if old else "good",
        f"{old} older than {age(OLD_TRANSACTION.total_seconds())}, the oldest {oldest}{hint}",
    )


def _of_work(work: Mapping[str, Any]) -> Iterator[Finding]:
    workers, slots, waited = work["workers"], work["slots"], work["oldest_pending"]
    idle = "" if workers or not work["pending"] else ": nobody takes what is pending, start `stepwell worker`"
    yield Finding("workers", "bad" if idle else "good", f"{workers} alive with {slots} slots{idle}")
    long = waited is not None and waited > LONG_PENDING
    oldest = "" if waited is None else f", the oldest started {age(waited)} ago"
    yield Finding("runs", "look" if long else "good", f"{work['running']} running, {work['pending']} pending{oldest}")
    if work["overdue"]:
        yield Finding("due", "bad", f"{work['overdue']} runs are due and not moved: is a worker running?")
