-- lone: runs that come one by one, to a worker that has nothing else to do. What claims.sql does for many it does for these,
-- too; but to make a long statement ready takes the server longer than to move one run.

-- name: claim_from_queue
-- moves: pending -> running
-- From a queue in which there is work, as was heard: one index range, and nothing of what claim_runs has to weigh. `more`
-- tells that only claim_runs finds the rest: work that is limited, or must be alone. There is a row even when nothing is
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

-- name: complete_and_say
-- moves: running -> completed
-- One half of exchange_runs, where nothing is to be claimed. `moved` is null when every id was, else those that were;
-- `said`, whether the word was.
with done as (
    delete from stepwell.runs r
     where r.id = any(:ids::uuid[])
       and r.claim_id = (:claim_ids::uuid[])[width_bucket(r.id, :ids::uuid[])]
       and r.state = 'running'
    returning r.*, :results::jsonb -> (width_bucket(r.id, :ids::uuid[]) - 1) as result
), kept as (
    insert into stepwell.finished_runs (
               id, kind, name, queue, priority, state, input, result, key, tags, retry, timeout, attempt,
               failures, expires_at, claim_id, claimed_by, started_at, created_at, finished_at, parent_id,
               root_id, retry_of, node, map_index, limit_key, per_key, keep
           )
    select id, kind, name, queue, priority, 'completed', input, result, key, tags, retry, timeout, attempt,
           failures, expires_at, claim_id, claimed_by, started_at, created_at, stepwell.now(), parent_id,
           root_id, retry_of, node, map_index, limit_key, per_key, keep
      from done
    returning id
)
select case when (select count(*) from kept) < cardinality(:ids::uuid[])
            then array(select k.id from kept k) end as moved,
       stepwell.say(:channel::text, :word::text) as said;

-- name: record_turn
-- One event of one turn that goes on: record_turns for a workflow that is alone on its worker, one step after another. No
-- row: its claim was lost, and nothing was written.
with moved as (
    update stepwell.runs r
       set kind = 'workflow',
           arrived = coalesce(r.arrived, 0),
           recorded = greatest(r.recorded, :idx::integer),
           failures = 0,
           alone = false
     where r.id = :id::uuid
       and r.claim_id = :claim_id::uuid
       and r.state = 'running'
    returning r.id, r.arrived, r.pausing
), written as (
    insert into stepwell.events (run_id, idx, type, at, data)
    select m.id, :idx::integer, :type::text, :at::timestamptz, :data::jsonb
      from moved m
)
select m.arrived, coalesce(m.pausing, false) as pausing
  from moved m;
