"""One look at every pinned statement in every circumstance in which a session may have planned it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import asyncpg
import big_database
from big_database import Ids
from big_workflows import no_workflows
from cases_beside import BESIDE
from cases_workflows import WORKFLOWS
from plan_cases import BATCH, HOT_PATH
from plan_reading import Reading, Session

from stepwell.store.pool import Database

CASES = HOT_PATH | BESIDE | WORKFLOWS
VETERAN = "planned on empty tables"
"""A session that prepared its statements before there was a row, and keeps those plans."""
UNANALYSED = ("never analysed, generic plan", "never analysed, custom plan")
ANALYSED = ("analysed, generic plan", "analysed, custom plan")
CIRCUMSTANCES = (VETERAN, *UNANALYSED, *ANALYSED)


@dataclass(frozen=True, slots=True)
class Survey:
    dsn: str
    server: int
    """The major version of Postgres."""
    ids: Ids
    readings: dict[str, dict[str, Reading]]
    """By circumstance and case."""
    costs_when_empty: dict[str, float]


async def make_survey(dsn: str) -> Survey:
    """Fill the empty database, and read every plan in every circumstance."""
    await big_database.empty(dsn)
    veteran = await session(dsn, "generic")
    nothing = Ids(*([uuid.uuid4()] for _ in range(5)), no_workflows())
    when_empty = await _explain_all(veteran, nothing)
    await big_database.fill(dsn)
    ids = await big_database.ids(dsn, BATCH)
    readings = {VETERAN: await _explain_all(veteran, ids)}
    server = veteran.connection.get_server_version().major
    await veteran.connection.close()
    for circumstances in (UNANALYSED, ANALYSED):
        if circumstances is ANALYSED:
            await on_server(dsn, "analyze")
        for circumstance in circumstances:
            newcomer = await session(dsn, circumstance.split()[-2])
            readings[circumstance] = await _explain_all(newcomer, ids)
            await newcomer.connection.close()
    return Survey(dsn, server, ids, readings, {title: each.cost for title, each in when_empty.items()})


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
