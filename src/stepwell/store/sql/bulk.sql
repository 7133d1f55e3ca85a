-- bulk: many runs by what they have in common, oldest first; each page begins behind the last id of the one before.

-- name: matching_live_runs
-- A filter that is null lets everything through. An id was made by its caller's clock, which may be off by an hour.
select r.id
  from stepwell.runs r
 where r.id > greatest(:after::uuid, stepwell.id_at(:since::timestamptz - interval '1 hour'))
   and (:states::text[] is null or r.state = any(:states::text[]))
   and (:name::text is null or r.name = :name::text)
   and (:queue::text is null or r.queue = :queue::text)
   and (:kind::text is null or r.kind = :kind::text)
   and (:tags::jsonb is null or r.tags @> :tags::jsonb)
   and (:since::timestamptz is null or r.created_at >= :since::timestamptz)
 order by r.id
 limit :limit;

-- name: matching_finished_runs
select f.id
  from (select * from stepwell.finished_runs union all select * from stepwell.kept_runs) f
 where f.id > greatest(:after::uuid, stepwell.id_at(:since::timestamptz - interval '1 hour'))
   and (:states::text[] is null or f.state = any(:states::text[]))
   and (:name::text is null or f.name = :name::text)
   and (:queue::text is null or f.queue = :queue::text)
   and (:kind::text is null or f.kind = :kind::text)
   and (:tags::jsonb is null or f.tags @> :tags::jsonb)
   and (:error::text is null or f.error ->> 'type' = :error::text or f.error ->> 'code' = :error::text)
   and (:since::timestamptz is null or f.created_at >= :since::timestamptz)
 order by f.id
 limit :limit;

-- name: start_runs_again
-- moves: -> pending
-- As start_run_again, for many: new runs that name their origins. What is not finished is left out.
insert into stepwell.runs (
           id, kind, name, queue, priority, state, input, tags, retry, timeout, parent_id, root_id, retry_of,
           limit_key, per_key, keep
       )
select n.id, f.kind, f.name, f.queue, f.priority, 'pending', f.input, f.tags, f.retry, f.timeout,
       f.parent_id, f.root_id, f.id, f.limit_key, f.per_key, f.keep
  from unnest(:ids::uuid[], :origins::uuid[]) as n (id, origin)
 cross join lateral (select * from stepwell.finished_runs o where o.id = n.origin
                      union all
                     select * from stepwell.kept_runs o where o.id = n.origin
                      limit 1) f
 where not exists (select from stepwell.repeated_starts s where s.run_id = n.id)
    on conflict (id) do nothing
returning id, queue, retry_of;
