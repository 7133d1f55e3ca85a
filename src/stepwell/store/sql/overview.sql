-- overview: what `stepwell doctor` and `stepwell dev` show. For people, not for the hot path.

-- name: server_facts
-- One row about the server: its clock, its connections, and transactions so old that vacuum cannot clean.
select clock_timestamp() as clock,
       current_setting('server_version') as version,
       current_setting('max_connections')::int as max_connections,
       pg_is_in_recovery() as is_standby,
       (select count(*) from pg_stat_activity a where a.backend_type = 'client backend') as connections,
       (select count(*) from pg_stat_activity a
         where a.xact_start < clock_timestamp() - :old::interval
           and a.backend_type = 'client backend') as old_transactions,
       (select extract(epoch from clock_timestamp() - min(a.xact_start))::float8 from pg_stat_activity a
         where a.backend_type = 'client backend') as oldest_transaction;

-- name: work_facts
-- One row about the work: who is there to do it, and how long it has waited.
select (select count(*) from stepwell.workers w where w.lease_until > stepwell.now()) as workers,
       (select coalesce(sum(w.slots), 0) from stepwell.workers w where w.lease_until > stepwell.now()) as slots,
       (select count(*) from stepwell.runs r where r.state = 'pending' and r.limit_key is null)
       + (select count(*) from stepwell.runs r where r.state = 'pending' and r.limit_key is not null) as pending,
       (select extract(epoch from stepwell.now() - least(
                   (select min(r.created_at) from stepwell.runs r where r.state = 'pending' and r.limit_key is null),
                   (select min(r.created_at) from stepwell.runs r
                     where r.state = 'pending' and r.limit_key is not null)))::float8) as oldest_pending,
       (select count(*) from stepwell.runs r where r.claimed_by is not null) as running;

-- name: moving_runs
-- Live runs, newest first, and those that finished in the last `since`; no payload is read.
(select r.id, r.name, r.state, r.attempt, null::float8 as seconds, null::text as error,
        extract(epoch from r.due_at - stepwell.now())::float8 as due_in
   from stepwell.runs r
  order by r.id desc
  limit :limit)
union all
(select f.id, f.name, f.state, f.attempt, extract(epoch from f.finished_at - f.started_at)::float8,
        f.error ->> 'type' || ': ' || left(f.error ->> 'message', 200), null
   from stepwell.finished_runs f
  where f.finished_at > stepwell.now() - :since::interval
  order by f.id desc
  limit :limit);

-- name: count_runs
select r.state, count(*) as runs from stepwell.all_runs r group by r.state;
