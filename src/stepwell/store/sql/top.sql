-- top: what `stepwell top` and `stepwell doctor` show besides queues and workers. For people, not for the hot path.

-- name: longest_running
-- Reads one row for each running run: no more than there are slots.
select r.id, stepwell.plain_name(r.name) as name, r.kind::text as kind, r.queue, r.attempt,
       extract(epoch from stepwell.now() - r.started_at)::float8 as seconds,
       (select w.name from stepwell.workers w where w.id = r.claimed_by) as worker
  from stepwell.runs r
 where r.claimed_by is not null
 order by r.started_at
 limit :limit;

-- name: starts_lately
-- The number of runs that were started in the last `since`, by their ids, each table counted up to `:most`.
select (select count(*) from (select from stepwell.runs r
                               where r.id >= stepwell.id_at(stepwell.now() - :since::interval) limit :most) live)
     + (select count(*) from (select from stepwell.finished_runs f
                               where f.id >= stepwell.id_at(stepwell.now() - :since::interval)
                                 and f.finished_at >= stepwell.now() - :since::interval - interval '1 hour'
                               limit :most) finished) as runs;

-- name: finishes_so_far
-- The number of runs that have finished since the server's statistics began, delayed by about a second: no row is read.
select coalesce(sum(s.n_tup_ins), 0)::bigint as runs, extract(epoch from clock_timestamp())::float8 as at
  from pg_inherits i
  join pg_stat_user_tables s on s.relid = i.inhrelid
 where i.inhparent = 'stepwell.finished_runs'::regclass;

-- name: vacuum_facts
-- Tells whether vacuum cleans the dead rows of the table of runs: every claim and settlement leaves one.
select current_setting('autovacuum')::boolean as autovacuum,
       current_setting('track_counts')::boolean as track_counts,
       coalesce('autovacuum_enabled=false' = any(c.reloptions) or 'autovacuum_enabled=off' = any(c.reloptions), false)
           as switched_off,
       coalesce(s.n_dead_tup, 0) as dead,
       coalesce(s.n_live_tup, 0) as alive,
       extract(epoch from clock_timestamp() - greatest(s.last_autovacuum, s.last_vacuum))::float8 as vacuumed
  from pg_class c
  left join pg_stat_user_tables s on s.relid = c.oid
 where c.oid = 'stepwell.runs'::regclass;

-- name: lost_holders
-- Workers that hold claims but no lease, found by skipping from one holder to the next.
with recursive holder (id) as (
    (select r.claimed_by from stepwell.runs r where r.claimed_by is not null order by r.claimed_by limit 1)
     union all
    select (select r.claimed_by from stepwell.runs r
             where r.claimed_by > h.id order by r.claimed_by limit 1)
      from holder h
     where h.id is not null
)
select count(*) as workers,
       coalesce(sum((select count(*) from stepwell.runs r where r.claimed_by = h.id)), 0)::bigint as runs,
       extract(epoch from stepwell.now() - min(w.lease_until))::float8 as longest
  from holder h
  left join stepwell.workers w on w.id = h.id
 where h.id is not null
   and (w.id is null or w.lease_until <= stepwell.now());

-- name: late_runs
-- Runs whose time passed more than `late` ago and that were not moved: to pending, expired or failed.
select (select count(*) from (select from stepwell.runs r
                               where r.due_at < stepwell.now() - :late::interval
                                 and r.state in ('scheduled', 'waiting') limit :most) due) as due,
       (select count(*) from (select from stepwell.runs r
                               where r.expires_at < stepwell.now() - :late::interval
                                 and r.state <> 'running' limit :most) expired) as expired,
       (select count(*) from (select from stepwell.runs r
                               where r.deadline_at < stepwell.now() - :late::interval
                                 and r.state <> 'running' limit :most) overdue) as overdue;
