-- starts: how runs come to be. Many plain ones at once are copied into the table instead (engine/runs.py).

-- name: start_runs
-- moves: -> pending, scheduled
-- A key is reserved first: only rows that reserved theirs, or have none, are inserted. An expired key
-- may be taken over once its run is no longer live.
with given as (
    select *
      from unnest(
               :ids::uuid[], :names::text[], :queues::text[], :priorities::smallint[], :states::text[],
               :inputs::jsonb[], :keys::text[], :digests::bytea[], :tags::jsonb[], :retries::jsonb[],
               :timeouts::interval[], :delays::interval[], :ats::timestamptz[], :expiries::interval[],
               :parent_ids::uuid[], :root_ids::uuid[]
           ) as given (id, name, queue, priority, state, input, key, digest, tags, retry,
                       timeout, delay, at, expiry, parent_id, root_id)
), reserved as (
    insert into stepwell.keys as k (key, digest, run_id, expires_at)
    select g.key, g.digest, g.id, stepwell.now() + :keep_keys::interval
      from given g
     where g.key is not null
     order by g.key
        on conflict (key) do update
       set digest = excluded.digest, run_id = excluded.run_id, expires_at = excluded.expires_at
     where k.expires_at <= stepwell.now()
       and not exists (select from stepwell.runs r where r.id = k.run_id)
    returning run_id
)
insert into stepwell.runs (
           id, name, queue, priority, state, input, key, tags, retry, timeout,
           due_at, expires_at, parent_id, root_id
       )
select g.id, g.name, g.queue, g.priority, g.state, g.input, g.key, g.tags, g.retry, g.timeout,
       coalesce(g.at, stepwell.now() + g.delay), stepwell.now() + g.expiry, g.parent_id, g.root_id
  from given g
 where (g.key is null or g.id in (select run_id from reserved))
   and not exists (select from stepwell.repeated_starts s where s.run_id = g.id)
    on conflict (id) do nothing
returning id;

-- name: start_run
-- moves: -> pending
-- One plain run, as most starts are: no key, no time to wait for.
with made as (
    insert into stepwell.runs (id, name, queue, priority, state, input, tags, retry, timeout, parent_id, root_id)
    select :id::uuid, :name::text, :queue::text, :priority::smallint, 'pending', :input::jsonb, :tags::jsonb,
           :retry::jsonb, :timeout::interval, :parent_id::uuid, :root_id::uuid
     where not exists (select from stepwell.repeated_starts s where s.run_id = :id::uuid)
        on conflict (id) do nothing
    returning id
)
select stepwell.say(:channel::text, :word::text) as said from made;

-- name: start_run_again
-- moves: -> pending
-- A finished run never comes back: this is a new one that names its origin.
insert into stepwell.runs (
           id, kind, name, queue, priority, state, input, tags, retry, timeout, parent_id, root_id, retry_of
       )
select :id::uuid, f.kind, f.name, f.queue, f.priority, 'pending', f.input, f.tags, f.retry, f.timeout,
       f.parent_id, f.root_id, f.id
  from stepwell.finished_runs f
 where f.id = :origin::uuid
   and not exists (select from stepwell.repeated_starts s where s.run_id = :id::uuid)
    on conflict (id) do nothing
returning queue;

-- name: undo_finished_starts
-- For a start that is repeated because its answer was lost: the first one may have committed and the
-- run have finished since. Ours is then taken back, in the transaction that made it.
delete from stepwell.runs r
 where r.id = any(:ids::uuid[])
   and r.state in ('pending', 'scheduled')
   and r.attempt = 0
   and exists (select from stepwell.finished_runs f where f.id = r.id);

-- name: note_repeated_starts
-- In the same transaction, last: from its commit on, the first try of these starts can do nothing any more.
insert into stepwell.repeated_starts (run_id)
select unnest(:ids::uuid[])
    on conflict (run_id) do nothing;
