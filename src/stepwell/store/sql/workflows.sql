-- workflows: arrivals, children, and pauses. There is one lock order everywhere: children before parents.

-- name: arrive
-- moves: waiting -> pending
-- Delivers one arrival from outside to each of these workflows: a signal, a request, a cancellation. A waiting workflow
-- becomes pending. A run that was started by its name alone, and has written nothing yet, is recognised as a workflow
-- by the workers that have its code.
with held as materialized (
    select r.id
      from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and (r.kind = 'workflow'
            or exists (select from stepwell.workers w where jsonb_exists(w.versions, r.name)))
       and not exists (select from stepwell.repeated_starts s
                        where s.run_id = (:arrivals::uuid[])[width_bucket(r.id, :ids::uuid[])])
     order by r.id
       for update
), told as (
    update stepwell.runs r
       set kind = 'workflow',
           arrived = coalesce(r.arrived, 0) + 1,
           state = case when r.state = 'waiting' and r.blocked is null then 'pending' else r.state end,
           due_at = case when r.state = 'waiting' then null else r.due_at end
     where r.id = any(array(select h.id from held h))
    returning r.id, r.name, r.queue, r.state, r.arrived
), arriving as (
    insert into stepwell.arrivals (run_id, place, type, at, data)
    select t.id, t.arrived, (:types::text[])[width_bucket(t.id, :ids::uuid[])], stepwell.now(),
           (:datas::jsonb[])[width_bucket(t.id, :ids::uuid[])]
      from told t
)
select t.id, t.name, t.queue, t.state from told t;

-- name: forget_arrivals
-- Deletes what arrived too late, for workflows that have ended.
delete from stepwell.arrivals a where a.run_id = any(:ids::uuid[]);

-- name: lock_run
-- Locks the run, so that nothing arrives for it until the end of this transaction.
select r.queue, r.state from stepwell.runs r where r.id = :id::uuid for update;

-- name: has_arrived
-- Tells whether something that was sent before has arrived. It is a statement of its own, after the lock: a statement
-- that waited for the lock would not see what was committed meanwhile.
select exists (select from stepwell.arrivals a where a.run_id = :id::uuid and a.data ->> 'id' = :arrival::text)
    or exists (select from stepwell.events e
                where e.run_id = :id::uuid and e.data ->> 'id' = :arrival::text) as arrived;

-- name: kinds_of
select r.id, r.kind from stepwell.runs r where r.id = any(:ids::uuid[]) order by r.id;

-- name: children_of
-- Live runs that these workflows started and have not yet asked to end, locked. The histories are read once: a workflow
-- may have ten thousand children, and looking for the end of each would read its history as many times. The history of
-- a fork also names runs of its origin, which are not its own.
select r.id
  from stepwell.runs r
 where r.id = any(array(
           select (e.data ->> 'run')::uuid
             from stepwell.events e
            where e.run_id = any(:ids::uuid[])
              and e.type in ('TaskScheduled', 'ChildStarted', 'TaskCancelled', 'ChildCancelled')
            group by e.run_id, e.data ->> 'run'
           having bool_and(e.type in ('TaskScheduled', 'ChildStarted'))))
   and r.parent_id = any(:ids::uuid[])
 order by r.id
   for update;

-- name: started_by
-- Every run that a workflow started, in order.
select (e.data ->> 'run')::uuid as id
  from stepwell.events e
 where e.run_id = :id::uuid
   and e.type in ('TaskScheduled', 'ChildStarted')
 order by e.idx;

-- name: unblock_runs
-- moves: waiting -> pending
-- Workflows whose code did not fit their history, and for which there may be other code now: of another version, or of
-- a worker that started after the one that stopped there, since a version does not cover the code that a workflow
-- calls.
update stepwell.runs r
   set state = 'pending',
       due_at = null,
       blocked = null
 where r.blocked is not null
   and r.name = any(:names::text[])
   and (r.blocked ->> 'version' <> (:versions::text[])[array_position(:names::text[], r.name::text)]
        or coalesce((select w.started_at from stepwell.workers w where w.id = (r.blocked ->> 'worker')::uuid), '-infinity')
           < (select w.started_at from stepwell.workers w where w.id = :worker::uuid))
   and r.state = 'waiting'
returning r.queue;

-- name: pause_runs
-- moves: scheduled, waiting, pending -> paused
-- A workflow in a turn is paused when the turn ends. The row of a workflow in its first turn may not say that it is
-- one, so the versions of its worker are checked, too.
with told as (
    update stepwell.runs r
       set state = case r.state when 'running' then r.state else 'paused' end,
           pausing = case r.state when 'running' then true end,
           paused_at = stepwell.now(),
           paused_by = nullif(:by::text, '')
     where r.id = any(:ids::uuid[])
       and (r.state in ('scheduled', 'waiting', 'pending')
            or r.state = 'running'
               and (r.kind = 'workflow' or exists (select from stepwell.workers w
                                                    where w.id = r.claimed_by and jsonb_exists(w.versions, r.name))))
    returning r.id, r.queue, r.state
)
select t.id, t.queue, t.state from told t;

-- name: resume_runs
-- moves: paused -> scheduled, pending
-- Resumes runs where they were: a run whose time has not come is scheduled again. A workflow that has begun becomes
-- pending, and its next turn finds what it waits for.
update stepwell.runs r
   set state = case when r.state = 'running' then r.state
                    when r.due_at > stepwell.now() and coalesce(r.recorded, 0) = 0 then 'scheduled' else 'pending' end,
       due_at = case when r.due_at > stepwell.now() and coalesce(r.recorded, 0) = 0 then r.due_at end,
       pausing = null,
       paused_at = null,
       paused_by = null
 where r.id = any(:ids::uuid[])
   and (r.state = 'paused' or r.pausing)
returning r.id, r.queue, r.state;

-- name: last_published
select p.state, p.at from stepwell.published p where p.run_id = :id::uuid;

-- name: forget_published
-- Deletes, of the next few published states behind `last`, those whose run no longer exists. Returns how far it looked.
with seen as materialized (
    select p.run_id
      from stepwell.published p
     where p.run_id > :last::uuid
     order by p.run_id
     limit :limit
), there as (
    select r.id from stepwell.runs r where r.id = any(array(select s.run_id from seen s))
     union all
    select f.id from stepwell.finished_runs f where f.id = any(array(select s.run_id from seen s))
     union all
    select k.id from stepwell.kept_runs k where k.id = any(array(select s.run_id from seen s))
), gone as (
    delete from stepwell.published p
     where p.run_id = any(array(select s.run_id from seen s except select t.id from there t))
    returning p.run_id
)
select (select s.run_id from seen s order by s.run_id desc limit 1) as last, (select count(*) from gone) as gone;
