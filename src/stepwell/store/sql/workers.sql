-- workers: a worker and its lease.

-- name: renew_lease
-- One row per worker, whatever it runs. The row is written whole, so a pruned worker is back at once; one
-- that has left is not, however late its last renewal arrives.
insert into stepwell.workers as w (id, name, host, pid, version, queues, slots, lease_until)
values (:id::uuid, :name, :host, :pid::int, :version, :queues::text[], :slots::int,
        stepwell.now() + :lease::interval)
    on conflict (id) do update
   set lease_until = excluded.lease_until
 where w.stopped_at is null
returning w.id;

-- name: leave
-- A stopped worker holds no lease: what it may have left behind is reaped at once.
update stepwell.workers w
   set lease_until = stepwell.now(),
       stopped_at = stepwell.now()
 where w.id = :id::uuid;

-- name: next_lease_end
-- Seconds until the first lease ends; nothing when no worker holds one.
select extract(epoch from min(w.lease_until) - stepwell.now())::float8 as seconds
  from stepwell.workers w
 where w.lease_until > stepwell.now();

-- name: forget_workers
delete from stepwell.workers w
 where w.lease_until < stepwell.now() - :keep::interval
   and not exists (select from stepwell.runs r where r.claimed_by = w.id);
