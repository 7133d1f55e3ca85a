"""The workflows of the big database: some thousand that wait, with their histories in the days of their starts, and
a few that are larger than a workflow should be.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID, uuid4

import asyncpg

WAITING, EVENTS = 5000, 20
LONG, LONG_EVENTS = 5, 5000
CHILDREN = 10_000
"""Of one workflow. Half of them it has asked to end already."""
MANY = 1000
"""Turns that are held, and runs that have just ended: more than one batch."""
GONE = 1000
"""What was published by runs that are no longer kept."""

# Those that wait are the oldest runs of all and those in a turn the newest: who goes along the ids passes everything.
# None is due while the tests run, and no other case reads their queue.
_LIVE = f"""
insert into stepwell.runs (
    id, kind, name, queue, priority, state, input, retry, attempt, due_at, recorded, arrived, waits_for
)
select public.id_at(current_date - (1 + n % 7) * interval '1 day', n), 'workflow', 'flow_' || n % 20, 'flows', 50,
       case when n % 50 = 0 then 'paused' else 'waiting' end, '{{}}', '{{}}', 1,
       case when n % 2 = 0 then now() + interval '30 days' + n * interval '1 s' end, {EVENTS}, 10,
       '{{"runs": ["task_1"], "signals": []}}'
  from generate_series(1, {WAITING}) n;
insert into stepwell.runs (
    id, kind, name, queue, priority, state, input, retry, attempt, claim_id, claimed_by, started_at, recorded, arrived
)
select public.id_at(now() - interval '10 minutes', n), 'workflow', 'turning_flow', 'flows', 50, 'running', '{{}}',
       '{{}}', 1, md5((n / 100)::text)::uuid, lpad(to_hex(2), 32, '0')::uuid, now(), {EVENTS}, 3
  from generate_series(1, {MANY}) n;
insert into stepwell.runs (
    id, kind, name, queue, priority, state, input, retry, attempt, recorded, arrived, blocked
)
select public.id_at(now() - interval '7 hours', n), 'workflow', 'blocked_flow_' || n % 20, 'flows', 50, 'waiting',
       '{{}}', '{{}}', 1, {EVENTS}, 3,
       jsonb_build_object('version', 'old', 'worker', lpad(to_hex(2), 32, '0')::uuid)
  from generate_series(1, 2000) n;
insert into stepwell.runs (id, kind, name, queue, priority, state, input, retry, attempt, recorded, arrived)
select public.id_at(now() - interval '8 hours', n), 'workflow', 'long_flow', 'flows', 50, 'waiting', '{{}}', '{{}}', 1,
       {LONG_EVENTS}, {LONG_EVENTS} / 2
  from generate_series(1, {LONG}) n;
insert into stepwell.runs (id, kind, name, queue, priority, state, input, retry, attempt, recorded, arrived)
values (public.id_at(now() - interval '9 hours', 0), 'workflow', 'wide_flow', 'flows', 50, 'waiting', '{{}}', '{{}}', 1,
        {CHILDREN} * 3 / 2 + 1, 0);
insert into stepwell.runs (id, name, queue, priority, state, input, retry, due_at, parent_id, root_id, node)
select public.id_at(now() - interval '9 hours', n), 'task_1', 'flows', 50, 'scheduled', '{{}}', '{{}}',
       now() + interval '60 days', p.id, p.id, n
  from generate_series(1, {CHILDREN}) n, (select id from stepwell.runs where name = 'wide_flow') p;
"""

_HISTORIES = f"""
insert into stepwell.events (run_id, idx, type, at, data)
select r.id, n, case when n = 1 then 'WorkflowStarted' when n % 2 = 0 then 'TaskScheduled' else 'TaskCompleted' end,
       now(), jsonb_build_object('command', n / 2, 'run', public.id_at(now() - interval '3 days', n))
  from stepwell.runs r, generate_series(1, {LONG_EVENTS}) n
 where r.kind = 'workflow' and r.name <> 'wide_flow' and n <= r.recorded;
insert into stepwell.events (run_id, idx, type, at, data)
select r.parent_id, r.node::int, 'TaskScheduled', now(), jsonb_build_object('command', r.node::int, 'run', r.id)
  from stepwell.runs r where r.parent_id is not null;
insert into stepwell.events (run_id, idx, type, at, data)
select r.parent_id, {CHILDREN} + r.node::int, 'TaskCancelled', now(),
       jsonb_build_object('command', r.node::int, 'run', r.id)
  from stepwell.runs r where r.parent_id is not null and r.node::int <= {CHILDREN} / 2;
insert into stepwell.arrivals (run_id, place, type, at, data)
select r.id, n, 'SignalReceived', now(), jsonb_build_object('name', 'more', 'id', gen_random_uuid())
  from stepwell.runs r, generate_series(1, 3) n where r.name = 'turning_flow' or r.name like 'blocked_flow%';
insert into stepwell.published (run_id, state, at)
select r.id, '{{"done": 7}}'::jsonb, now() from stepwell.runs r where r.kind = 'workflow'
 union all
select public.id_at(now() - interval '40 days', n), '{{"done": 7}}', now() from generate_series(1, {GONE}) n;
"""

# Newer than the million that had finished before, also in the first hours of a day.
_TODAY = "greatest(now() - interval '10 hours', current_date::timestamp at time zone 'UTC')"

# Ended, as a statement sees it that runs in the transaction which ends them: not before that began.
_ENDED = f"""
insert into stepwell.finished_runs (
    id, kind, name, queue, priority, state, input, result, retry, attempt, failures, created_at, finished_at,
    parent_id, root_id, node
)
select public.id_at({_TODAY}, n::int), 'task', 'task_1', 'flows', 50, 'completed', '{{}}', 'true',
       '{{}}', 1, 0, now(), now() + interval '1 hour', p.id, p.id, 1
  from (select r.id, row_number() over (order by md5(r.id::text)) as n
          from stepwell.runs r where r.name = 'turning_flow' or r.name like 'flow%' and r.state = 'waiting'
         order by n limit {MANY}) p;
insert into stepwell.finished_runs (
    id, kind, name, queue, priority, state, input, retry, attempt, failures, created_at, finished_at
)
select public.id_at({_TODAY} + interval '1 minute', n), 'workflow', 'ended_flow', 'flows', 50, 'cancelled', '{{}}',
       '{{}}', 1, 0, now(), now() + interval '1 hour'
  from generate_series(1, {MANY}) n;
insert into stepwell.events (run_id, idx, type, at, data)
select f.id, n, 'TaskScheduled', now(), jsonb_build_object('command', n, 'run', f.id)
  from stepwell.finished_runs f, generate_series(1, {EVENTS}) n where f.name = 'ended_flow';
insert into stepwell.published (run_id, state, at)
select f.id, '{{"done": 7}}'::jsonb, now() from stepwell.finished_runs f where f.name = 'ended_flow'
 union all
(select k.id, '{{"done": 7}}', now() from stepwell.kept_runs k limit 100);
"""

FILLED = (_LIVE, _HISTORIES, _ENDED)


@dataclass(frozen=True, slots=True)
class Workflows:
    """Some of each kind."""

    turning: list[UUID]
    claims: list[UUID]
    waiting: list[UUID]
    paused: list[UUID]
    blocked: list[UUID]
    long: UUID
    wide: UUID
    children: list[UUID]
    """Of the wide one, that it has not asked to end."""
    ended_tasks: list[UUID]
    ended: list[UUID]


def no_workflows() -> Workflows:
    return Workflows(*([uuid4()] for _ in range(5)), uuid4(), uuid4(), *([uuid4()] for _ in range(3)))


async def workflows(connection: asyncpg.Connection, count: int) -> Workflows:
    async def some(where: str, table: str = "runs", most: int = count) -> list[UUID]:
        query = f"select id from stepwell.{table} where {where} order by id limit {most}"
        return [row["id"] for row in await connection.fetch(query)]

    turning = await some("name = 'turning_flow'")
    claims = await connection.fetch("select claim_id from stepwell.runs where id = any($1) order by id", turning)
    return Workflows(
        turning,
        [row["claim_id"] for row in claims],
        await some("name like 'flow%' and state = 'waiting'"),
        await some("name like 'flow%' and state = 'paused'"),
        await some("name like 'blocked_flow%'"),
        (await some("name = 'long_flow'"))[0],
        (await some("name = 'wide_flow'"))[0],
        (await some("parent_id is not null and queue = 'flows'", most=CHILDREN))[CHILDREN // 2 :],
        await some("name = 'task_1' and queue = 'flows'", "finished_runs"),
        await some("name = 'ended_flow'", "finished_runs"),
    )
