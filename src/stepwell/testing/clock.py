"""A clock that skips time, for every session of a schema at once: deadlines are compared with `stepwell.now()`
alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import asyncpg

from stepwell.config import settings
from stepwell.model.duration import Duration, duration
from stepwell.store.address import Address
from stepwell.store.statements import checked_schema, in_schema

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
_IS_SHIFTED = "select to_regclass('stepwell.clock') is not null"
_SKIPPED = "select skipped from stepwell.clock"
_ALONE = "select pg_advisory_xact_lock(hashtextextended('stepwell.clock', 0))"
# Transactions that write by the shifted clock end before the lock is granted. Later ones use the restored clock.
_LOCK = """
lock table stepwell.runs, stepwell.arrivals, stepwell.events, stepwell.keys, stepwell.queues, stepwell.workers,
           stepwell.leaders, stepwell.published, stepwell.checkpoints, stepwell.repeated_starts, stepwell.rate_uses
        in share row exclusive mode
"""
# Every time of a live row goes back by the skipped time, so that the rest of each wait and the age of each row stay
# the same.
_BACK = (
    """
    update stepwell.runs
       set due_at = due_at - $1::interval, expires_at = expires_at - $1::interval,
           deadline_at = deadline_at - $1::interval, created_at = created_at - $1::interval,
           started_at = started_at - $1::interval, paused_at = paused_at - $1::interval
    """,
    "update stepwell.arrivals set at = at - $1::interval",
    # The timers of a workflow are in its history.
    """
    update stepwell.events e
       set at = e.at - $1::interval,
           data = e.data || case when e.data ? 'when'
               then jsonb_build_object('when', (e.data ->> 'when')::timestamptz - $1::interval) else '{}' end
     where exists (select from stepwell.runs r where r.id = e.run_id)
    """,
    "update stepwell.keys set expires_at = expires_at - $1::interval",
    "update stepwell.queues set paused_at = paused_at - $1::interval where paused_at is not null",
    """
    update stepwell.workers
       set lease_until = lease_until - $1::interval, started_at = started_at - $1::interval,
           stopped_at = stopped_at - $1::interval, unrecorded_since = unrecorded_since - $1::interval
    """,
    "update stepwell.leaders set until = until - $1::interval",
    "update stepwell.published set at = at - $1::interval",
    "update stepwell.checkpoints set saved_at = saved_at - $1::interval",
    "update stepwell.repeated_starts set at = at - $1::interval",
)
_MAY_CHANGE = "alter table stepwell.events disable trigger events_never_change"
_RESTORE = """
alter table stepwell.events enable trigger events_never_change;
delete from stepwell.rate_uses;
delete from stepwell.worker_samples where at > pg_catalog.now();
create or replace function stepwell.now() returns timestamptz
    language sql stable parallel safe
    as 'select pg_catalog.now()';
update stepwell.clock set skipped = '0'; -- it stays: a statement that is under way may still look
"""
_TRIES = 10

Connection = Any  # the driver's class is generic in its stubs only


class Clock:
    """The clock of one schema, in a database that is only for tests. The end of the block restores real time.

    >>> async with Clock(app.dsn) as clock:
    ...     await clock.skip("3d")
    """

    def __init__(self, dsn: str, schema: str | None = None) -> None:
        """`schema` is found as an app finds it: the argument, else STEPWELL_SCHEMA, else the default."""
        self._address = Address(dsn)
        self._schema = checked_schema(settings(dsn, schema=schema).schema)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.restore()

    async def skip(self, time: Duration, *, workers_live_on: bool = True) -> None:
        """Let this much time pass at once. Skips add up.

        Live workers keep their leases, as if they had renewed them all the while. Without `workers_live_on` their
        leases end, and their runs are reaped.
        """
        length = duration(time, setting="skip")
        async with self._connection() as connection:
            async with connection.transaction():
                await self._execute(connection, _ALONE)
                await self._execute(connection, _SHIFTABLE)
                await self._execute(connection, _SKIP, length)
                if workers_live_on:
                    await self._execute(connection, _KEEP_WORKERS, length)
                    await self._execute(connection, _KEEP_LEADERS, length)
            await self._look_for_due(connection)

    async def restore(self) -> None:
        """Go back to real time, and shift all live rows with it, so that the rest of each wait stays the same. Without
        a skip, do nothing."""
        async with self._connection() as connection:
            for tries_left in reversed(range(_TRIES)):
                try:
                    await self._restore(connection)
                    break
                except asyncpg.DeadlockDetectedError:  # with the transaction of a worker
                    if not tries_left:
                        raise
            await self._look_for_due(connection)

    async def _restore(self, connection: Connection) -> None:
        async with connection.transaction():
            await self._execute(connection, _ALONE)
            if not await connection.fetchval(in_schema(_IS_SHIFTED, self._schema)):
                return
            skipped: timedelta = await connection.fetchval(in_schema(_SKIPPED, self._schema))
            if not skipped:
                return
            await self._execute(connection, _LOCK)
            await self._execute(connection, _MAY_CHANGE)
            for statement in _BACK:
                await self._execute(connection, statement, skipped)
            await self._execute(connection, _RESTORE)

    async def _look_for_due(self, connection: Connection) -> None:
        await connection.execute("select pg_notify($1, '0')", f"{self._schema}_scheduled")

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        connection = await self._address.connect(statement_cache_size=0)  # perhaps through a pooler
        try:
            yield connection
        finally:
            await connection.close()

    async def _execute(self, connection: Connection, sql: str, *values: timedelta | str) -> None:
        await connection.execute(in_schema(sql, self._schema), *values)
