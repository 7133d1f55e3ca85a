-- reads: what handles and lists ask. No payload is read where it is not shown.

-- name: run_by_id
select * from stepwell.all_runs r where r.id = :id::uuid;

-- name: runs_between
-- The newest runs whose ids lie in this range, both ends included.
select r.id, r.name, r.state, r.created_at
  from stepwell.all_runs r
 where r.id >= :first::uuid
   and r.id <= :last::uuid
 order by r.id desc
 limit :limit;

-- name: first_version
-- Of the code that a workflow began with.
select e.data ->> 'version' as version from stepwell.events e where e.run_id = :id::uuid and e.idx = 1;

-- name: run_id_by_key
select k.run_id from stepwell.keys k where k.key = :key;

-- name: keys_held
-- Who holds these keys, and for which input.
select k.key, k.digest, k.run_id
  from stepwell.keys k
 where k.key = any(:keys::text[]);

-- name: results
-- The outcome of those of these runs that have finished.
select f.id, f.name, f.state, f.result, f.error, f.attempt
  from stepwell.finished_runs f
 where f.id = any(:ids::uuid[])
 union all
select k.id, k.name, k.state, k.result, k.error, k.attempt
  from stepwell.kept_runs k
 where k.id = any(:ids::uuid[]);

-- name: recent_results
-- The same, of runs that finished just now: a look into one day, or two, and not into every day that is kept.
select f.id, f.name, f.state, f.result, f.error, f.attempt
  from stepwell.finished_runs f
 where f.id = any(:ids::uuid[])
   and f.finished_at between stepwell.now() - interval '1 hour' and stepwell.now() + interval '1 second';

-- name: existing_runs
select r.id from stepwell.runs r where r.id = any(:ids::uuid[])
 union all
select f.id from stepwell.finished_runs f where f.id = any(:ids::uuid[])
 union all
select k.id from stepwell.kept_runs k where k.id = any(:ids::uuid[]);

-- name: unique_runs
-- Of what is unique while unfinished, the run that is.
select r.unique_key, r.id from stepwell.runs r where r.unique_key = any(:keys::text[]);

-- name: attempts_of
-- With where their workers ran.
select a.*, w.host, w.pid
  from stepwell.all_attempts a
  left join stepwell.workers w on w.id = a.claimed_by
 where a.run_id = :id::uuid
 order by a.attempt;

-- name: list_runs
-- Newest first, among the next `most`; the last of those comes back too, matching or not: it says how far this looked.
-- The page ends where the next begins: not `or`, which would walk there from the newest. A filter that is null lets
-- everything through. An id was made by its caller's clock, which may be off by an hour.
select r.*, m.matches
  from (select a.*, row_number() over (order by a.id desc) as place
          from stepwell.all_runs a
         where a.id < coalesce(:after::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
           and a.id > greatest('00000000-0000-0000-0000-000000000000', stepwell.id_at(:since::timestamptz - interval '1 hour'))
         order by a.id desc
         limit :most) r
 cross join lateral (
       select (:states::text[] is null or r.state = any(:states::text[]))
          and (:name::text is null or r.name = :name::text)
          and (:queue::text is null or r.queue = :queue::text)
          and (:kind::text is null or r.kind = :kind::text)
          and (:tags::jsonb is null or r.tags @> :tags::jsonb)
          and (:error::text is null or r.error ->> 'type' = :error::text or r.error ->> 'code' = :error::text)
          and (:since::timestamptz is null or r.created_at >= :since::timestamptz) as matches) m
 where m.matches
    or r.place = :most
 order by r.id desc
 limit :limit;

-- name: list_failed_runs
-- The same of those that failed, which are few and have an index. What is live is left out by its `finished_at`.
select r.*, m.matches
  from (select a.*, row_number() over (order by a.id desc) as place
          from stepwell.all_runs a
         where a.id < coalesce(:after::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
           and a.id > greatest('00000000-0000-0000-0000-000000000000', stepwell.id_at(:since::timestamptz - interval '1 hour'))
           and a.finished_at is not null
           and a.state = 'failed'
         order by a.id desc
         limit :most) r
 cross join lateral (
       select (:name::text is null or r.name = :name::text)
          and (:queue::text is null or r.queue = :queue::text)
          and (:kind::text is null or r.kind = :kind::text)
          and (:tags::jsonb is null or r.tags @> :tags::jsonb)
          and (:error::text is null or r.error ->> 'type' = :error::text or r.error ->> 'code' = :error::text)
          and (:since::timestamptz is null or r.created_at >= :since::timestamptz) as matches) m
 where m.matches
    or r.place = :most
 order by r.id desc
 limit :limit;

-- name: list_running_runs
-- The same of those that are running: all of them are read by who holds them, and never what is scheduled.
with running as materialized (
    select *
      from stepwell.all_runs r
     where r.state = 'running'
       and r.claimed_by is not null
)
select *, true as matches, 0 as place
  from running r
 where r.id < coalesce(:after::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
   and (:name::text is null or r.name = :name::text)
   and (:queue::text is null or r.queue = :queue::text)
   and (:kind::text is null or r.kind = :kind::text)
   and (:tags::jsonb is null or r.tags @> :tags::jsonb)
   and (:error::text is null or r.error ->> 'type' = :error::text or r.error ->> 'code' = :error::text)
   and (:since::timestamptz is null or r.created_at >= :since::timestamptz)
 order by r.id desc
 limit :limit;

-- name: list_blocked_runs
-- The same of workflows whose code does not fit their history: all of them are read, by an index of their own.
with blocked as materialized (
    select a.*
      from stepwell.all_runs a
     where a.id = any(array(select r.id from stepwell.runs r where r.blocked is not null))
       and a.state in ('waiting', 'paused') -- of finished runs none is read
)
select *, true as matches, 0 as place
  from blocked r
 where r.id < coalesce(:after::uuid, 'ffffffff-ffff-ffff-ffff-ffffffffffff')
   and (:states::text[] is null or r.state = any(:states::text[]))
   and (:name::text is null or r.name = :name::text)
   and (:queue::text is null or r.queue = :queue::text)
   and (:kind::text is null or r.kind = :kind::text)
   and (:tags::jsonb is null or r.tags @> :tags::jsonb)
   and (:error::text is null or r.error ->> 'type' = :error::text or r.error ->> 'code' = :error::text)
   and (:since::timestamptz is null or r.created_at >= :since::timestamptz)
 order by r.id desc
 limit :limit;

-- name: waits_of
-- What these live runs wait for.
select r.id, r.waits_for, r.blocked, r.due_at
  from stepwell.runs r
 where r.id = any(:ids::uuid[]);
