-- bulk: many runs by a filter, oldest first; each page begins behind the last id of the page before.

-- name: matching_live_runs
-- A null parameter does not filter. `:since` is widened by an hour for the id, which was made by the caller's clock.
select r.id
  from stepwell.runs r
 where r.id > greatest(:after::uuid, stepwell.id_at(:since::timestamptz - interval '1 hour'))
   and (:states::text[] is null or r.state = any(:states::text[]))
   and (:name::text is null or r.name = :name::text or r.kind = 'workflow' and stepwell.plain_name(r.name) = :name::text)
   and (:queue::text is null or r.queue = :queue::text)
   and (:kind::text is null or r.kind = :kind::text)
   and (:tags::jsonb is null or r.tags @> :tags::jsonb)
   and (:since::timestamptz is null or r.created_at >= :since::timestamptz)
 order by r.id
 limit :limit;

-- name: matching_finished_runs
-- The finished runs that match a filter.
select f.id
  from (select * from stepwell.finished_runs union all select * from stepwell.kept_runs) f
 where f.id > greatest(:after::uuid, stepwell.id_at(:since::timestamptz - interval '1 hour'))
   and (:states::text[] is null or f.state = any(:states::text[]))
   and (:name::text is null or f.name = :name::text or f.kind = 'workflow' and stepwell.plain_name(f.name) = :name::text)
   and (:queue::text is null or f.queue = :queue::text)
   and (:kind::text is null or f.kind = :kind::text)
   and (:tags::jsonb is null or f.tags @> :tags::jsonb)
   and (:error::text is null or f.error ->> 'type' = :error::text or f.error ->> 'code' = :error::text)
   and (:since::timestamptz is null or f.created_at >= :since::timestamptz)
 order by f.id
 limit :limit;

-- name: matching_failed_runs
-- The failed runs that match a filter: they are few and have an index of their own.
select f.id
  from (select * from stepwell.finished_runs union all select * from stepwell.kept_runs) f
 where f.id > greatest(:after::uuid, stepwell.id_at(:since::timestamptz - interval '1 hour'))
   and f.state = 'failed'
   and (:name::text is null or f.name = :name::text or f.kind = 'workflow' and stepwell.plain_name(f.name) = :name::text)
   and (:queue::text is null or f.queue = :queue::text)
   and (:kind::text is null or f.kind = :kind::text)
   and (:tags::jsonb is null or f.tags @> :tags::jsonb)
   and (:error::text is null or f.error ->> 'type' = :error::text or f.error ->> 'code' = :error::text)
   and (:since::timestamptz is null or f.created_at >= :since::timestamptz)
 order by f.id
 limit :limit;
