-- claims: how a worker gets runs. As in runs.sql, each statement reads one index range, or `id = any(…)`.

-- name: claim_runs
-- moves: pending -> running
-- Reads one index range per queue. Without a list of queues, every queue that has pending runs is found by skipping
-- from one to the next along the same index. Each queue gets an equal share of the claim, so that no queue starves
-- another, and nothing is locked that is not claimed. At most one of the runs that must be alone is claimed. The update
-- does not check for 'pending' again: the rows are locked, and the check would offer the planner that index.
--
-- A tenth of each share goes to runs that waited long behind more urgent ones, one second for each step of priority
-- between them, the oldest of all these first: a less urgent run is slower, but does not starve. Queues with a limit
-- and runs with a limit key are left to claim_limited_runs; `others` says that there are some, in a row of its own if
-- nothing was claimed.
with recursive busy (queue) as (
    (select r.queue from stepwell.runs r
      where r.state = 'pending' and r.limit_key is null and :queues::text[] is null order by r.queue limit 1)
     union all
    select (select r.queue from stepwell.runs r
             where r.state = 'pending' and r.limit_key is null and r.queue > b.queue order by r.queue limit 1)
      from busy b
     where b.queue is not null
), keyed (queue) as (
    (select r.queue from stepwell.runs r
      where r.state = 'pending' and r.limit_key is not null and :queues::text[] is null order by r.queue limit 1)
     union all
    select (select r.queue from stepwell.runs r
             where r.state = 'pending' and r.limit_key is not null and r.queue > k.queue order by r.queue limit 1)
      from keyed k
     where k.queue is not null
), open as (
    select o.queue
      from (select unnest(:queues::text[]) as queue union all select b.queue from busy b) o
     where o.queue = (select r.queue from stepwell.runs r
                       where r.state = 'pending' and r.limit_key is null and r.queue = o.queue
                       order by r.priority, r.id limit 1)
       and not exists (select from stepwell.queues q
                        where q.name = o.queue and (q.paused_at is not null or q.capped))
       and exists (select from stepwell.workers w where w.id = :worker::uuid and w.lease_until > stepwell.now()
                     and w.stopped_at is null)
     order by random()
), lone as materialized (
    select r.id
      from stepwell.runs r
     where r.alone
       and :alone::boolean
       and r.state like 'pending' -- not `=`, which would offer the planner the index of all pending runs
       and r.limit_key is null
       and r.queue = any(array(select o.queue from open o))
       and r.name = any(:names::text[])
       and (r.expires_at is null or r.expires_at > stepwell.now())
     order by r.failures, r.id
     limit 1
       for update skip locked
), share (size) as materialized (
    select greatest(1, (:limit - (select count(*) from lone)) / nullif(count(*), 0)) from open
), level (queue, aged, best, priority) as (
    select o.queue, floor((select s.size from share s) / 10.0 + random())::int, null::int, 0 from open o
     union all
    select l.queue, l.aged, coalesce(l.best, n.priority), n.priority
      from level l
     cross join lateral (select (select r.priority from stepwell.runs r
                                  where r.state = 'pending' and r.limit_key is null and r.queue = l.queue
                                    and r.priority > l.priority
                                  order by r.priority, r.id limit 1)::int as priority) n
     where l.aged > 0 and n.priority is not null
), old as materialized (
    select l.aged, p.id, row_number() over (partition by l.queue order by p.id) as place
      from level l
     cross join lateral (
           select r.id
             from stepwell.runs r
            where r.state = 'pending'
              and r.limit_key is null
              and r.queue = l.queue
              and r.priority = l.priority
              and r.id < stepwell.id_at(stepwell.now() - (l.priority - l.best) * :ageing::interval)
              and not r.alone
              and r.name = any(:names::text[])
              and (r.expires_at is null or r.expires_at > stepwell.now())
            order by r.priority, r.id
            limit l.aged
           ) p
     where l.priority > l.best
), aged as materialized (
    select p.id from old o
     cross join lateral (select r.id from stepwell.runs r where r.id = o.id and r.state like 'pending'
                            for update skip locked) p
     where o.place <= o.aged
     limit :aged
), next as materialized (
    select l.id from lone l union all select a.id from aged a
     union all
    select p.id
      from open o
     cross join lateral (
           select r.id
             from stepwell.runs r
            where r.state = 'pending'
              and r.limit_key is null
              and r.queue = o.queue
              and not r.alone
              and r.name = any(:names::text[])
              and (r.expires_at is null or r.expires_at > stepwell.now())
            order by r.priority, r.id
            limit (select s.size from share s)
              for update skip locked
           ) p
     limit :limit
), claimed as (
    update stepwell.runs r
       set state = 'running',
           attempt = r.attempt + 1,
           claim_id = :claim_id::uuid,
           claimed_by = :worker::uuid,
           started_at = stepwell.now()
     where r.id = any(array(select n.id from next n))
    returning r.id, r.name, r.queue, r.priority, r.attempt, r.failures, r.input, r.retry, r.timeout, r.key, r.tags,
              r.root_id, r.alone, false as limited, r.deadline_at - stepwell.now() as deadline, r.expires_at - stepwell.now() as expiry, r.node,
              case when r.kind = 'workflow' and r.parent_id is null and r.pausing is not true
                    and coalesce(r.recorded, 0) = 0 and coalesce(r.arrived, 0) = 0 then stepwell.now() end as fresh
)
select l.others, (select s.size from share s) as share, c.*
  from (select exists (select from stepwell.queues q
                        where q.capped
                          and q.paused_at is null
                          and (:queues::text[] is null or q.name = any(:queues::text[]))
                          -- not `exists`, for which the planner may list all pending runs
                          and q.name = (select r.queue from stepwell.runs r
                                         where r.state = 'pending' and r.limit_key is null and r.queue = q.name
                                         order by r.priority, r.id limit 1))
            or exists (select from (select unnest(:queues::text[]) as queue union all select k.queue from keyed k) k
                        where k.queue = (select r.queue from stepwell.runs r
                                          where r.state = 'pending' and r.limit_key is not null and r.queue = k.queue
                                          order by r.limit_key, r.priority, r.id limit 1)
                          and not exists (select from stepwell.queues q
                                           where q.name = k.queue and q.paused_at is not null)) as others) l
  left join claimed c on true;

-- name: claim_from_queue
-- moves: pending -> running
-- Claims from one queue that is known to have work: one index range, without the checks of claim_runs. `more` says that
-- only claim_runs can claim the rest: runs that are limited, or must be alone. There is a row even if nothing is
-- claimed.
with next as materialized (
    select r.id
      from stepwell.runs r
     where r.state = 'pending'
       and r.limit_key is null
       and r.queue = :queue::text
       and not r.alone
       and r.name = any(:names::text[])
       and (r.expires_at is null or r.expires_at > stepwell.now())
       and not exists (select from stepwell.queues q
                        where q.name = :queue::text and (q.paused_at is not null or q.capped))
       and exists (select from stepwell.workers w where w.id = :worker::uuid and w.lease_until > stepwell.now()
                     and w.stopped_at is null)
     order by r.priority, r.id
     limit :limit
       for update skip locked
), claimed as (
    update stepwell.runs r
       set state = 'running',
           attempt = r.attempt + 1,
           claim_id = :claim_id::uuid,
           claimed_by = :worker::uuid,
           started_at = stepwell.now()
     where r.id = any(array(select n.id from next n))
    returning r.id, r.name, r.queue, r.priority, r.attempt, r.failures, r.input, r.retry, r.timeout, r.key, r.tags,
              r.root_id, r.alone, false as limited, r.deadline_at - stepwell.now() as deadline, r.expires_at - stepwell.now() as expiry, r.node,
              case when r.kind = 'workflow' and r.parent_id is null and r.pausing is not true
                    and coalesce(r.recorded, 0) = 0 and coalesce(r.arrived, 0) = 0 then stepwell.now() end as fresh
)
select m.more, c.*
  from (select exists (select from stepwell.queues q where q.name = :queue::text and q.capped and q.paused_at is null)
            or exists (select from stepwell.runs r
                        where r.state = 'pending' and r.limit_key is not null and r.queue = :queue::text)
            or exists (select from stepwell.runs r
                        where r.alone and r.state like 'pending' and r.queue = :queue::text) as more) m
  left join claimed c on true;

-- name: exchange_runs
-- moves: running -> completed; pending -> running
-- The hot path: one statement and one commit settle the completed runs of this worker and claim the next ones. It
-- claims only from queues that an earlier claim found busy, in each behind the last run that was claimed there, so that
-- the dead index entries of all earlier runs are not read again. Runs that come to stand before that place (more
-- urgent, or retried) are left to claim_runs.
--
-- Rows that were locked by a transaction that may still be running are left to claim_runs as well: `xmax` tells this at
-- a third of the cost of trying the lock, and behind that place are the rows that other workers claim now. `moved` is
-- null if every id was moved, else it has those that were; `said` tells whether the notification was sent. There is a
-- row even if nothing is claimed.
with done as (
    delete from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and r.claim_id = (:claim_ids::uuid[])[width_bucket(r.id, :ids::uuid[])]
       and r.state = 'running'
    returning r as run, :results::jsonb -> (width_bucket(r.id, :ids::uuid[]) - 1) as result
), kept as (
    insert into stepwell.finished_runs
    select (stepwell.ended(d.run, 'completed', stepwell.now(), d.result, null, null)).*
      from done d
    returning id
), open as (
    select p.queue, p.priority, p.id
      from unnest(:queues::text[], :priorities::smallint[], :places::uuid[]) as p (queue, priority, id)
     where not exists (select from stepwell.queues q
                        where q.name = p.queue and (q.paused_at is not null or q.capped))
       and exists (select from stepwell.workers w where w.id = :worker::uuid and w.lease_until > stepwell.now()
                     and w.stopped_at is null)
), next as materialized (
    select p.id
      from open o
     cross join lateral (
           select r.id
             from stepwell.runs r
            where r.state = 'pending'
              and r.limit_key is null
              and r.queue = o.queue
              and (r.priority, r.id) > (o.priority, o.id)
              and (age(r.xmax) > (select age(pg_snapshot_xmin(pg_current_snapshot())::xid))
                   or r.xmax = (select pg_current_xact_id_if_assigned()::xid))
              and not r.alone
              and r.name = any(:names::text[])
              and (r.expires_at is null or r.expires_at > stepwell.now())
            order by r.priority, r.id
            limit :share
              for update skip locked
           ) p
), claimed as (
    update stepwell.runs r
       set state = 'running',
           attempt = r.attempt + 1,
           claim_id = :claim_id::uuid,
           claimed_by = :worker::uuid,
           started_at = stepwell.now()
     where r.id = any(array(select n.id from next n))
    returning r.id, r.name, r.queue, r.priority, r.attempt, r.failures, r.input, r.retry, r.timeout, r.key, r.tags,
              r.root_id, r.alone, false as limited, r.deadline_at - stepwell.now() as deadline, r.expires_at - stepwell.now() as expiry, r.node,
              case when r.kind = 'workflow' and r.parent_id is null and r.pausing is not true
                    and coalesce(r.recorded, 0) = 0 and coalesce(r.arrived, 0) = 0 then stepwell.now() end as fresh
)
select m.moved, m.said, c.*
  from (select case when (select count(*) from kept) < cardinality(:ids::uuid[])
                    then array(select k.id from kept k) end as moved,
               stepwell.say(:channel::text, :word::text) as said) m
  left join claimed c on true;
