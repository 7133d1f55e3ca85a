"""One look at every pinned statement in every circumstance in which a session may have planned it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import big_database
from big_database import Ids
from big_workflows import no_workflows
from cases_beside import BESIDE
from cases_workflows import WORKFLOWS
from plan_cases import BATCH, HOT_PATH
from plan_reading import Reading, Session

from stepwell.store import migrate
from stepwell.store.pool import Database

CASES = HOT_PATH | BESIDE | WORKFLOWS
VETERAN = "planned on empty tables"
"""A session that prepared its statements before there was a row, and keeps those plans."""
FOUND_EMPTY = "planned on tables that were vacuumed while empty"
EMPTIED = "planned on tables that were emptied, and analysed then"
"""Of these the planner believes that nothing is in them, and not only that nothing is known of them."""
PASTS: dict[str, Sequence[str]] = {
    VETERAN: (),
    FOUND_EMPTY: ("vacuum analyze",),
    EMPTIED: (big_database.SOME_PENDING, "delete from stepwell.runs", "analyze"),
}
UNANALYSED = ("never analysed, generic plan", "never analysed, custom plan")
ANALYSED = ("analysed, generic plan", "analysed, custom plan")
CIRCUMSTANCES = (*PASTS, *UNANALYSED, *ANALYSED)


@dataclass(frozen=True, slots=True)
class Survey:
    dsn: str
    server: int
    """The major version of Postgres."""
    ids: Ids
    readings: dict[str, dict[str, Reading]]
    """By circumstance and case."""
    costs_when_empty: dict[str, float]


async def make_survey(server: str) -> Survey:
    """Read every plan in every circumstance. Each past has a database of its own; that of the first stays."""
    kept = await _database(server)
    readings, when_empty, ids = await _survey_past(VETERAN, kept)
    for past in (FOUND_EMPTY, EMPTIED):
        gone = await _database(server)
        readings |= (await _survey_past(past, gone))[0]
        await drop(server, gone)
    for circumstances in (UNANALYSED, ANALYSED):
        if circumstances is ANALYSED:
            await on_server(kept, "analyze")
        for circumstance in circumstances:
            newcomer = await session(kept, circumstance.split()[-2])
            readings[circumstance] = await _explain_all(newcomer, ids)
            major = newcomer.connection.get_server_version().major
            await newcomer.connection.close()
    return Survey(kept, major, ids, readings, {title: each.cost for title, each in when_empty.items()})


async def _survey_past(past: str, dsn: str) -> tuple[dict[str, dict[str, Reading]], dict[str, Reading], Ids]:
    """What a session reads, that made its plans before the tables were filled, and what it read then."""
    await big_database.empty(dsn)
    for statement in PASTS[past]:
        await on_server(dsn, statement)
    veteran = await session(dsn, "generic")
    nothing = Ids(*([uuid.uuid4()] for _ in range(5)), no_workflows())
    when_empty = await _explain_all(veteran, nothing)
    await big_database.fill(dsn)
    ids = await big_database.ids(dsn, BATCH)
    readings = await _explain_all(veteran, ids)
    await veteran.connection.close()
    return {past: readings}, when_empty, ids


async def _database(server: str) -> str:
    """Not a copy of the tests' template: what others rolled back there may have had it vacuumed, or analysed."""
    name = f"plans_{uuid.uuid4().hex[:12]}"
    dsn = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    await on_server(server, f"create database {name}")
    await migrate.migrate(Database(dsn, "stepwell"))
    return dsn


async def drop(server: str, dsn: str) -> None:
    await on_server(server, f"drop database {urlsplit(dsn).path[1:]} with (force)")


async def _explain_all(session: Session, ids: Ids) -> dict[str, Reading]:
    return {title: await session.explain(case.statement, **case.values(ids)) for title, case in CASES.items()}


async def session(dsn: str, kind: str = "generic") -> Session:
    """A session with the settings of the pool, that makes one kind of plan."""
    database = Database(dsn, "stepwell")
    connection = await database.connect(answer=None, plan_cache_mode=f"force_{kind}_plan")
    return Session(connection, database.statements)


async def on_server(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
