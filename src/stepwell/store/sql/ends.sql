-- ends: how runs become finished runs, and what follows from that. The columns of a finished run are listed in one
-- place, the function stepwell.ended. On the hot path, exchange_runs (claims.sql) completes runs from which nothing
-- follows.

-- name: end_runs
-- moves: running -> completed, failed, cancelled
-- Ends claims, each with its state and a result or an error. The results are one JSON array, in which the server finds
-- each element directly. It also runs in the transaction in which a body has worked, perhaps for hours: the run
-- finishes now, and not when that transaction began. Only the commit is left to do then; if it does not come, the
-- timeout makes the server release the run.
--
-- `moved` is null if every id was moved, else it has those that were. `said` tells whether the notification was sent.
-- The other columns name the runs from whose end something follows.
with done as (
    delete from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and r.claim_id = (:claim_ids::uuid[])[width_bucket(r.id, :ids::uuid[])]
       and r.state = 'running'
       and (select set_config('idle_in_transaction_session_timeout', '30s', true)) is not null
    returning r as run, width_bucket(r.id, :ids::uuid[]) as place
), given as (
    select d.run, (:states::text[])[d.place] as state,
           :results::jsonb -> (d.place - 1) as result,
           nullif(:errors::jsonb -> (d.place - 1), 'null') as error,
           nullif(:usages::jsonb -> (d.place - 1), 'null') as usage
      from done d
), kept as (
    insert into stepwell.finished_runs
    select (stepwell.ended(g.run, g.state, stepwell.now() + (clock_timestamp() - now()),
                           case when g.state = 'completed' then g.result end, g.error, g.usage)).*
      from given g
    returning id, kind, parent_id, node, on_failure, state
)
select case when (select count(*) from kept) < cardinality(:ids::uuid[])
            then array(select k.id from kept k) end as moved,
       array(select k.id from kept k where k.kind = 'workflow') as workflows,
       array(select k.id from kept k where k.node is not null and k.parent_id is not null) as parts,
       array(select k.id from kept k where k.state = 'failed' and k.on_failure is not null) as handled,
       stepwell.say(:channel::text, :word::text) as said;

-- name: complete_turns
-- moves: running -> completed
-- Writes the last events of workflows that completed and whose end nobody waits for: record_turns and end_runs in one
-- statement, since most workflows end so. An id that does not come back has lost its claim, and nothing of it was
-- written. `arrived` is that of the deleted row: arrivals that were inserted while this waited for the row are not
-- visible here, and are left to forget_arrivals.
with done as (
    delete from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and r.claim_id = (:claim_ids::uuid[])[width_bucket(r.id, :ids::uuid[])]
       and r.state = 'running'
    returning r as run, r.id, r.arrived, (:results::jsonb[])[width_bucket(r.id, :ids::uuid[])] as result
), written as (
    insert into stepwell.events (run_id, idx, type, at, data)
    select (:ids::uuid[])[e.place], e.idx, e.type, timestamptz '2000-01-01Z' + e.at * interval '1 microsecond',
           :datas::jsonb -> (e.nr - 1)::integer
      from unnest(:places::text::integer[], :idxs::text::integer[], :types::text::text[], :ats::text::bigint[])
           with ordinality as e (place, idx, type, at, nr)
     where (:ids::uuid[])[e.place] = any(array(select d.id from done d))
), taken as (
    delete from stepwell.arrivals a where a.run_id = any(array(select d.id from done d))
), kept as (
    insert into stepwell.finished_runs
    select (stepwell.ended(d.run, 'completed', stepwell.now(), d.result, null, null)).*
      from done d
)
select d.id, coalesce(d.arrived, 0) as arrived from done d;

-- name: expired_runs
-- The next runs that were not started in time, locked.
select r.id
  from stepwell.runs r
 where r.expires_at <= stepwell.now()
   and r.state <> 'running'
 order by r.expires_at
 limit :limit
   for update skip locked;

-- name: overdue_workflows
-- Workflows among the next overdue runs that have begun, and so may have children.
select n.id
  from (select r.id, r.recorded
          from stepwell.runs r
         where r.deadline_at <= stepwell.now()
           and r.state <> 'running'
         order by r.deadline_at
         limit :limit) n
 where n.recorded > 0;

-- name: overdue_runs
-- The next runs whose deadline passed while they were not running, locked.
select r.id
  from stepwell.runs r
 where r.deadline_at <= stepwell.now()
   and r.state <> 'running'
 order by r.deadline_at
 limit :limit
   for update skip locked;

-- name: end_unclaimed_runs
-- moves: scheduled, waiting, pending, running, paused -> failed, cancelled, expired
-- Ends runs from outside, without a claim as a fence: expiry and deadlines have locked the rows, and none of those runs
-- is running. A worker that runs a cancelled run is told, and finds its claim lost. A workflow that has begun is left
-- alone unless by force: it is asked to end instead, so that it can clean up.
with done as (
    delete from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and (:force::boolean or r.recorded is null or r.recorded = 0)
    returning r as run
), kept as (
    insert into stepwell.finished_runs
    select (stepwell.ended(d.run, :state::text, stepwell.now(), null, :error::jsonb, null)).*
      from done d
    returning id, kind, name, queue, attempt, failures, key, tags, claimed_by, parent_id, node, on_failure, state
)
select k.id, k.kind, k.name, k.queue, k.attempt, k.failures, k.key, k.tags,
       case when k.claimed_by is not null then k.queue end as freed, k.kind = 'workflow' as is_workflow,
       k.node is not null and k.parent_id is not null as is_part,
       k.state = 'failed' and k.on_failure is not null as is_handled
  from kept k;

-- name: end_histories
-- Writes the last event of workflows that did not end by their own code, and deletes their arrivals.
with ended as materialized (
    select f.id, f.state, f.error
      from stepwell.finished_runs f
     where f.id = any(:ids::uuid[])
       and f.finished_at >= stepwell.now() -- in this transaction, or after it began
       and f.kind = 'workflow'
), left_behind as (
    delete from stepwell.arrivals a where a.run_id = any(array(select e.id from ended e))
)
insert into stepwell.events (run_id, idx, type, at, data)
select e.id,
       1 + coalesce((select v.idx from stepwell.events v where v.run_id = e.id order by v.idx desc limit 1), 0),
       case e.state when 'cancelled' then 'WorkflowCancelled'
                    when 'failed' then case e.error ->> 'type' when 'DeadlineExceeded' then 'WorkflowTimedOut'
                                                               else 'WorkflowFailed' end
                    else 'WorkflowTimedOut' end,
       stepwell.now(), jsonb_strip_nulls(jsonb_build_object('error', e.error))
  from ended e
returning run_id;

-- name: tell_parents
-- moves: waiting -> pending
-- Delivers the ends of runs that ended in this transaction to the workflows that wait for them. The workflows are
-- looked up by an array of ids: with a join, a session that had planned it on an empty table scanned all live runs up
-- to the last of them.
with ended as materialized (
    select f.parent_id, f.id, f.kind, f.name, f.node, f.state, f.result, f.error, f.attempt,
           row_number() over (partition by f.parent_id order by f.id) as place,
           count(*) over (partition by f.parent_id)::integer as siblings
      from stepwell.finished_runs f
     where f.id = any(:ids::uuid[])
       and f.finished_at >= stepwell.now() -- in this transaction, or after it began
       and f.node is not null
       and f.parent_id is not null
), parents as materialized (
    select p.id
      from stepwell.runs p
     where p.id = any(array(select e.parent_id from ended e where e.place = 1))
       and p.kind = 'workflow'
     order by p.id
       for update
), told as (
    update stepwell.runs r
       set arrived = r.arrived
                     + (array(select e.siblings from ended e where e.place = 1 order by e.parent_id))[width_bucket(
                           r.id, array(select e.parent_id from ended e where e.place = 1 order by e.parent_id))],
           state = case when r.state = 'waiting' and r.blocked is null then 'pending' else r.state end,
           due_at = case when r.state = 'waiting' then null else r.due_at end
     where r.id = any(array(select p.id from parents p))
    returning r.id, r.queue, r.state, r.arrived
), arriving as (
    insert into stepwell.arrivals (run_id, place, type, at, data)
    select t.id, t.arrived - e.siblings + e.place,
           case when e.kind = 'task' then 'Task' else 'Child' end
               || case when e.state = 'completed' then 'Completed' else 'Failed' end,
           stepwell.now(),
           jsonb_strip_nulls(jsonb_build_object(
               'command', e.node::integer, 'run', e.id, 'error', e.error, 'attempt', e.attempt,
               'state', case when e.state not in ('completed', 'failed') then e.state end))
               || case when e.result is not null then jsonb_build_object('value', e.result) else '{}' end
      from ended e
      join told t on t.id = e.parent_id
)
select t.id, t.queue, t.state from told t;

-- name: parents_of
-- The live workflows that started these finished runs, in their current state.
select p.id, p.queue, p.state
  from stepwell.runs p
 where p.id = any(array(select f.parent_id from stepwell.finished_runs f where f.id = any(:ids::uuid[])))
   and p.kind = 'workflow';

-- name: start_handlers
-- moves: -> pending, scheduled
-- Starts the failure handlers of runs that failed in this transaction. The failed run is the first argument of each.
insert into stepwell.runs (
           id, kind, name, queue, priority, state, due_at, expires_at, deadline_at, input, tags, retry, timeout, keep,
           parent_id, root_id, recorded, arrived
       )
select stepwell.handler_id(f.id, f.finished_at), h.kind, h.name, h.queue, h.priority,
       case when h.delay is null then 'pending' else 'scheduled' end,
       stepwell.now() + h.delay * interval '1 second', stepwell.now() + h.expires * interval '1 second',
       stepwell.now() + h.deadline * interval '1 second',
       jsonb_build_object('*', jsonb_build_array(jsonb_build_object(
           'id', f.id, 'name', regexp_replace(f.name, '@[0-9a-f]{12}$', ''), 'input', f.input, 'error', f.error,
           'tags', coalesce(f.tags, '{}')))),
       h.tags, h.retry, h.timeout * interval '1 second', h.keep, f.id, coalesce(f.root_id, f.id),
       case h.kind when 'workflow' then 0 end, case h.kind when 'workflow' then 0 end
  from stepwell.finished_runs f
 cross join lateral jsonb_to_record(f.on_failure) as h (
           kind text, name text, queue text, priority smallint, retry jsonb, tags jsonb, keep text,
           timeout float8, delay float8, expires float8, deadline float8)
 where f.id = any(:ids::uuid[])
   and f.finished_at >= stepwell.now() -- in this transaction, or after it began
   and f.on_failure is not null
    on conflict (id) do nothing
returning queue, state, extract(epoch from due_at - stepwell.now())::float8 as wait;
