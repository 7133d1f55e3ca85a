-- starts: how runs are inserted. Many plain starts at once use COPY instead (engine/runs.py).

-- name: start_runs
-- moves: -> pending, scheduled
-- A key is reserved first: only runs that reserved theirs, or have none, are inserted. An expired key may be taken over
-- once its run is no longer live. A run with a unique key is not inserted beside an unfinished one. No row of `queues`
-- is touched: claims from that queue would wait for the end of the user's transaction.
with given as (
    select *
      from unnest(
               :ids::uuid[], :names::text[], :queues::text[], :priorities::smallint[], :states::text[],
               :inputs::jsonb[], :keys::text[], :digests::bytea[], :tags::jsonb[], :retries::jsonb[],
               :timeouts::interval[], :delays::interval[], :ats::timestamptz[], :expiries::interval[],
               :deadlines::interval[], :limit_keys::text[], :per_keys::int[], :unique_keys::text[],
               :keeps::text[], :parent_ids::uuid[], :root_ids::uuid[], :kinds::text[], :nodes::text[], :on_failures::jsonb[]
           ) as given (id, name, queue, priority, state, input, key, digest, tags, retry, timeout, delay, at,
                       expiry, deadline, limit_key, per_key, unique_key, keep,
                       parent_id, root_id, kind, node, on_failure)
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
           id, name, queue, priority, state, input, key, tags, retry, timeout, due_at, expires_at,
           deadline_at, limit_key, per_key, unique_key, keep, parent_id, root_id, kind, node, on_failure, recorded,
           arrived
       )
select g.id, g.name, g.queue, g.priority, g.state, g.input, g.key, g.tags, g.retry, g.timeout,
       coalesce(g.at, stepwell.now() + g.delay), stepwell.now() + g.expiry, stepwell.now() + g.deadline,
       g.limit_key, g.per_key, g.unique_key, g.keep, g.parent_id, g.root_id, g.kind, g.node, g.on_failure,
       case g.kind when 'workflow' then 0 end, case g.kind when 'workflow' then 0 end
  from given g
 where (g.key is null or g.id in (select run_id from reserved))
   and not exists (select from stepwell.repeated_starts s where s.run_id = g.id)
    on conflict do nothing
returning id;

-- name: start_claimed_runs
-- moves: -> running, pending
-- Runs of a workflow that its own worker claims as it starts them, unless that worker is gone or the queue is limited.
with given as (
    select g.*,
           not exists (select from stepwell.queues q
                        where q.name = g.queue and (q.paused_at is not null or q.capped))
       and exists (select from stepwell.workers w
                    where w.id = :worker::uuid and w.lease_until > stepwell.now() and w.stopped_at is null) as here
      from unnest(
               :ids::uuid[], :names::text[], :queues::text[], :priorities::smallint[], :inputs::jsonb[],
               :tags::jsonb[], :retries::jsonb[], :timeouts::interval[], :parent_ids::uuid[], :root_ids::uuid[],
               :nodes::text[]
           ) as g (id, name, queue, priority, input, tags, retry, timeout, parent_id, root_id, node)
)
insert into stepwell.runs (
           id, name, queue, priority, state, input, tags, retry, timeout, parent_id, root_id, node,
           attempt, claim_id, claimed_by, started_at
       )
select g.id, g.name, g.queue, g.priority, case when g.here then 'running' else 'pending' end, g.input, g.tags,
       g.retry, g.timeout, g.parent_id, g.root_id, g.node, case when g.here then 1 else 0 end,
       case when g.here then :claim_id::uuid end, case when g.here then :worker::uuid end,
       case when g.here then stepwell.now() end
  from given g
    on conflict do nothing
returning id, state;

-- name: open_queues
-- Queues among these from which this worker may claim what it starts itself, none if the worker is gone; and the time.
select stepwell.now() as now,
       array(select g.queue
               from unnest(:queues::text[]) as g (queue)
              where not exists (select from stepwell.queues q
                                 where q.name = g.queue and (q.paused_at is not null or q.capped))
                and exists (select from stepwell.workers w
                             where w.id = :worker::uuid and w.lease_until > stepwell.now() and w.stopped_at is null)
           ) as open;

-- name: debounce_run
-- moves: -> scheduled
-- Until its first attempt, a start with the same debounce key updates this run: it gets the new input, and a later
-- time. The run's id is returned.
insert into stepwell.runs as r (
           id, name, queue, priority, state, input, tags, retry, timeout, due_at, expires_at, deadline_at,
           debounce_key, keep, on_failure, parent_id, root_id
       )
select :id::uuid, :name::text, :queue::text, :priority::smallint, 'scheduled', :input::jsonb, :tags::jsonb,
       :retry::jsonb, :timeout::interval, stepwell.now() + :delay::interval, stepwell.now() + :expiry::interval,
       stepwell.now() + :deadline::interval, :debounce_key::text, :keep::text, :on_failure::jsonb, :parent_id::uuid, :root_id::uuid
    on conflict (debounce_key) where debounce_key is not null and state = 'scheduled' and attempt = 0 do update
   set input = excluded.input,
       due_at = excluded.due_at,
       priority = excluded.priority,
       tags = excluded.tags
returning r.id;

-- name: start_run
-- moves: -> pending
-- One plain run, as most starts are: no key, and no time to wait for.
with made as (
    insert into stepwell.runs (id, name, queue, priority, state, input, tags, retry, timeout, parent_id, root_id)
    select :id::uuid, :name::text, :queue::text, :priority::smallint, 'pending', :input::jsonb, :tags::jsonb,
           :retry::jsonb, :timeout::interval, :parent_id::uuid, :root_id::uuid
     where not exists (select from stepwell.repeated_starts s where s.run_id = :id::uuid)
        on conflict (id) do nothing
    returning id
)
select stepwell.say(:channel::text, :word::text) as said from made;

-- name: start_runs_again
-- moves: -> pending
-- A finished run never comes back: these are new runs that name their origins. Runs that are not finished are skipped.
insert into stepwell.runs (
           id, kind, name, queue, priority, state, input, tags, retry, timeout, parent_id, root_id, retry_of,
           limit_key, per_key, keep, on_failure, recorded, arrived
       )
select n.id, f.kind, f.name, f.queue, f.priority, 'pending', f.input, f.tags, f.retry, f.timeout,
       f.parent_id, f.root_id, f.id, f.limit_key, f.per_key, f.keep, f.on_failure,
       case f.kind when 'workflow' then 0 end, case f.kind when 'workflow' then 0 end
  from unnest(:ids::uuid[], :origins::uuid[]) as n (id, origin)
 cross join lateral (select * from stepwell.finished_runs o where o.id = n.origin
                      union all
                     select * from stepwell.kept_runs o where o.id = n.origin
                      limit 1) f
 where not exists (select from stepwell.repeated_starts s where s.run_id = n.id)
    on conflict (id) do nothing
returning id, queue, retry_of;

-- name: undo_finished_starts
-- Takes back a start that was repeated because its answer was lost, if the first try had committed and its run has
-- finished since: deletes the repeated run, in the transaction that inserted it.
delete from stepwell.runs r
 where r.id = any(array(select f.id from stepwell.finished_runs f where f.id = any(:ids::uuid[])))
   and r.state in ('pending', 'scheduled')
   and r.attempt = 0;

-- name: note_repeated_starts
-- Records repeated starts. It is the last statement of their transaction: from its commit on, the first try has no
-- effect.
insert into stepwell.repeated_starts (run_id)
select unnest(:ids::uuid[])
    on conflict (run_id) do nothing;

-- name: undo_starts
-- Takes back starts in a user's transaction when a later one of the same call is refused, so that all of them are
-- started or none. Nobody else has seen them.
with freed as (
    delete from stepwell.keys k where k.key = any(:keys::text[]) and k.run_id = any(:ids::uuid[])
)
delete from stepwell.runs r where r.id = any(:ids::uuid[]);

-- name: tell_with_commit
-- Sends notifications with the commit: in a user's transaction, nothing of ours runs after it.
select stepwell.tell(w.channel, w.word) as told from unnest(:channels::text[], :words::text[]) as w (channel, word);

-- name: runs_alike
-- Runs among these that were started with this name and input, for keys without a digest, as keys from SQL are. A run
-- that no longer exists cannot be compared, and counts as alike.
select g.id
  from unnest(:ids::uuid[], :names::text[], :inputs::jsonb[]) as g (id, name, input)
 where coalesce((select bool_and(r.name = g.name and r.input = g.input) from stepwell.all_runs r where r.id = g.id),
                true);
