-- forks: new runs that begin with a part of another run's history.

-- name: fork_run
-- moves: -> pending
-- Inserts a run with the input of another, live or finished. The first part of its history is copied separately.
insert into stepwell.runs (
           id, kind, name, queue, priority, state, input, tags, retry, timeout, parent_id, root_id, retry_of,
           limit_key, per_key, keep, on_failure, recorded, arrived, history_from, deadline_at
       )
select :id::uuid, 'workflow', :name::text, f.queue, f.priority, 'pending', f.input, f.tags, f.retry, f.timeout,
       f.parent_id, f.root_id, :origin::uuid, f.limit_key, f.per_key, f.keep, f.on_failure,
       :recorded::integer, 0, nullif(:history_from::integer, 0), stepwell.now() + :deadline::interval
  from (select queue, priority, input, tags, retry, timeout, parent_id, root_id, limit_key, per_key, keep, on_failure
          from stepwell.runs where id = :origin::uuid
         union all
        select queue, priority, input, tags, retry, timeout, parent_id, root_id, limit_key, per_key, keep, on_failure
          from stepwell.finished_runs where id = :origin::uuid
         union all
        select queue, priority, input, tags, retry, timeout, parent_id, root_id, limit_key, per_key, keep, on_failure
          from stepwell.kept_runs where id = :origin::uuid
         limit 1) f
 where :repeated::boolean or not exists (select from stepwell.repeated_starts s where s.run_id = :id::uuid)
    on conflict (id) do nothing
returning id, queue;

-- name: fork_children
-- moves: -> pending, scheduled
-- Starts anew, for the fork, what was under way at that event, with a timeout of the same length. A child that has not
-- begun in the origin begins here at the same time. A child that is no longer kept does not come back.
insert into stepwell.runs (
           id, kind, name, queue, priority, state, due_at, deadline_at, input, tags, retry, timeout, parent_id, root_id,
           retry_of, node, limit_key, per_key, keep, on_failure, recorded, arrived
       )
select n.id, f.kind, f.name, f.queue, f.priority, case when f.due_at is null then 'pending' else 'scheduled' end, f.due_at,
       stepwell.now() + (coalesce(f.deadline_at, (e.data ->> 'when')::timestamptz) - f.created_at),
       f.input, f.tags, f.retry, f.timeout, :parent::uuid,
       coalesce((select p.root_id from stepwell.runs p where p.id = :parent::uuid), :parent::uuid), n.origin, n.node,
       f.limit_key, f.per_key, f.keep, f.on_failure,
       case f.kind when 'workflow' then 0 end, case f.kind when 'workflow' then 0 end
  from unnest(:ids::uuid[], :origins::uuid[], :nodes::text[]) as n (id, origin, node)
 cross join lateral (
       select kind, name, queue, priority, input, tags, retry, timeout, limit_key, per_key, keep, on_failure, created_at, deadline_at,
              case when attempt = 0 and due_at > stepwell.now() then due_at end as due_at
         from stepwell.runs where id = n.origin
        union all
       select kind, name, queue, priority, input, tags, retry, timeout, limit_key, per_key, keep, on_failure, created_at, null, null
         from stepwell.finished_runs where id = n.origin
        union all
       select kind, name, queue, priority, input, tags, retry, timeout, limit_key, per_key, keep, on_failure, created_at, null, null
         from stepwell.kept_runs where id = n.origin
        limit 1) f
  left join stepwell.events e on e.run_id = n.origin and e.idx = 1 and f.kind = 'workflow'
    on conflict (id) do nothing
returning id, retry_of, queue;

-- name: copy_history
-- Copies the origin's events. Events that name a run which was started anew are given, the others are copied unchanged.
insert into stepwell.events (run_id, idx, type, at, data)
select :id::uuid, e.idx, e.type, e.at, coalesce(g.data, e.data)
  from stepwell.events e
  left join unnest(:idxs::integer[], :datas::jsonb[]) as g (idx, data) on g.idx = e.idx
 where e.run_id = :origin::uuid
   and e.idx <= :last::integer
    on conflict (run_id, idx) do nothing;

-- name: copy_published
-- The state that the origin had last published at that event.
insert into stepwell.published (run_id, state, at)
values (:id::uuid, :state::jsonb, stepwell.now())
    on conflict (run_id) do nothing;

-- name: forkable
-- Failed workflows among these runs: retried, they go on from their last good point.
select f.id from stepwell.finished_runs f
 where f.id = any(:ids::uuid[]) and f.kind = 'workflow' and f.state = 'failed'
 union all
select k.id from stepwell.kept_runs k
 where k.id = any(:ids::uuid[]) and k.kind = 'workflow' and k.state = 'failed';

-- name: time_now
select stepwell.now() as now;

-- name: open_workflows
-- Workflows that have begun and are not finished, oldest first, behind `after`.
select r.id, r.name, r.key, r.queue, r.parent_id, r.root_id, r.tags, r.input, coalesce(r.history_from, 1) as history_from
  from stepwell.runs r
 where r.id > :after::uuid
   and r.kind = 'workflow'
   and r.recorded > 0
 order by r.id
 limit :limit;

-- name: count_open_workflows
select count(*) as runs from stepwell.runs r where r.kind = 'workflow' and r.recorded > 0;
