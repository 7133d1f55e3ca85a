-- overview: what `stepwell doctor` and `stepwell dev` show. For people, not for the hot path.

-- name: server_facts
-- One row about the server: its clock, its connections, and transactions so old that vacuum cannot clean up.
select clock_timestamp() as clock,
       current_setting('server_version') as version,
       current_setting('server_version_num')::int / 10000 as major,
       current_setting('max_connections')::int as max_connections,
       pg_is_in_recovery() as is_standby,
       (select count(*) from pg_stat_activity a where a.backend_type = 'client backend') as connections,
       (select count(*) from pg_stat_activity a
         where a.xact_start < clock_timestamp() - :old::interval
           and a.backend_type = 'client backend') as old_transactions,
       (select extract(epoch from clock_timestamp() - min(a.xact_start))::float8 from pg_stat_activity a
         where a.backend_type = 'client backend') as oldest_transaction;

-- name: database_facts
-- The server's version, and what the database takes on disk.
select current_setting('server_version') as version, pg_database_size(current_database()) as size;

-- name: unrecorded_outcomes
-- Workers whose writes are refused, the one with the oldest failure first.
select w.name, w.unrecorded as outcomes, w.unrecorded_since as since, w.unrecorded_why as why
  from stepwell.workers w
 where w.unrecorded > 0
   and w.lease_until > stepwell.now()
 order by w.unrecorded_since, w.id;

-- name: work_facts
-- One row about the work: the workers and slots, and how long the oldest pending run has waited. The oldest is the
-- first of its queue, key and priority: it is found by skipping from one to the next. Skips and counts are bounded.
with recursive plain (queue, priority, created_at) as (
    (select r.queue, r.priority, r.created_at from stepwell.runs r
      where r.state = 'pending' and r.limit_key is null
      order by r.queue, r.priority, r.id limit 1)
     union all
    select n.*
      from plain p
     cross join lateral (select r.queue, r.priority, r.created_at from stepwell.runs r
                          where r.state = 'pending' and r.limit_key is null
                            and (r.queue, r.priority) > (p.queue, p.priority)
                          order by r.queue, r.priority, r.id limit 1) n
), keyed (queue, limit_key, priority, created_at) as (
    (select r.queue, r.limit_key, r.priority, r.created_at from stepwell.runs r
      where r.state = 'pending' and r.limit_key is not null
      order by r.queue, r.limit_key, r.priority, r.id limit 1)
     union all
    select n.*
      from keyed k
     cross join lateral (select r.queue, r.limit_key, r.priority, r.created_at from stepwell.runs r
                          where r.state = 'pending' and r.limit_key is not null
                            and (r.queue, r.limit_key, r.priority) > (k.queue, k.limit_key, k.priority)
                          order by r.queue, r.limit_key, r.priority, r.id limit 1) n
)
select (select count(*) from stepwell.workers w where w.lease_until > stepwell.now()) as workers,
       (select coalesce(sum(w.slots), 0) from stepwell.workers w where w.lease_until > stepwell.now()) as slots,
       (select count(*) from (select from stepwell.runs r where r.state = 'pending' and r.limit_key is null
                               limit 100000) p)
       + (select count(*) from (select from stepwell.runs r where r.state = 'pending' and r.limit_key is not null
                                 limit 100000) k) as pending,
       (select extract(epoch from stepwell.now() - min(f.created_at))::float8
          from ((select p.created_at from plain p limit 10000)
                 union all (select k.created_at from keyed k limit 10000)) f) as oldest_pending,
       (select count(*) from stepwell.runs r where r.claimed_by is not null) as running;

-- name: moving_runs
-- Live runs, newest first, and runs that finished in the last `since`, among the newest `:most`; no payload is read.
-- `failed` is the last attempt that ended with an error, whether or not it is retried.
(select r.id, r.kind::text as kind, stepwell.plain_name(r.name) as name, r.state, r.attempt, null::float8 as seconds,
        a.attempt as failed, a.error ->> 'type' as error, left(a.error ->> 'message', 1000) as message,
        extract(epoch from r.due_at - stepwell.now())::float8 as due_in
   from (select l.id, l.kind, l.name, l.state, l.attempt, l.due_at
           from stepwell.runs l
          order by l.id desc
          limit :limit) r
   left join lateral (select b.attempt, b.error
                        from stepwell.attempts b
                       where b.run_id = r.id
                         and b.attempt = case r.state when 'running' then r.attempt - 1 else r.attempt end
                         and b.outcome = 'failed'
                      offset 0) a on r.attempt > 0
  order by r.id desc)
union all
(select f.id, f.kind, stepwell.plain_name(f.name), f.state, f.attempt, extract(epoch from f.finished_at - f.started_at)::float8,
        f.attempt, f.error ->> 'type', left(f.error ->> 'message', 1000), null
   from (select * from stepwell.finished_runs f
          where f.finished_at > stepwell.now() - interval '1 day'
          order by f.id desc
          limit :most) f
  where f.finished_at > stepwell.now() - :since::interval
  order by f.id desc
  limit :limit);

-- name: count_runs
-- The number of runs in each state, each table counted up to `:most`.
select s.state, count(*) as runs
  from ((select r.state from stepwell.runs r limit :most)
         union all
        (select f.state from stepwell.finished_runs f limit :most)
         union all
        (select k.state from stepwell.kept_runs k limit :most)) s
 group by s.state;

-- name: blocked_workflows
-- Workflows whose code does not fit their history, by name, among up to `:most`; since when, and one of them.
select stepwell.plain_name(b.name) as name, count(*) as runs,
       min((b.blocked ->> 'at')::timestamptz) as since, (array_agg(b.id order by b.id))[1] as id
  from (select r.id, r.name, r.blocked
          from stepwell.runs r
         where r.blocked is not null
         order by r.name
         limit :most) b
 group by 1
 order by 2 desc, 1;

-- name: fronts
-- The first pending runs of every queue, priority and limit key, by queue and name. A run that nobody claims stays at
-- the front of its line, so it is found there, however long the line is.
with recursive plain (queue, priority) as (
    (select r.queue, r.priority from stepwell.runs r
      where r.state = 'pending' and r.limit_key is null
      order by r.queue, r.priority, r.id limit 1)
     union all
    select n.*
      from plain p
     cross join lateral (select r.queue, r.priority from stepwell.runs r
                          where r.state = 'pending' and r.limit_key is null
                            and (r.queue, r.priority) > (p.queue, p.priority)
                          order by r.queue, r.priority, r.id limit 1) n
), keyed (queue, limit_key, id, name, created_at) as (
    (select r.queue, r.limit_key, r.id, r.name, r.created_at from stepwell.runs r
      where r.state = 'pending' and r.limit_key is not null
      order by r.queue, r.limit_key, r.priority, r.id limit 1)
     union all
    select n.*
      from keyed k
     cross join lateral (select r.queue, r.limit_key, r.id, r.name, r.created_at from stepwell.runs r
                          where r.state = 'pending' and r.limit_key is not null
                            and (r.queue, r.limit_key) > (k.queue, k.limit_key)
                          order by r.queue, r.limit_key, r.priority, r.id limit 1) n
), first (id, queue, name, created_at) as (
    (select f.id, f.queue, f.name, f.created_at from (select * from plain limit 1000) p
      cross join lateral (select r.id, r.queue, r.name, r.created_at, r.priority from stepwell.runs r
                           where r.state = 'pending' and r.limit_key is null
                             and (r.queue, r.priority) >= (p.queue, p.priority) -- not `=`, which would let the planner sort
                           order by r.queue, r.priority, r.id limit :each) f
      where f.queue = p.queue and f.priority = p.priority)
     union all
    (select k.id, k.queue, k.name, k.created_at from keyed k limit 1000)
)
select f.queue, f.name, count(*) as runs, extract(epoch from stepwell.now() - min(f.created_at))::float8 as waited,
       (array_agg(f.id order by f.id))[1] as id
  from first f
 group by f.queue, f.name
 order by f.queue, f.name;

-- name: untaken_signals
-- Workflows among the newest live runs that wait for a signal, and that have received others which their code has not
-- taken.
select w.id, stepwell.plain_name(w.name) as name, w.waits_for, count(*) over () as runs
  from (select r.id, r.name, r.state, r.waits_for
          from stepwell.runs r
         order by r.id desc
         limit :most) w
 where w.state = 'waiting'
   and jsonb_exists(w.waits_for, 'untaken')
   and w.waits_for -> 'signals' <> '[]'
 order by w.id
 limit :limit;
