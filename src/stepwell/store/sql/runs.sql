-- runs: live runs, from their claim (claims.sql) to their end. Statements are in the order of a run's life.
--
-- Every statement finds its rows by `id = any(…)` or by one index range, so that no plan depends on ANALYZE having run.
-- For the same reason, our sessions forbid sequential scans. A worker's statement names (id, claim_id) and demands
-- 'running': an id that does not come back has lost its claim. Its arrays are in ascending order of :ids, and
-- `width_bucket` finds a row's place in them by binary search. A join with unnest would be planned for one row, as a
-- loop over n * n.

-- name: retry_runs
-- moves: running -> scheduled
-- The attempt failed, and will be retried after a delay.
with held as materialized (
    select r.id, r.attempt, r.claim_id, r.claimed_by, r.started_at,
           (:errors::jsonb[])[width_bucket(r.id, :ids::uuid[])] as error,
           (:usages::jsonb[])[width_bucket(r.id, :ids::uuid[])] as usage
      from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and r.claim_id = (:claim_ids::uuid[])[width_bucket(r.id, :ids::uuid[])]
       and r.state = 'running'
       for update
), ended as (
    insert into stepwell.attempts (run_id, attempt, outcome, error, claim_id, claimed_by, started_at, ended_at, usage)
    select id, attempt, 'failed', error, claim_id, claimed_by, started_at, stepwell.now(), usage from held
)
update stepwell.runs r
   set state = 'scheduled',
       failures = r.failures + 1,
       alone = (:alones::boolean[])[width_bucket(r.id, :ids::uuid[])],
       due_at = stepwell.now() + (:delays::interval[])[width_bucket(r.id, :ids::uuid[])],
       claim_id = null,
       claimed_by = null,
       started_at = null,
       slot = null
 where r.id = any(array(select id from held))
returning r.id;

-- name: repeat_runs
-- moves: running -> pending
-- The attempt failed, and is retried at once.
with held as materialized (
    select r.id, r.attempt, r.claim_id, r.claimed_by, r.started_at,
           (:errors::jsonb[])[width_bucket(r.id, :ids::uuid[])] as error,
           (:usages::jsonb[])[width_bucket(r.id, :ids::uuid[])] as usage
      from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and r.claim_id = (:claim_ids::uuid[])[width_bucket(r.id, :ids::uuid[])]
       and r.state = 'running'
       for update
), ended as (
    insert into stepwell.attempts (run_id, attempt, outcome, error, claim_id, claimed_by, started_at, ended_at, usage)
    select id, attempt, 'failed', error, claim_id, claimed_by, started_at, stepwell.now(), usage from held
)
update stepwell.runs r
   set state = 'pending',
       failures = r.failures + 1,
       alone = (:alones::boolean[])[width_bucket(r.id, :ids::uuid[])],
       claim_id = null,
       claimed_by = null,
       started_at = null,
       slot = null
 where r.id = any(array(select id from held))
returning r.id;

-- name: snooze_runs
-- moves: running -> scheduled
with held as materialized (
    select r.id, r.attempt, r.claim_id, r.claimed_by, r.started_at,
           (:usages::jsonb[])[width_bucket(r.id, :ids::uuid[])] as usage
      from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and r.claim_id = (:claim_ids::uuid[])[width_bucket(r.id, :ids::uuid[])]
       and r.state = 'running'
       for update
), ended as (
    insert into stepwell.attempts (run_id, attempt, outcome, claim_id, claimed_by, started_at, ended_at, usage)
    select id, attempt, 'snoozed', claim_id, claimed_by, started_at, stepwell.now(), usage from held
)
update stepwell.runs r
   set state = 'scheduled',
       due_at = stepwell.now() + (:delays::interval[])[width_bucket(r.id, :ids::uuid[])],
       claim_id = null,
       claimed_by = null,
       started_at = null,
       slot = null
 where r.id = any(array(select id from held))
returning r.id;

-- name: release_runs
-- moves: running -> pending
-- A stopping worker gives back what it could not finish. No failure is counted.
with held as materialized (
    select r.id, r.attempt, r.claim_id, r.claimed_by, r.started_at
      from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and r.claim_id = (:claim_ids::uuid[])[width_bucket(r.id, :ids::uuid[])]
       and r.state = 'running'
       for update
), ended as (
    insert into stepwell.attempts (run_id, attempt, outcome, claim_id, claimed_by, started_at, ended_at)
    select id, attempt, 'released', claim_id, claimed_by, started_at, stepwell.now() from held
)
update stepwell.runs r
   set state = 'pending',
       claim_id = null,
       claimed_by = null,
       started_at = null,
       slot = null
 where r.id = any(array(select id from held))
returning r.id;

-- name: due_runs
-- moves: scheduled, waiting -> pending
with next as materialized (
    select r.id
      from stepwell.runs r
     where r.due_at <= stepwell.now()
       and r.state in ('scheduled', 'waiting')
     order by r.due_at
     limit :limit
       for update skip locked
)
update stepwell.runs r
   set state = 'pending',
       due_at = null
 where r.id = any(array(select n.id from next n))
returning r.queue;

-- name: lock_lost_claims
-- Claims whose worker holds no lease, whether its row says so or is gone. The holders are found by skipping from one to
-- the next along the index, so each live holder costs one lookup. After a restart of the server, workers first get time
-- to renew their leases.
with recursive holder (id) as (
    (select r.claimed_by from stepwell.runs r where r.claimed_by is not null order by r.claimed_by limit 1)
     union all
    select (select r.claimed_by from stepwell.runs r
             where r.claimed_by > h.id order by r.claimed_by limit 1)
      from holder h
     where h.id is not null
), lost as materialized (
    select h.id, (select w.versions from stepwell.workers w where w.id = h.id) as versions
      from holder h
     where h.id is not null
       and not exists (select from stepwell.workers w where w.id = h.id and w.lease_until > stepwell.now())
       and pg_postmaster_start_time() < stepwell.now() - :calm::interval
)
select r.*
  from lost l
 cross join lateral (
       select r.id, r.name, r.queue, r.priority, r.attempt, r.failures, r.input, r.retry, r.timeout, r.key,
              r.tags, r.root_id, r.alone, r.slot is not null as limited,
              r.deadline_at - stepwell.now() as deadline, r.expires_at - stepwell.now() as expiry, r.node,
              null::timestamptz as fresh, r.claim_id, r.claimed_by,
              r.kind = 'workflow' or coalesce(jsonb_exists(l.versions, r.name), false) as turn
         from stepwell.runs r
        where r.claimed_by = l.id
        limit :limit
          for update skip locked
       ) r
 limit :limit;

-- name: next_due
-- Seconds until the next run is due, expires or passes its deadline, at most a day; no row if no run waits for a time.
-- A time may be "infinity", with which Postgres cannot subtract, hence the day.
select extract(epoch from least(greatest(n.at, stepwell.now()), stepwell.now() + interval '1 day')
                          - stepwell.now())::float8 as seconds
  from (select least(
           (select r.due_at from stepwell.runs r
             where r.due_at is not null and r.state in ('scheduled', 'waiting') order by r.due_at limit 1),
           (select r.expires_at from stepwell.runs r
             where r.expires_at is not null and r.state <> 'running' order by r.expires_at limit 1),
           (select r.deadline_at from stepwell.runs r
             where r.deadline_at is not null and r.state <> 'running' order by r.deadline_at limit 1)) as at) n
 where n.at is not null;

-- name: held_claims
-- The claims that the table says this worker holds, and the time left until each deadline.
select r.id, r.claim_id, r.queue, r.attempt, r.deadline_at - stepwell.now() as deadline
  from stepwell.runs r
 where r.claimed_by = :worker::uuid;

-- name: held_of_claims
-- held_claims for some claim ids only. A worker asks this every second; it costs what the worker holds, not what it
-- once held.
select r.id, r.claim_id, r.queue, r.attempt, r.deadline_at - stepwell.now() as deadline
  from stepwell.runs r
 where r.claimed_by = :worker::uuid
   and r.claim_id = any(:claim_ids::uuid[]);

-- name: settled_claims
-- Claims among these that were settled, as a finished run or an ended attempt shows. It is used after a settlement
-- whose answer was lost.
select f.id
  from stepwell.finished_runs f
 where f.id = any(:ids::uuid[])
   and f.claim_id = any(:claim_ids::uuid[])
   and f.state in ('completed', 'failed')
 union all
select a.run_id
  from stepwell.attempts a
 where a.run_id = any(:ids::uuid[])
   and a.claim_id = any(:claim_ids::uuid[]);

-- name: locked_claims
-- Claims among these that are still held, and whose run another transaction has locked. The other rows are locked for
-- an instant.
with free as materialized (
    select r.id
      from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and r.claim_id = any(:claim_ids::uuid[])
       for update skip locked
)
select r.id
  from stepwell.runs r
 where r.id = any(:ids::uuid[])
   and r.claim_id = any(:claim_ids::uuid[])
   and r.state = 'running'
   and r.id <> all(array(select f.id from free f));
