-- services: leadership, partitions, keys.

-- name: lead
-- Takes or renews each service that is free, ours, or past its leader's hold.
insert into stepwell.leaders as l (service, worker_id, term, until)
select s.service, :worker::uuid, 1, stepwell.now() + :hold::interval
  from unnest(:services::text[]) as s (service)
 order by s.service
    on conflict (service) do update
   set term = l.term + (l.worker_id <> excluded.worker_id)::int,
       worker_id = excluded.worker_id,
       until = excluded.until
 where l.worker_id = excluded.worker_id or l.until <= stepwell.now()
returning l.service, l.term;

-- name: resign
update stepwell.leaders l
   set until = stepwell.now()
 where l.worker_id = :worker::uuid;

-- name: missing_partitions
-- Days that have no partition of their own and can have one, the next days first.
select m.parent, m.day from stepwell.missing_partitions(:ahead::int) m;

-- name: make_partition
select stepwell.make_partition(:parent::text, :day::date) as made;

-- name: forget_keys
with gone as materialized (
    select k.key
      from stepwell.keys k
     where k.expires_at <= stepwell.now()
       and not exists (select from stepwell.runs r where r.id = k.run_id)
     order by k.expires_at
     limit :limit
       for update skip locked
)
delete from stepwell.keys k
 where k.key = any(array(select g.key from gone g))
returning k.key;

-- name: forget_repeated_starts
delete from stepwell.repeated_starts s where s.at < stepwell.now() - :keep::interval;

-- name: wake
select pg_notify(w.channel, w.payload) from unnest(:channels::text[], :payloads::text[]) as w (channel, payload);
