"""`stepwell doctor`: is everything there that work needs?"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import click

from stepwell.cli import standstill
from stepwell.cli.connection import database_of, place_of, run_async
from stepwell.cli.exits import Exit
from stepwell.cli.options import as_json as json_option
from stepwell.cli.options import chosen, on_database
from stepwell.cli.printing import age, echo_json, plain
from stepwell.cli.standstill import Finding
from stepwell.config import Settings
from stepwell.engine import undelivered_ends
from stepwell.model.errors import SchemaError
from stepwell.store import migrate
from stepwell.store.pool import Database

_COLOURS = {"good": "green", "look": "yellow", "bad": "red"}

SKEW = 5.0
OLD_TRANSACTION = timedelta(minutes=5)
LONG_PENDING = 60.0
LATE = timedelta(minutes=1)
MOST = 10_000
"""How far late runs are counted."""
MOST_PENDING = 100_000
"""How far pending runs are counted, those with a limit key and those without."""
MANY_DEAD = 100_000
"""Dead rows that vacuum may leave, besides a fifth of those that live."""
SERVICES = ("due", "partitions", "reaper", "teller")
LOOKS = 20
"""How often it looks on, for workflows that were not told what they wait for."""


@click.command()
@json_option
@on_database
def doctor(*, as_json: bool, dsn: str | None, schema: str | None, home: str | None) -> int:
    """Look at the database and the work in it. Exit code 1 if something is bad."""
    found = chosen(dsn, schema, home)
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
        findings = [Finding("connection", "good", f"{place_of(found)}, {took * 1000:.0f} ms")]
        findings += [_of_pooler(found, is_pooled=database.is_pooled), *_of_server(server, now)]
        try:
            current, latest = await migrate.version(database), migrate.latest(found.schema)
        except SchemaError as error:
            return [*findings, Finding("schema", "bad", str(error))]
        if current < latest:
            needed = f"{found.schema} is at version {current}, {latest} is needed: run `stepwell migrate`"
            return [*findings, Finding("schema", "bad", needed)]
        findings.append(Finding("schema", "good", f"{found.schema}, version {current}"))
        return [*findings, *await _of_tables(database)]


async def _of_tables(database: Database) -> list[Finding]:
    """What can be seen only where there is a schema."""

    async def one(statement: str, **values: Any) -> dict[str, Any]:
        return dict((await database.rows(statement, **values))[0])

    work = await one("work_facts")
    led = {row["service"] for row in await database.rows("led_services")}
    return [
        _of_vacuum(await one("vacuum_facts")),
        *_of_work(work),
        _of_leases(await one("lost_holders")),
        *_of_outcomes([dict(row) for row in await database.rows("unrecorded_outcomes")]),
        _of_services(led, workers=work["workers"]),
        _of_late(await one("late_runs", late=LATE, most=MOST)),
        await _of_untold(database),
        *await standstill.look(database),
    ]


def _of_pooler(found: Settings, *, is_pooled: bool) -> Finding:
    how = "found out" if found.pooler is None else "as it was told"
    if not is_pooled:
        return Finding("pooler", "good", f"none, {how}")
    costs = "workers poll instead of listening. If it lends whole sessions, say STEPWELL_POOLER=0"
    return Finding("pooler", "good", f"one that lends sessions for a transaction, {how}: {costs}")


def _of_server(server: Mapping[str, Any], now: datetime) -> Iterator[Finding]:
    wrong = ", a standby that takes no writes" if server["is_standby"] else ""
    if server["major"] < migrate.OLDEST_POSTGRES:
        wrong += f", and {migrate.OLDEST_POSTGRES} or newer is needed"
    yield Finding("server", "bad" if wrong else "good", f"Postgres {server['version']}{wrong}")
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
    pending = work["pending"] if work["pending"] < MOST_PENDING else f"at least {work['pending']}"
    yield Finding("runs", "look" if long else "good", f"{work['running']} running, {pending} pending{oldest}")


def _of_vacuum(vacuum: Mapping[str, Any]) -> Finding:
    if not vacuum["autovacuum"] or not vacuum["track_counts"]:
        off = "autovacuum" if not vacuum["autovacuum"] else "track_counts"
        return Finding("autovacuum", "bad", f"{off} is off on this server: claims become slow as dead rows pile up")
    if vacuum["switched_off"]:
        return Finding("autovacuum", "bad", "it is switched off for the table of runs: claims become slow")
    last = "never vacuumed yet" if vacuum["vacuumed"] is None else f"vacuumed {age(vacuum['vacuumed'])} ago"
    many = vacuum["dead"] > MANY_DEAD + vacuum["alive"] / 5
    hint = ": is a long transaction in its way?" if many else ""
    return Finding("autovacuum", "look" if many else "good", f"{vacuum['dead']} dead rows among the runs, {last}{hint}")


def _of_leases(lost: Mapping[str, Any]) -> Finding:
    if not lost["workers"]:
        return Finding("leases", "good", "no claim is without a lease")
    longest = lost["longest"]
    since = "" if longest is None else f", the longest for {age(longest)}"
    # The reaper looks every few seconds: what is there for longer has nobody to reap it.
    bad = longest is None or longest > LATE.total_seconds()
    says = f"{lost['runs']} runs are held by {lost['workers']} workers whose lease ended{since}: they wait to be reaped"
    return Finding("leases", "bad" if bad else "look", says)


def _of_outcomes(found: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    if not found:
        yield Finding("outcomes", "good", "every worker records them")
    for each in found:
        count = f"{each['outcomes']} outcome{'' if each['outcomes'] == 1 else 's'}"
        since = each["since"].astimezone(UTC)
        yield Finding(
            "outcomes",
            "bad",
            f"worker {each['name']} cannot record {count}, since {since:%Y-%m-%d %H:%M:%S} UTC: {each['why']}. "
            "The runs stay running, and it tries again",
        )


def _of_services(led: Collection[str], *, workers: int) -> Finding:
    missing = [service for service in SERVICES if service not in led]
    if not missing:
        return Finding("services", "good", f"{', '.join(SERVICES)} are led")
    says = f"nobody leads {', '.join(missing)}"
    return Finding("services", "look", says + (": wait half a lease" if workers else ": start `stepwell worker`"))


def _of_late(late: Mapping[str, Any]) -> Finding:
    found = {word: count for word, count in late.items() if count}
    if not found:
        return Finding("due", "good", "nothing is late")
    told = ", ".join(f"{count if count < MOST else f'at least {count}'} {word}" for word, count in found.items())
    return Finding(
        "due", "bad", f"late by more than {age(LATE.total_seconds())} and not moved: {told}; is a worker running?"
    )


async def _of_untold(database: Database) -> Finding:
    found: list[UUID] = []
    look = undelivered_ends.Look(undelivered_ends.FIRST, [])
    for _ in range(LOOKS):
        look = await undelivered_ends.look(database, look.last or undelivered_ends.FIRST)
        found += look.untold
        if look.last is None:
            break
    so_far = "" if look.last is None else f", of those up to {look.last}"
    if not found:
        return Finding("workflows", "good", f"all were told of every end{so_far}")
    says = f"{len(found)} wait for a run that ended or is gone{so_far}, and were never told: {found[0]}, for one"
    return Finding("workflows", "look", f"{says}. Were rows deleted or restored by hand? `teller` tells them")
