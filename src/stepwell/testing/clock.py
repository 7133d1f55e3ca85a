"""Skips time, for every session of a database at once: deadlines are compared with `stepwell.now()` alone."""

from __future__ import annotations

from datetime import timedelta

import asyncpg

from stepwell.model.duration import Duration, duration
from stepwell.store.statements import in_schema

_SHIFTABLE = """
create table if not exists stepwell.clock (skipped interval not null);
insert into stepwell.clock select interval '0' where not exists (select from stepwell.clock);
create or replace function stepwell.now() returns timestamptz
    language sql stable parallel safe
    as 'select pg_catalog.now() + (select skipped from stepwell.clock)';
"""
_SKIP = "update stepwell.clock set skipped = skipped + $1::interval"
_KEEP_WORKERS = """
update stepwell.workers set lease_until = lease_until + $1::interval
 where lease_until > stepwell.now() - $1::interval
"""
_KEEP_LEADERS = "update stepwell.leaders set until = until + $1::interval where until > stepwell.now() - $1::interval"
_RESTORE = """
create or replace function stepwell.now() returns timestamptz
    language sql stable parallel safe
    as 'select pg_catalog.now()';
drop table if exists stepwell.clock;
"""


class Clock:
    """The clock of one schema, in a database that is only for tests.

    >>> clock = Clock(app.dsn)
    >>> await clock.skip("3d")
    """

    def __init__(self, dsn: str, schema: str = "stepwell") -> None:
        self._dsn = dsn
        self._schema = schema

    async def skip(self, time: Duration, *, workers_live_on: bool = True) -> None:
        """Let this much time pass at once.

        Live workers keep their leases, as if they had renewed them all the while; without
        `workers_live_on` they are lost, and what they run is reaped.
        """
        length = duration(time, setting="skip")
        await self._execute(_SHIFTABLE)
        await self._execute(_SKIP, length)
        if workers_live_on:
            await self._execute(_KEEP_WORKERS, length)
            await self._execute(_KEEP_LEADERS, length)
        await self._execute("select pg_notify($1, '0')", f"{self._schema}_scheduled")

    async def restore(self) -> None:
        """Back to real time."""
        await self._execute(_RESTORE)

    async def _execute(self, sql: str, *values: timedelta | str) -> None:
        connection = await asyncpg.connect(self._dsn, statement_cache_size=0)  # perhaps through a pooler
        try:
            await connection.execute(in_schema(sql, self._schema), *values)
        finally:
            await connection.close()
