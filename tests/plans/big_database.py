"""A database as large as a queue may get, made once for all plan tests: a million pending, a million
scheduled and a million finished runs.

Ids, due times and finish times rise with the rows, as they do in life, so the indexes fill from one end
and need not be dropped for the load: a session that made its plans on the empty tables keeps them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg
from big_workflows import FILLED, Workflows, workflows

PENDING = SCHEDULED = FINISHED = 1_000_000
PAST_DAYS = 8
PACE = (PAST_DAYS * 24 - 3) * 3_600_000 // FINISHED
"""Milliseconds from one finished run to the next."""
QUEUES = ("bulk", "events", "mail", "media", "reports")
NAMES = tuple(f"task_{number}" for number in range(20))
OURS, LOST = UUID(int=1), UUID(int=0xFF)
OTHER_WORKERS = 50
"""Workers that live and hold claims, besides ours and the lost one."""

# Vacuum and ANALYZE would replan, and give statistics to tables that are to have none.
_BEFORE = f"""
select stepwell.make_partition(parent, current_date - day)
  from generate_series(1, {PAST_DAYS}) day,
       unnest(array['finished_runs', 'attempts', 'events', 'progress', 'run_logs']) parent;
do $$
declare leaf regclass;
begin
    for leaf in select c.oid from pg_class c
                 where c.relnamespace = 'stepwell'::regnamespace and c.relkind = 'r' loop
        execute format('alter table %s set (autovacuum_enabled = off)', leaf);
    end loop;
end $$;
create function public.id_at(moment timestamptz, n int) returns uuid language sql stable as $$
    select (lpad(to_hex((extract(epoch from moment) * 1000)::bigint + n), 12, '0') || '70008000000000000000')::uuid
$$;
"""

_WORKERS = f"""
insert into stepwell.workers (id, name, host, pid, version, slots, lease_until)
select lpad(to_hex(n), 32, '0')::uuid, 'worker', 'host', n, '1', 100,
       now() + case n when 255 then interval '-1 hour' else interval '1 day' end
  from generate_series(1, 255) n where n <= {OTHER_WORKERS} + 1 or n = 255;
"""

# One in fifty expires, a thousand of them have; all of these are in the first queue.
_PENDINGS = f"""
insert into stepwell.runs (id, name, queue, priority, state, input, retry, expires_at)
select public.id_at(now() - interval '2 hours', n), 'task_' || n % 20, (array{list(QUEUES)})[n % 5 + 1],
       50 + n % 2, 'pending', '{{{{"to": "someone@example.com", "subject": "Welcome"}}}}', '{{{{}}}}',
       case when n % 50 = 0 then now() + (n - 50000) * interval '1 s' end
  from generate_series(1, {{count}}) n;
"""
_PENDING = _PENDINGS.format(count=PENDING)
SOME_PENDING = _PENDINGS.format(count=100_000)

# A queue with a cap, of which half is running, and one with a thousand keys; neither counts among QUEUES.
_LIMITED = """
insert into stepwell.queues (name, concurrency, keyed) values ('narrow', 300, false), ('tenants', null, true);
insert into stepwell.runs (id, name, queue, priority, state, input, retry, limit_key, per_key)
select public.id_at(now() - interval '4 hours', n), 'task_1', case when n % 2 = 0 then 'narrow' else 'tenants' end,
       50, 'pending', '{}', '{}', case when n % 2 = 1 then 'tenant ' || n % 2000 end, case when n % 2 = 1 then 2 end
  from generate_series(1, 200000) n;
insert into stepwell.runs (
    id, name, queue, priority, state, input, retry, attempt, claim_id, claimed_by, started_at, slot
)
select public.id_at(now() - interval '5 hours', n), 'task_1', 'narrow', 50, 'running', '{}', '{}', 1,
       md5((n / 100)::text)::uuid, lpad(to_hex(2), 32, '0')::uuid, now(), ''
  from generate_series(1, 150) n;
"""

# A tenth of the running runs are ours and a tenth the lost worker's.
_RUNNING = f"""
insert into stepwell.runs (id, name, queue, priority, state, input, retry, attempt, claim_id, claimed_by, started_at)
select public.id_at(now() - interval '90 minutes', n), 'task_' || n % 20, (array{list(QUEUES)})[n % 5 + 1],
       50, 'running', '{{"to": "someone@example.com", "subject": "Welcome"}}', '{{}}', 1,
       md5((n / 100)::text)::uuid,
       lpad(to_hex(case n % 10 when 0 then 1 when 1 then 255 else 2 + n % {OTHER_WORKERS} end), 32, '0')::uuid, now()
  from generate_series(1, 10000) n;
"""

# Five thousand are due, and none of the others will be while the tests run.
_SCHEDULED = f"""
insert into stepwell.runs (id, name, queue, priority, state, input, retry, due_at)
select public.id_at(now() - interval '1 hour', n), 'task_' || n % 20, (array{list(QUEUES)})[n % 5 + 1],
       50, 'scheduled', '{{"to": "someone@example.com", "subject": "Welcome"}}', '{{}}',
       now() + (n - 5000) * interval '1 s' + case when n > 5000 then interval '1 hour' else interval '0' end
  from generate_series(1, {SCHEDULED}) n;
"""

# The last finished three hours before today began. One in a hundred is not to be kept.
_FINISHED = f"""
insert into stepwell.finished_runs (
    id, kind, name, queue, priority, state, input, result, retry, attempt, failures, claim_id, claimed_by,
    started_at, created_at, finished_at, keep
)
select public.id_at(first, n * {PACE}), 'task', 'task_' || n % 20, (array{list(QUEUES)})[n % 5 + 1], 50, 'completed',
       '{{"to": "someone@example.com", "subject": "Welcome"}}', 'true', '{{}}', 2, 1, md5((n / 100)::text)::uuid,
       lpad(to_hex(2 + n % {OTHER_WORKERS}), 32, '0')::uuid, at, at, at + interval '1 s',
       case when n % 100 = 0 then 'none' end
  from (select current_date::timestamp at time zone 'UTC' - interval '{PAST_DAYS} days' as first) f,
       generate_series(1, {FINISHED}) n, lateral (select first + n * interval '{PACE} ms' as at) a;
insert into stepwell.attempts
select id, 1, 'released', null, claim_id, claimed_by, started_at, finished_at
  from stepwell.finished_runs where priority = 50 and name = 'task_3';
insert into stepwell.keys
select 'order ' || n, 'digest', public.id_at(now(), n), now() + n * interval '1 s' from generate_series(1, 100000) n;
"""

# What the finished runs of one name said, what the running ones saved, and what was saved by runs that are gone.
_NOTED = """
insert into stepwell.progress (run_id, step, attempt, done, total, at)
select id, 'load', 1, 3, 4, finished_at from stepwell.finished_runs where name = 'task_3';
insert into stepwell.run_logs (run_id, attempt, idx, at, level, logger, message)
select id, n, 0, finished_at, 'info', 'shop', 'a line of some length, as lines are'
  from stepwell.finished_runs, generate_series(1, 2) n where name = 'task_3';
insert into stepwell.checkpoints (run_id, version, schema, attempt, state, saved_at)
select id, 1, 1, 1, '{"done": 7}'::jsonb, now() from stepwell.runs where claimed_by is not null
 union all
select public.id_at(now() - interval '2 days', n), 1, 1, 1, '{"done": 7}', now() from generate_series(1, 5000) n;
insert into stepwell.kept_runs (
    id, kind, name, queue, priority, state, input, result, retry, attempt, failures, created_at, finished_at, keep
)
select public.id_at(now() - interval '1 year', n), 'task', 'task_1', 'mail', 50, 'completed', '{}', 'true', '{}', 1, 0,
       now() - interval '1 year', now() - interval '1 year', 'forever'
  from generate_series(1, 10000) n;
"""


@dataclass(frozen=True, slots=True)
class Ids:
    """Some runs of each kind, from the middle of their tables."""

    pending: list[UUID]
    running: list[UUID]
    claims: list[UUID]
    finished: list[UUID]
    finished_claims: list[UUID]
    workflows: Workflows


async def empty(dsn: str) -> None:
    """Make the partitions, and stop what would analyse the tables on its own."""
    await _speak(dsn, [_BEFORE])


async def fill(dsn: str) -> None:
    """Two connections, since there are two cores."""
    await asyncio.gather(
        _speak(dsn, [_WORKERS, _PENDING, _SCHEDULED, _LIMITED]),
        _speak(dsn, [_FINISHED, _RUNNING, _NOTED, *FILLED]),
    )


async def ids(dsn: str, count: int) -> Ids:
    connection = await asyncpg.connect(dsn)
    try:
        pending = await connection.fetch(
            "select id from stepwell.runs where state = 'pending' and queue = 'media' offset 50000 limit $1", count
        )
        running = await connection.fetch(
            "select id, claim_id from stepwell.runs where claimed_by = $1 order by id limit $2", OURS, count
        )
        finished = await connection.fetch(
            """select id, claim_id from stepwell.finished_runs tablesample system (1)
              where name = 'task_3' order by md5(id::text) limit $1""",
            count,
        )
        flows = await workflows(connection, count)
    finally:
        await connection.close()
    return Ids(
        [row["id"] for row in pending],
        [row["id"] for row in running],
        [row["claim_id"] for row in running],
        [row["id"] for row in finished],
        [row["claim_id"] for row in finished],
        flows,
    )


async def _speak(dsn: str, statements: Sequence[str]) -> None:
    connection = await asyncpg.connect(dsn, server_settings={"synchronous_commit": "off"})
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
