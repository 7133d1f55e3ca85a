-- queues: their live settings. A queue has a row once it has settings, or has been claimed from by limit key.

-- name: set_queue
-- Sets those settings that `:sets` names, and keeps the others.
insert into stepwell.queues as q (name, concurrency, rate, rate_period, per_key, keep)
values (:name::text, :concurrency::int, :rate::int, :rate_period::interval, :per_key::int, :keep::text)
    on conflict (name) do update
   set concurrency = case when 'concurrency' = any(:sets::text[]) then excluded.concurrency else q.concurrency end,
       rate = case when 'rate' = any(:sets::text[]) then excluded.rate else q.rate end,
       rate_period = case when 'rate' = any(:sets::text[]) then excluded.rate_period else q.rate_period end,
       per_key = case when 'per_key' = any(:sets::text[]) then excluded.per_key else q.per_key end,
       keep = case when 'keep' = any(:sets::text[]) then excluded.keep else q.keep end,
       claims = q.claims + 1
returning q.name;

-- name: count_in
-- Makes runs count that were claimed before their queue had a limit. Rows that others hold locked are skipped: those
-- runs are ending, as a rule, and the transaction that sets the limit, which blocks all claims, must not wait for them.
with next as materialized (
    select r.id
      from stepwell.runs r
     where r.claimed_by is not null
       and r.queue = :name::text
       and r.slot is null
       and exists (select from stepwell.queues q where q.name = r.queue and q.capped)
       for update skip locked
)
update stepwell.runs r
   set slot = coalesce(r.limit_key, '')
 where r.id = any(array(select n.id from next n));

-- name: pause_queue
insert into stepwell.queues as q (name, paused_at, paused_by)
values (:name::text, stepwell.now(), :by::text)
    on conflict (name) do update
   set paused_at = coalesce(q.paused_at, excluded.paused_at),
       paused_by = case when q.paused_at is null then excluded.paused_by else q.paused_by end
returning q.paused_at, q.paused_by;

-- name: resume_queue
update stepwell.queues q
   set paused_at = null,
       paused_by = null
 where q.name = :name::text
   and q.paused_at is not null
returning q.name;

-- name: queues_seen
-- Every queue that has settings, pending runs or running ones, found by skipping along the indexes. Pending runs are
-- counted up to `:most`.
with recursive plain (queue) as (
    (select r.queue from stepwell.runs r where r.state = 'pending' and r.limit_key is null order by r.queue limit 1)
     union all
    select (select r.queue from stepwell.runs r
             where r.state = 'pending' and r.limit_key is null and r.queue > p.queue order by r.queue limit 1)
      from plain p
     where p.queue is not null
), running as (
    select r.queue, count(*) as runs from stepwell.runs r where r.claimed_by is not null group by r.queue
), seen as (
    select q.name from stepwell.queues q
     union
    select p.queue from plain p where p.queue is not null
     union
    select r.queue from running r
)
select s.name, q.concurrency, q.rate, q.rate_period, q.per_key, q.keep, q.paused_at, q.paused_by,
       least(:most::int,
             (select count(*) from (select from stepwell.runs r
                                     where r.state = 'pending' and r.limit_key is null and r.queue = s.name
                                     limit :most::int) p)
             + (select count(*) from (select from stepwell.runs r
                                       where r.state = 'pending' and r.limit_key is not null and r.queue = s.name
                                       limit :most::int) k)) as pending,
       coalesce((select r.runs from running r where r.queue = s.name), 0) as running,
       least((select r.created_at from stepwell.runs r
               where r.state = 'pending' and r.limit_key is null and r.queue = s.name
               order by r.priority, r.id limit 1),
             (select min(k.created_at)
                from (select r.created_at from stepwell.runs r
                       where r.state = 'pending' and r.limit_key is not null and r.queue = s.name
                       order by r.limit_key, r.priority, r.id limit 100) k)) as first_pending,
       (select count(*) from stepwell.workers w
         where w.lease_until > stepwell.now() and w.stopped_at is null
           and (w.queues is null or s.name = any(w.queues))) as workers
  from seen s
  left join stepwell.queues q on q.name = s.name
 where :name::text is null or s.name = :name::text
 order by s.name;
