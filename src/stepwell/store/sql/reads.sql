-- reads: queries of handles and lists. No payload is read where it is not shown.

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
-- The version of the code that a workflow began with.
select e.data ->> 'version' as version from stepwell.events e where e.run_id = :id::uuid and e.idx = 1;

-- name: run_id_by_key
select k.run_id from stepwell.keys k where k.key = :key;

-- name: keys_held
-- The runs that hold these keys, and the digest of the input that each was started with.
select k.key, k.digest, k.run_id
  from stepwell.keys k
 where k.key = any(:keys::text[]);

-- name: results
-- The outcomes of those of these runs that have finished.
select f.id, f.name, f.state, f.result, f.error, f.attempt
  from stepwell.finished_runs f
 where f.id = any(:ids::uuid[])
 union all
select k.id, k.name, k.state, k.result, k.error, k.attempt
  from stepwell.kept_runs k
 where k.id = any(:ids::uuid[]);

-- name: recent_results
-- The outcomes of runs that finished just now: it reads the partitions of one day or two, not of every day that is
-- kept.
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
-- The unfinished run that holds each of these unique keys.
select r.unique_key, r.id from stepwell.runs r where r.unique_key = any(:keys::text[]);

-- name: attempts_of
-- The attempts of a run, with the host and process of their workers.
select a.*, w.host, w.pid
  from stepwell.all_attempts a
  left join stepwell.workers w on w.id = a.claimed_by
 where a.run_id = :id::uuid
 order by a.attempt;

-- name: list_runs
-- Newest first, among the next `:most`. The last of those is returned too, matching or not: it says how far this
-- looked. The bound of a page is a single comparison: with `or`, each page would walk there from the newest run. A null
-- parameter does not filter. `:since` is widened by an hour for the id, which was made by the caller's clock.
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
-- list_runs for failed runs, which are few and have an index. `finished_at` excludes live runs.
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
-- list_runs for running runs: all of them are read, by the index of holders, and no scheduled run.
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
-- list_runs for workflows whose code does not fit their history: all of them are read, by an index of their own.
with blocked as materialized (
    select a.*
      from stepwell.all_runs a
     where a.id = any(array(select r.id from stepwell.runs r where r.blocked is not null))
       and a.state in ('waiting', 'paused') -- excludes the tables of finished runs
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
-- Signals, runs and times that these live runs wait for.
select r.id, r.waits_for, r.blocked, r.due_at
  from stepwell.runs r
 where r.id = any(:ids::uuid[]);
