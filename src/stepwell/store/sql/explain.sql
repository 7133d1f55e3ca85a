-- explain: facts about one run and its surroundings. A few statements, each bounded and by an index; no input is read.

-- name: run_facts
-- The run itself, live or finished.
select stepwell.now() as now, a.id, a.name, r.name as claim_name, a.kind, a.queue, a.priority, a.state, a.attempt, a.failures, a.created_at, a.due_at,
       a.expires_at, a.started_at, a.finished_at, a.claimed_by,
       a.error ->> 'type' || ': ' || left(a.error ->> 'message', 500) as error,
       r.waits_for, r.blocked, r.paused_at, r.paused_by, coalesce(r.pausing, false) as pausing, r.history_from,
       coalesce(r.alone, false) as alone, r.deadline_at, r.debounce_key is not null as debounced,
       coalesce(r.limit_key, (select f.limit_key from stepwell.finished_runs f where f.id = a.id limit 1),
                (select k.limit_key from stepwell.kept_runs k where k.id = a.id)) as limit_key
  from stepwell.all_runs a
  left join stepwell.runs r on r.id = a.id
 where a.id = :id::uuid;

-- name: awaited_runs
-- Live runs that a workflow started since it began, with the names that it waits for: some of them, and their number up
-- to `:most`.
select r.id, stepwell.plain_name(r.name) as name, r.state, count(*) over () as runs
  from (select e.idx, (e.data ->> 'run')::uuid as id
          from stepwell.events e
         where e.run_id = :id::uuid
           and e.idx >= :begun::integer
           and e.type in ('TaskScheduled', 'ChildStarted')
         order by e.idx desc
         limit :most) e
  join stepwell.runs r on r.id = e.id and stepwell.plain_name(r.name) = any(:names::text[])
 order by e.idx
 limit :limit;

-- name: last_event
select e.idx, e.type, e.at from stepwell.events e where e.run_id = :id::uuid order by e.idx desc limit 1;

-- name: last_attempt
select a.attempt, a.outcome, a.ended_at, a.error ->> 'type' || ': ' || left(a.error ->> 'message', 500) as error
  from stepwell.attempts a
 where a.run_id = :id::uuid
 order by a.attempt desc
 limit 1;

-- name: queue_facts
-- One row, whether or not the queue has settings. Counts as claim_limited_runs does: the cap of a key is the queue's,
-- or that of the first run in the key's line.
with limits as (
    select q.*, floor(extract(epoch from stepwell.now()) / extract(epoch from q.rate_period) * 100)::bigint as part
      from (select) one
      left join stepwell.queues q on q.name = :queue::text
)
select l.paused_at, l.paused_by, l.concurrency, l.rate, l.rate_period,
       coalesce(l.per_key, (select f.per_key from stepwell.runs f
                             where f.state = 'pending' and f.limit_key is not null and f.queue = :queue::text
                               and f.limit_key = :limit_key::text
                             order by f.limit_key, f.priority, f.id limit 1)) as per_key,
       (select count(*) from (select from stepwell.runs r
                               where r.queue = :queue::text and r.slot is not null
                               limit greatest(:most::int, l.concurrency)) held) as held,
       (select count(*) from (select from stepwell.runs r
                               where r.queue = :queue::text and r.slot = :limit_key::text limit :most) held) as key_held,
       u.uses,
       to_timestamp((u.first + 101) * extract(epoch from l.rate_period) / 100) as spent_until
  from limits l
 cross join lateral (select coalesce(sum(u.uses), 0) as uses, min(u.part) as first
                       from stepwell.rate_uses u
                      where u.queue = :queue::text and u.part between l.part - 100 and l.part + 100) u;

-- name: slot_holders
-- Some of the runs that count against a limit: of the queue, or of one key in it.
select r.id
  from stepwell.runs r
 where r.queue = :queue::text
   and r.slot is not null
   and (:limit_key::text is null or r.slot = :limit_key::text)
 order by r.queue, r.slot
 limit :limit;

-- name: runs_ahead
-- The number of pending runs without a limit key that are claimed before this one, up to `:most`.
select count(*) as runs
  from (select from stepwell.runs r
         where r.state = 'pending'
           and r.limit_key is null
           and r.queue = :queue::text
           and (r.priority, r.id) < (:priority::smallint, :id::uuid)
         limit :most) ahead;

-- name: runs_ahead_of_key
select count(*) as runs
  from (select from stepwell.runs r
         where r.state = 'pending'
           and r.limit_key is not null
           and r.queue = :queue::text
           and r.limit_key = :limit_key::text
           and (r.priority, r.id) < (:priority::smallint, :id::uuid)
         limit :most) ahead;

-- name: lone_runs
-- Runs that must be alone and are running, each with its worker.
select r.claimed_by, r.id
  from stepwell.runs r
 where r.alone
   and r.state like 'running' -- not `=`, which would offer the planner other indexes
 limit :limit;

-- name: led_services
select l.service from stepwell.leaders l where l.until > stepwell.now();

-- name: calm_until
select pg_postmaster_start_time() + :calm::interval as until;
