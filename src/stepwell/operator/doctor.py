"""Checks of everything that work needs. Each finding is one subject, with its verdict."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from stepwell.config import Settings
from stepwell.engine import undelivered_ends
from stepwell.model.dsn import read_dsn
from stepwell.model.errors import SchemaError
from stepwell.model.wording import age
from stepwell.operator import standstill
from stepwell.operator.findings import DoctorFinding, Verdict
from stepwell.store import migrate
from stepwell.store.pool import Database

SKEW = 5.0
OLD_TRANSACTION = timedelta(minutes=5)
LONG_PENDING = 60.0
LATE = timedelta(minutes=1)
MOST = 10_000
"""The limit up to which late runs are counted."""
MOST_PENDING = 100_000
"""The limit up to which pending runs are counted, those with a limit key and those without."""
MANY_DEAD = 100_000
"""Dead rows that vacuum may leave, besides a fifth of those that live."""
SERVICES = ("due", "partitions", "reaper", "teller")
LOOKS = 20
"""Looks for workflows that were not told what they wait for."""


def place_of(settings: Settings) -> str:
    """Name the place of the database for a message: host, port and name, and never a password."""
    if settings.dsn is None:
        return f"{settings.home} (embedded)"
    return str(read_dsn(settings.dsn))


async def examine(database: Database, found: Settings) -> list[DoctorFinding]:
    """Look at the server, and as far as the schema is of this version at the work in it."""
    asked = time.monotonic()
    server = dict((await database.rows("server_facts", old=OLD_TRANSACTION))[0])
    took, now = time.monotonic() - asked, datetime.now(UTC)
    milliseconds = took * 1000
    where = f"{place_of(found)}, {milliseconds:.0f} ms"
    findings = [DoctorFinding("connection", "good", where, {"milliseconds": milliseconds})]
    findings += [_of_pooler(found, is_pooled=database.is_pooled), *_of_server(server, now)]
    try:
        current, latest = await migrate.version(database), migrate.latest(found.schema)
    except SchemaError as error:
        return [*findings, DoctorFinding("schema", "bad", str(error))]
    versions = {"schema": found.schema, "version": current, "latest": latest}
    if current < latest:
        needed = f"{found.schema} is at version {current}, {latest} is needed: run `stepwell migrate`"
        return [*findings, DoctorFinding("schema", "bad", needed, versions)]
    findings.append(DoctorFinding("schema", "good", f"{found.schema}, version {current}", versions))
    return [*findings, *await _of_tables(database)]


async def _of_tables(database: Database) -> list[DoctorFinding]:
    """Findings that only a schema of this version can give."""

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


def _of_pooler(found: Settings, *, is_pooled: bool) -> DoctorFinding:
    how = "found out" if found.pooler is None else "as it was told"
    if not is_pooled:
        return DoctorFinding("pooler", "good", f"none, {how}", {"pooled": False})
    costs = "workers poll instead of listening. If it lends whole sessions, say STEPWELL_POOLER=0"
    return DoctorFinding(
        "pooler", "good", f"one that lends sessions for a transaction, {how}: {costs}", {"pooled": True}
    )


def _of_server(server: Mapping[str, Any], now: datetime) -> Iterator[DoctorFinding]:
    wrong = ", a standby that takes no writes" if server["is_standby"] else ""
    if server["major"] < migrate.OLDEST_POSTGRES:
        wrong += f", and {migrate.OLDEST_POSTGRES} or newer is needed"
    about = {"version": server["version"], "is_standby": server["is_standby"]}
    yield DoctorFinding("server", "bad" if wrong else "good", f"Postgres {server['version']}{wrong}", about)
    skew = (server["clock"] - now).total_seconds()
    says = f"the server's is {skew:+.2f} s from this one"
    yield DoctorFinding("clock", "good" if abs(skew) < SKEW else "look", says, {"skew": skew})
    used, most = server["connections"], server["max_connections"]
    verdict: Verdict = "good" if used < most * 0.9 else "look"
    yield DoctorFinding("connections", verdict, f"{used} of {most}", {"used": used, "most": most})
    old, oldest = server["old_transactions"], age(server["oldest_transaction"] or 0.0)
    hint = ": they keep vacuum from cleaning, and claims become slow" if old else ""
    yield DoctorFinding(
        "transactions",
        "look" if old else "good",
        f"{old} older than {age(OLD_TRANSACTION.total_seconds())}, the oldest {oldest}{hint}",
        {"old": old, "oldest": server["oldest_transaction"]},
    )


def _of_work(work: Mapping[str, Any]) -> Iterator[DoctorFinding]:
    workers, slots, waited = work["workers"], work["slots"], work["oldest_pending"]
    idle = "" if workers or not work["pending"] else ": nobody takes what is pending, start `stepwell worker`"
    alive = f"{workers} alive with {slots} slots{idle}"
    yield DoctorFinding("workers", "bad" if idle else "good", alive, {"workers": workers, "slots": slots})
    long = waited is not None and waited > LONG_PENDING
    oldest = "" if waited is None else f", the oldest started {age(waited)} ago"
    pending = work["pending"] if work["pending"] < MOST_PENDING else f"at least {work['pending']}"
    says = f"{work['running']} running, {pending} pending{oldest}"
    facts = {"running": work["running"], "pending": work["pending"], "oldest_pending": waited}
    yield DoctorFinding("runs", "look" if long else "good", says, facts)


def _of_vacuum(vacuum: Mapping[str, Any]) -> DoctorFinding:
    if not vacuum["autovacuum"] or not vacuum["track_counts"]:
        off = "autovacuum" if not vacuum["autovacuum"] else "track_counts"
        return DoctorFinding(
            "autovacuum", "bad", f"{off} is off on this server: claims become slow as dead rows pile up"
        )
    if vacuum["switched_off"]:
        return DoctorFinding("autovacuum", "bad", "it is switched off for the table of runs: claims become slow")
    last = "never vacuumed yet" if vacuum["vacuumed"] is None else f"vacuumed {age(vacuum['vacuumed'])} ago"
    many = vacuum["dead"] > MANY_DEAD + vacuum["alive"] / 5
    hint = ": is a long transaction in its way?" if many else ""
    says = f"{vacuum['dead']} dead rows among the runs, {last}{hint}"
    facts = {"dead": vacuum["dead"], "alive": vacuum["alive"], "vacuumed": vacuum["vacuumed"]}
    return DoctorFinding("autovacuum", "look" if many else "good", says, facts)


def _of_leases(lost: Mapping[str, Any]) -> DoctorFinding:
    if not lost["workers"]:
        return DoctorFinding("leases", "good", "no claim is without a lease")
    longest = lost["longest"]
    since = "" if longest is None else f", the longest for {age(longest)}"
    # The reaper looks every few seconds: what is there for longer has nobody to reap it.
    bad = longest is None or longest > LATE.total_seconds()
    says = f"{lost['runs']} runs are held by {lost['workers']} workers whose lease ended{since}: they wait to be reaped"
    return DoctorFinding("leases", "bad" if bad else "look", says, dict(lost))


def _of_outcomes(found: Sequence[Mapping[str, Any]]) -> Iterator[DoctorFinding]:
    if not found:
        yield DoctorFinding("outcomes", "good", "every worker records them")
    for each in found:
        count = f"{each['outcomes']} outcome{'' if each['outcomes'] == 1 else 's'}"
        since = each["since"].astimezone(UTC)
        yield DoctorFinding(
            "outcomes",
            "bad",
            f"worker {each['name']} cannot record {count}, since {since:%Y-%m-%d %H:%M:%S} UTC: {each['why']}. "
            "The runs stay running, and it tries again",
            dict(each),
        )


def _of_services(led: Collection[str], *, workers: int) -> DoctorFinding:
    missing = [service for service in SERVICES if service not in led]
    if not missing:
        return DoctorFinding("services", "good", f"{', '.join(SERVICES)} are led")
    says = f"nobody leads {', '.join(missing)}"
    says += ": wait half a lease" if workers else ": start `stepwell worker`"
    return DoctorFinding("services", "look", says, {"missing": missing})


def _of_late(late: Mapping[str, Any]) -> DoctorFinding:
    found = {word: count for word, count in late.items() if count}
    if not found:
        return DoctorFinding("due", "good", "nothing is late")
    told = ", ".join(f"{count if count < MOST else f'at least {count}'} {word}" for word, count in found.items())
    return DoctorFinding(
        "due",
        "bad",
        f"late by more than {age(LATE.total_seconds())} and not moved: {told}; is a worker running?",
        dict(found),
    )


async def _of_untold(database: Database) -> DoctorFinding:
    found: list[UUID] = []
    look = undelivered_ends.Scan(undelivered_ends.FIRST, [])
    for _ in range(LOOKS):
        look = await undelivered_ends.look(database, look.last or undelivered_ends.FIRST)
        found += look.untold
        if look.last is None:
            break
    so_far = "" if look.last is None else f", of those up to {look.last}"
    if not found:
        return DoctorFinding("workflows", "good", f"all were told of every end{so_far}")
    says = f"{len(found)} wait for a run that ended or is gone{so_far}, and were never told: {found[0]}, for one"
    text = f"{says}. Were rows deleted or restored by hand? `teller` tells them"
    return DoctorFinding("workflows", "look", text, {"count": len(found), "run": found[0]})
