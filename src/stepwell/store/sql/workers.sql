-- workers: a worker and its lease.

-- name: renew_lease
-- One row per worker, whatever it runs. The whole row is written, so a worker whose row was deleted is back at once. A
-- worker that has stopped is not brought back, however late its last renewal arrives.
insert into stepwell.workers as w (id, name, host, pid, version, queues, names, slots, versions, lease_until)
values (:id::uuid, :name, :host, :pid::int, :version, :queues::text[], :names::text[], :slots::int,
        :versions::jsonb, stepwell.now() + :lease::interval)
    on conflict (id) do update
   set lease_until = excluded.lease_until
 where w.stopped_at is null
returning w.id;

-- name: leave
-- A stopped worker holds no lease: claims that it left behind are reaped at once.
update stepwell.workers w
   set lease_until = stepwell.now(),
       stopped_at = stepwell.now()
 where w.id = :id::uuid;

-- name: next_lease_end
-- Seconds until the first lease ends; null if no worker holds one.
select extract(epoch from min(w.lease_until) - stepwell.now())::float8 as seconds
  from stepwell.workers w
 where w.lease_until > stepwell.now();

-- name: forget_workers
-- A worker is kept while there is any run that it may have run: one that was started before the worker ended.
delete from stepwell.workers w
 where w.lease_until < stepwell.now() - :keep::interval
   and not exists (select from stepwell.runs r where r.claimed_by = w.id)
   and stepwell.id_at(w.lease_until) < coalesce(
           (select r.id from stepwell.all_runs r order by r.id limit 1), stepwell.id_at(stepwell.now()));

-- name: sample_worker
-- Separate from the renewal, so that a failing sample costs no lease. The worker's own row says what it cannot record,
-- and is written only when that changes: the table of samples is unlogged, and may be lost.
with told as (
    update stepwell.workers w
       set unrecorded = :unrecorded::int,
           unrecorded_since = case when :unrecorded::int > 0
               then coalesce(w.unrecorded_since, stepwell.now() - :seconds::float8 * interval '1 second') end,
           unrecorded_why = :why
     where w.id = :id::uuid
       and (w.unrecorded, w.unrecorded_why) is distinct from (:unrecorded::int, :why)
)
insert into stepwell.worker_samples (worker_id, cpu, memory, running, claimed)
values (:id::uuid, :cpu::real, :memory::bigint, :running::int, :claimed::bigint)
    on conflict (worker_id, at) do nothing;

-- name: workers_seen
-- Live workers first, then those that have been gone for no longer than `gone`; or the workers with these ids, at any
-- time.
select w.id, w.name, w.host, w.pid, w.version, w.queues, w.names, w.slots, w.versions, w.started_at, w.lease_until,
       w.stopped_at,
       case when w.stopped_at is not null then 'stopped'
            when w.lease_until > stepwell.now() then 'live'
            else 'lost' end as state,
       w.lease_until - stepwell.now() as lease_left,
       (select count(*) from stepwell.runs r where r.claimed_by = w.id) as running
  from stepwell.workers w
 where case when :ids::uuid[] is null then w.lease_until > stepwell.now() - :gone::interval
            else w.id = any(:ids::uuid[]) end
 order by w.stopped_at is not null, w.lease_until <= stepwell.now(), w.name, w.started_at, w.id
 limit :limit;

-- name: samples_of
-- The newest samples of each worker, no older than `since`.
select w.id as worker_id, s.at, s.cpu, s.memory, s.running, s.claimed
  from unnest(:ids::uuid[]) as w (id)
 cross join lateral (
       select s.at, s.cpu, s.memory, s.running, s.claimed
         from stepwell.worker_samples s
        where s.worker_id = w.id
          and s.at > stepwell.now() - :since::interval
        order by s.at desc
        limit :each
       ) s
 order by w.id, s.at desc;

-- name: forget_samples
-- Deletes about `limit` of the oldest samples: those of the last moment are deleted together.
delete from stepwell.worker_samples s
 where s.at < stepwell.now() - :keep::interval
   and s.at <= coalesce((select o.at from stepwell.worker_samples o
                          where o.at < stepwell.now() - :keep::interval
                          order by o.at
                         offset :limit::int - 1
                          limit 1), stepwell.now())
returning s.at;
