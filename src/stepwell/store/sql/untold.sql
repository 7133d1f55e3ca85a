-- untold: ends of runs that were not delivered to the waiting workflow. There are none, unless rows were changed by
-- hand.

-- name: untold_workflows
-- Finds, among the next few live runs behind `after`, workflows that wait for a run which is not live. Returns how far
-- it looked, too: up to `limit` runs, and until the histories that it had to read have `most` events. It is one
-- snapshot, in which an end and its delivery are both visible or neither.
with seen as materialized (
    select r.id, coalesce(r.history_from, 1) as begun,
           case when r.kind = 'workflow' and r.state = 'waiting' and r.blocked is null and r.waits_for -> 'runs' <> '[]'
                then r.recorded end as events
      from stepwell.runs r
     where r.id > :after::uuid
     order by r.id
     limit :limit
), near as materialized (
    select s.id
      from (select s.id, s.events, sum(s.events) over (order by s.id) as in_all from seen s) s
     where coalesce(s.in_all - coalesce(s.events, 0), 0) < :most
)
select (select n.id from near n order by n.id desc limit 1) as last,
       array(select s.id
               from seen s
              cross join lateral (
                    select array_agg(o.run) as runs
                      from (select (e.data ->> 'run')::uuid as run
                              from stepwell.events e
                             where e.run_id = s.id
                               and e.idx >= s.begun
                               and e.type in ('TaskScheduled', 'TaskCompleted', 'TaskFailed', 'TaskCancelled',
                                              'ChildStarted', 'ChildCompleted', 'ChildFailed', 'ChildCancelled')
                             group by e.data ->> 'run'
                            having bool_and(e.type in ('TaskScheduled', 'ChildStarted'))) o) awaited
              where s.events is not null
                and s.id <= (select n.id from near n order by n.id desc limit 1)
                and (select count(*) from stepwell.runs c where c.id = any(awaited.runs)) < cardinality(awaited.runs)
              order by s.id) as untold;

-- name: untold_ends
-- The ends that were not delivered to a workflow, of the runs that it waits for. A null state: the run's row is gone.
with awaited as materialized (
    select (e.data ->> 'run')::uuid as run, min((e.data ->> 'command')::integer) as command, min(e.type) as type
      from stepwell.runs r
      join stepwell.events e on e.run_id = r.id and e.idx >= coalesce(r.history_from, 1)
     where r.id = :id::uuid
       and e.type in ('TaskScheduled', 'TaskCompleted', 'TaskFailed', 'TaskCancelled',
                      'ChildStarted', 'ChildCompleted', 'ChildFailed', 'ChildCancelled')
     group by e.data ->> 'run'
    having bool_and(e.type in ('TaskScheduled', 'ChildStarted'))
), untold as materialized (
    select a.run from awaited a
    except
    select r.id from stepwell.runs r where r.id = any(array(select a.run from awaited a))
    except
    select (a.data ->> 'run')::uuid from stepwell.arrivals a where a.run_id = :id::uuid
), ended as materialized (
    select f.id, f.state, f.result, f.error, f.attempt
      from stepwell.finished_runs f where f.id = any(array(select u.run from untold u))
     union all
    select k.id, k.state, k.result, k.error, k.attempt
      from stepwell.kept_runs k where k.id = any(array(select u.run from untold u))
)
select a.run, a.command, a.type, e.state, e.result, e.error, e.attempt
  from awaited a
  join untold u on u.run = a.run
  left join ended e on e.id = a.run
 order by a.command
 limit :limit;
